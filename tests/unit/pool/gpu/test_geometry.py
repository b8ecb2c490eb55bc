"""What fits on a GPU."""

from collections import Counter

import pytest
from tests.maximal_layouts import maximal_layouts

from miglab_pool.gpu.geometry import (
    Geometry,
    Placed,
    Placement,
    legal_placements,
    occupied_mask,
)
from miglab_pool.gpu.simulated.models import model_named, models

EIGHT_SLICES = [key for key, model in models().items() if model.geometry.memory_slices == 8]
PLAIN_IDS = (19, 14, 9, 5, 0)
A100, A30 = model_named("A100-40GB").geometry, model_named("A30").geometry


def _count(geometry: Geometry, ids: tuple[int, ...]) -> tuple[int, int]:
    layouts = list(maximal_layouts(geometry, [geometry.by_id[number].name for number in ids]))
    assert len(set(layouts)) == len(layouts)
    multisets = {frozenset(Counter(p.profile.name for p in layout).items()) for layout in layouts}
    return len(layouts), len(multisets)


@pytest.mark.parametrize("model", EIGHT_SLICES)
def test_plain_profiles_have_nineteen_maximal_layouts(model: str) -> None:
    """With 1g to 7g 19 layouts of 14 kinds, with the double-memory 1g 78 layouts of 38 kinds."""
    geometry = models()[model].geometry
    assert _count(geometry, PLAIN_IDS) == (19, 14)
    assert _count(geometry, (*PLAIN_IDS, 15)) == (78, 38)


@pytest.mark.parametrize(
    ("geometry", "placed", "wanted", "left"),
    [
        pytest.param(A100, (5, 0, 4), 9, [4], id="3g beside 4g"),
        pytest.param(A100, (9, 0, 4), 19, [4, 5, 6], id="three 1g beside 3g at 0"),
        pytest.param(A100, (9, 4, 4), 19, [0, 1, 2, 3], id="four 1g beside 3g at 4"),
        pytest.param(A30, (21, 0, 1), 21, [], id="no second +me"),
        pytest.param(A30, (21, 0, 1), 6, [], id="no +me of another size either"),
        pytest.param(A30, (21, 0, 1), 14, [1, 2, 3], id="plain ones beside +me"),
    ],
)
def test_what_still_fits(
    geometry: Geometry, placed: tuple[int, int, int], wanted: int, left: list[int]
) -> None:
    """Where a slice lies decides what fits beside it."""
    number, start, size = placed
    there = Placed(geometry.by_id[number], Placement(start, size))
    legal = legal_placements(geometry, geometry.by_id[wanted], [there])
    assert [placement.start for placement in legal] == left


def test_occupied_slices_are_bits() -> None:
    """A placement covers the bits of its memory slices."""
    geometry = model_named("H200").geometry
    placed = [
        Placed(geometry.by_id[14], Placement(2, 2)),
        Placed(geometry.by_id[19], Placement(6, 1)),
    ]
    assert occupied_mask(placed) == 0b01001100
    assert str(placed[0].placement) == "{2}:2"


@pytest.mark.parametrize("model", models())
def test_tables_are_consistent(model: str) -> None:
    """Counts and starts of every table belong together; its largest slice covers the GPU."""
    facts = models()[model]
    for profile in facts.geometry.profiles:
        assert profile.max_count == (1 if profile.has_media else len(profile.starts))
        assert profile.name.startswith(f"{profile.compute_slices}g.")
        assert profile.profile_id in facts.engines
    largest = max(facts.geometry.profiles, key=lambda profile: profile.size)
    assert largest.size == facts.geometry.memory_slices
    assert largest.compute_slices == facts.compute_slices


def test_unknown_model_is_named_with_those_there_are() -> None:
    """A model that cannot be simulated is one clear message."""
    with pytest.raises(ValueError, match=r"'B200'.*A100-40GB.*H200-141GB"):
        model_named("B200")

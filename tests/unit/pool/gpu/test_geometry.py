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
DOUBLE_ID = 15


def _names(geometry: Geometry, ids: tuple[int, ...]) -> list[str]:
    return [geometry.by_id[profile_id].name for profile_id in ids]


def _count(geometry: Geometry, names: list[str]) -> tuple[int, int]:
    layouts = list(maximal_layouts(geometry, names))
    assert len(set(layouts)) == len(layouts)
    multisets = {frozenset(Counter(p.profile.name for p in layout).items()) for layout in layouts}
    return len(layouts), len(multisets)


@pytest.mark.parametrize("model", EIGHT_SLICES)
def test_plain_profiles_have_nineteen_maximal_layouts(model: str) -> None:
    """With 1g to 7g there are 19 layouts, of 14 kinds."""
    geometry = models()[model].geometry
    assert _count(geometry, _names(geometry, PLAIN_IDS)) == (19, 14)


@pytest.mark.parametrize("model", EIGHT_SLICES)
def test_double_memory_profile_makes_them_seventy_eight(model: str) -> None:
    """With the double-memory 1g there are 78 layouts, of 38 kinds."""
    geometry = models()[model].geometry
    assert _count(geometry, _names(geometry, (*PLAIN_IDS, DOUBLE_ID))) == (78, 38)


def test_four_and_three_share_a_gpu() -> None:
    """4g and 3g are legal together and fill the GPU."""
    geometry = model_named("A100-40GB").geometry
    four = Placed(geometry.by_id[5], Placement(0, 4))
    assert legal_placements(geometry, geometry.by_id[9], [four]) == [Placement(4, 4)]


@pytest.mark.parametrize(("start", "left"), [(0, 3), (4, 4)])
def test_where_a_three_lies_decides_how_many_ones_fit(start: int, left: int) -> None:
    """After one 3g, three 1g fit if it sits at 0 and four if it sits at 4."""
    geometry = model_named("A100-40GB").geometry
    three = Placed(geometry.by_id[9], Placement(start, 4))
    assert len(legal_placements(geometry, geometry.by_id[19], [three])) == left


def test_second_media_slice_fits_nowhere() -> None:
    """A GPU takes one +me slice, wherever it lies."""
    geometry = model_named("A30").geometry
    media = Placed(geometry.by_id[21], Placement(0, 1))
    assert legal_placements(geometry, geometry.by_id[21], [media]) == []
    assert legal_placements(geometry, geometry.by_id[6], [media]) == []
    assert legal_placements(geometry, geometry.by_id[14], [media]) == [
        Placement(start, 1) for start in (1, 2, 3)
    ]


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

"""What fits on a GPU, and shapes in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import (
    Engines,
    Geometry,
    Placement,
    Profile,
    ProfilePlacement,
    legal_placements,
    occupied_mask,
    with_engines,
)
from miglab_pool.gpu.shapes import Need, Shape, ShapeError, parse_shape, resolve
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.gpu.simulated.rules import model_named, models

A100, A30 = model_geometry("A100-40GB"), model_geometry("A30")
BLACKWELL = model_geometry("RTX-PRO-6000")


@pytest.mark.parametrize(
    ("geometry", "present", "profile_id", "starts"),
    [
        pytest.param(A100, (5, 0, 4), 9, [4], id="3g beside 4g"),
        pytest.param(A100, (9, 0, 4), 19, [4, 5, 6], id="three 1g beside 3g at 0"),
        pytest.param(A100, (9, 4, 4), 19, [0, 1, 2, 3], id="four 1g beside 3g at 4"),
        pytest.param(A30, (21, 0, 1), 21, [], id="no second +me"),
        pytest.param(A30, (21, 0, 1), 6, [], id="no +me of another size either"),
        pytest.param(A30, (21, 0, 1), 14, [1, 2, 3], id="plain ones beside +me"),
        pytest.param(BLACKWELL, (65, 0, 1), 14, [], id="no decoder is left beside +me.all"),
        pytest.param(BLACKWELL, (65, 0, 1), 5, [], id="nor for a larger one"),
        pytest.param(BLACKWELL, (65, 0, 1), 47, [], id="nor for graphics"),
        pytest.param(BLACKWELL, (65, 0, 1), 67, [1, 2, 3], id="-me needs none"),
        pytest.param(BLACKWELL, (14, 0, 1), 65, [], id="no +me.all beside a plain one"),
        pytest.param(BLACKWELL, (67, 0, 1), 64, [2], id="+me.all beside -me"),
        pytest.param(BLACKWELL, (21, 0, 1), 21, [], id="one +me, as there is one OFA"),
        pytest.param(BLACKWELL, (21, 0, 1), 14, [1, 2, 3], id="decoders for all beside +me"),
    ],
)
def test_what_still_fits(
    geometry: Geometry, present: tuple[int, int, int], profile_id: int, starts: list[int]
) -> None:
    """Where a slice lies decides what fits beside it."""
    number, start, size = present
    present_slice = ProfilePlacement(geometry.by_id[number], Placement(start, size))
    legal = legal_placements(geometry.by_id[profile_id], [present_slice])
    assert [placement.start for placement in legal] == starts


def _quarter(name: str, max_count: int) -> Profile:
    return Profile(name, -1, -1, 1, 1, 46, 11_000, max_count, (0, 1, 2, 3))


QUARTERS = {
    "one JPEG engine for two profiles": (
        [
            (_quarter("1g.12gb", 1), Engines(1, 1, 1)),
            (_quarter("1g.12gb+gfx", 1), Engines(1, 1, 1)),
        ],
        1,
    ),
    "engines that leave room for all": (
        [(_quarter("1g.12gb", 4), Engines(1)), (_quarter("1g.12gb+gfx", 4), Engines(1))],
        4,
    ),
    "fewer engines told than the profile's count needs": (
        [(_quarter("1g.23gb", 4), Engines(4)), (_quarter("1g.23gb+gfx", 4), Engines(4))],
        4,
    ),
    "a count of one that no engine explains": (
        [(_quarter("1g.23gb", 1), Engines()), (_quarter("1g.23gb+gfx", 4), Engines())],
        1,
    ),
}


@pytest.mark.parametrize(("parts", "count"), QUARTERS.values(), ids=QUARTERS)
def test_engines_and_counts_limit_a_profile(
    parts: list[tuple[Profile, Engines]], count: int
) -> None:
    """A profile fits as often as the engines of the whole GPU allow, and as its own count says."""
    everything = Profile("4g.48gb", 0, 3, 4, 4, 110, 47_000, 1, (0,))
    profile, *_ = with_engines([*parts, (everything, Engines(4, 4, 1, 1))])
    present: list[ProfilePlacement] = []
    while places := legal_placements(profile, present):
        present.append(ProfilePlacement(profile, places[0]))
    assert len(present) == count


def test_occupied_slices_are_bits() -> None:
    """A placement covers the bits of its memory slices."""
    geometry = model_geometry("H200")
    present = [
        ProfilePlacement(geometry.by_id[14], Placement(2, 2)),
        ProfilePlacement(geometry.by_id[19], Placement(6, 1)),
    ]
    assert occupied_mask(present) == 0b01001100
    assert str(present[0].placement) == "{2}:2"


@pytest.mark.parametrize("model", models())
def test_tables_are_consistent(model: str) -> None:
    """Counts and starts of every table belong together; its largest slice covers the GPU."""
    facts = models()[model]
    for profile in facts.profiles:
        has_last_engine = profile.name.endswith(("+me", "+me.all"))
        assert profile.max_count == (1 if has_last_engine else len(profile.starts))
        assert profile.name.startswith(f"{profile.compute_slices}g.")
    assert facts.largest.compute_slices == facts.compute_slices


def test_unknown_model_is_named_with_those_there_are() -> None:
    """A model that cannot be simulated is one clear message."""
    with pytest.raises(ValueError, match=r"'B200'.*A100-40GB.*H200-141GB"):
        model_named("B200")


H200 = model_geometry("H200")


@pytest.mark.parametrize(
    ("text", "canonical", "count"),
    [
        ("cpu", "cpu", 0),
        ("full", "full", 1),
        ("1g.5gb", "1g.5gb", 1),
        ("2x1g.5gb", "2x1g.5gb", 2),
        ("2 × 1G.5GB", "2x1g.5gb", 2),
        ("1g.5gb+me", "1g.5gb+me", 1),
        ("2g.10gb,1g.5gb", "1g.5gb,2g.10gb", 2),
        ("1g.5gb, 1g.5gb", "2x1g.5gb", 2),
        ("  3g.20gb ", "3g.20gb", 1),
        ("64x1g.5gb", "64x1g.5gb", 64),
    ],
)
def test_shapes_are_read_and_written_in_one_way(text: str, canonical: str, count: int) -> None:
    """Every spelling has one canonical form, which reads back to the same shape."""
    shape = parse_shape(text)
    assert isinstance(shape, Shape)
    assert (str(shape), shape.slice_count, len(shape.profiles)) == (canonical, count, count)
    assert parse_shape(canonical) == shape


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("at least 9 GiB", Need(memory_gib=9)),
        ("at least 28 SMs", Need(sm_count=28)),
        ("At least 9.5 GB and 28 SM", Need(9.5, 28)),
        ("at least 28 SMs, at least 9 GiB", Need(9, 28)),
    ],
)
def test_needs_are_read(text: str, need: Need) -> None:
    """A need may name memory, SMs or both."""
    assert parse_shape(text) == need
    assert parse_shape(str(need)) == need


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "gpu",
        "1g",
        "0x1g.5gb",
        "65x1g.5gb",
        "33x1g.5gb,32x2g.10gb",
        "1g.5gb,",
        "1g.5gb;2g.10gb",
        "cpu,1g.5gb",
        "at least",
        "at least 9",
        "at least nine GiB",
        "at least 1.5 SMs",
        "٣g.20gb",
        "1g.5gb\N{NO-BREAK SPACE}\N{PILE OF POO}",
        "x" * 10_000,
        "1g.5gb," * 1000,
    ],
)
def test_what_is_no_shape_is_refused_in_few_words(text: str) -> None:
    """Empty, unicode and over-long input end in one short message."""
    with pytest.raises(ShapeError) as refusal:
        parse_shape(text)
    assert 20 < len(str(refusal.value)) < 300


@given(st.text(max_size=300))
def test_any_text_is_a_shape_or_refused(text: str) -> None:
    """Nothing but ShapeError comes out of reading, and what is read is written the same."""
    try:
        shape = parse_shape(text)
    except ShapeError:
        return
    assert parse_shape(str(shape)) == shape


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("at least 1 GiB", "1g.5gb"),
        ("at least 4.75 GiB", "1g.5gb"),
        ("at least 5 GiB", "1g.10gb"),
        ("at least 9 GiB", "1g.10gb"),
        ("at least 9 GiB and 28 SMs", "2g.10gb"),
        ("at least 28 SMs", "2g.10gb"),
        ("at least 43 SMs", "4g.20gb"),
        ("at least 19 GiB", "3g.20gb"),
        ("at least 39 GiB", "7g.40gb"),
    ],
)
def test_need_is_met_by_the_smallest_profile(text: str, profile: str) -> None:
    """The profile with the fewest memory slices, then compute slices, that serves."""
    assert str(resolve(text, [A100])) == profile
    assert str(resolve("at least 16 GiB", [A100, H200])) == "1g.18gb", "of all GPUs"


@pytest.mark.parametrize("text", ["at least 50 GiB", "at least 99 SMs", "1g.6gb", "1g.5gb,2g.20gb"])
def test_what_no_gpu_has_is_refused_with_what_there_is(text: str) -> None:
    """A shape that cannot exist here is answered with the profiles that can."""
    with pytest.raises(ShapeError, match=r"what there is: .*7g\.40gb"):
        resolve(text, [A100])


def test_without_gpus_only_cpu_and_full_remain() -> None:
    """Where nothing can be cut, the message says what is left."""
    assert resolve("cpu", []).is_cpu
    assert resolve("full", []).is_full
    with pytest.raises(ShapeError, match="only 'cpu' and 'full'"):
        resolve("1g.5gb", [])

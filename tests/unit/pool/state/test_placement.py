"""Placement decisions against brute force, on A100 and A30."""

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maximal_layouts import maximal_layouts

from miglab_bench.measures.placement import packs
from miglab_pool.gpu.geometry import Geometry, Placement, ProfilePlacement, legal_placements
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.state.placement import GpuOccupancy, _emptied, could_ever_fit, place

A100 = model_geometry("A100-40GB")
A30 = model_geometry("A30")


def _at(name: str, start: int, geometry: Geometry = A100) -> ProfilePlacement:
    profile = geometry.by_name[name]
    return ProfilePlacement(profile, Placement(start, profile.size))


@st.composite
def contents(
    draw: st.DrawFn, geometry: Geometry
) -> tuple[tuple[ProfilePlacement, ...], tuple[ProfilePlacement, ...]]:
    """A reachable GPU: non-overlapping slices, at most one +me, split into live and warm."""
    present: list[ProfilePlacement] = []
    for name in draw(st.lists(st.sampled_from(list(geometry.by_name)), max_size=6)):
        options = legal_placements(geometry.by_name[name], present)
        if options:
            present.append(ProfilePlacement(geometry.by_name[name], draw(st.sampled_from(options))))
    is_live = draw(st.lists(st.booleans(), min_size=len(present), max_size=len(present)))
    live = tuple(slice_ for slice_, yes in zip(present, is_live, strict=True) if yes)
    return live, tuple(slice_ for slice_, yes in zip(present, is_live, strict=True) if not yes)


@st.composite
def machines(draw: st.DrawFn, max_gpus: int = 3) -> list[GpuOccupancy]:
    """One to ``most`` GPUs of one model."""
    geometry = draw(st.sampled_from([A100, A30]))
    gpu_contents = draw(st.lists(contents(geometry), min_size=1, max_size=max_gpus))
    usable = [draw(st.integers(0, 9)) > 0 for _ in gpu_contents]
    return [
        GpuOccupancy(f"GPU-{index}", geometry, live, warm, usable[index])
        for index, (live, warm) in enumerate(gpu_contents)
    ]


@st.composite
def questions(draw: st.DrawFn, max_slices: int = 4) -> tuple[list[str], list[GpuOccupancy]]:
    """A shape, and a machine to place it on."""
    gpus = draw(machines())
    names = st.sampled_from(list(gpus[0].geometry.by_name))
    return draw(st.lists(names, min_size=1, max_size=max_slices)), gpus


Everywhere = tuple[tuple[ProfilePlacement, ...], ...]


def _all_ways(names: Sequence[str], live: Everywhere, geometry: Geometry) -> Iterator[Everywhere]:
    """Every way to add ``names`` to GPUs that hold ``live``: brute force over legal_placements."""
    if not names:
        yield live
        return
    profile = geometry.by_name[names[0]]
    for index, on_gpu in enumerate(live):
        for placement in legal_placements(profile, on_gpu):
            with_it = (*on_gpu, ProfilePlacement(profile, placement))
            yield from _all_ways(names[1:], (*live[:index], with_it, *live[index + 1 :]), geometry)


def _exists(names: Sequence[str], gpus: Sequence[GpuOccupancy]) -> bool:
    live = tuple(gpu.live for gpu in gpus if gpu.usable)
    return next(_all_ways(names, live, gpus[0].geometry), None) is not None


def _worth(present: Sequence[ProfilePlacement], geometry: Geometry) -> int:
    plain = (profile for profile in geometry.profiles if profile.is_plain)
    return sum(len(legal_placements(profile, present)) for profile in plain)


@given(questions())
def test_choices_are_legal_and_complete(question: tuple[list[str], list[GpuOccupancy]]) -> None:
    """All, in the order asked, on usable GPUs, beside what is live and each other.

    Nothing exactly where brute force finds no room.
    """
    names, gpus = question
    choices = place(names, gpus)
    assert (choices is not None) == _exists(names, gpus)
    if choices is None:
        return
    assert [choice.profile.name for choice in choices] == names
    by_name = {gpu.gpu: gpu for gpu in gpus}
    slices_by_gpu = {gpu.gpu: list(gpu.live) for gpu in gpus}
    for choice in choices:
        on_gpu = slices_by_gpu[choice.gpu]
        assert by_name[choice.gpu].usable
        assert choice.placement in legal_placements(choice.profile, on_gpu)
        on_gpu.append(ProfilePlacement(choice.profile, choice.placement))


@given(questions())
def test_destroys_exactly_the_warm_slices_in_the_way(
    question: tuple[list[str], list[GpuOccupancy]],
) -> None:
    """What is destroyed is what the new slices overlap (or a second +me), each named once."""
    names, gpus = question
    choices = place(names, gpus) or ()
    for gpu in gpus:
        on_gpu = [choice for choice in choices if choice.gpu == gpu.gpu]
        reused = [
            ProfilePlacement(choice.profile, choice.placement) for choice in on_gpu if choice.reuse
        ]
        assert all(slice_ in gpu.warm for slice_ in reused)
        in_the_way = [
            slice_
            for slice_ in gpu.warm
            if slice_ not in reused
            and any(
                slice_.placement.mask & choice.placement.mask
                or all(p.name.endswith("+me") for p in (slice_.profile, choice.profile))
                for choice in on_gpu
            )
        ]
        destroyed = [slice_ for choice in on_gpu for slice_ in choice.destroy]
        assert sorted(destroyed, key=lambda slice_: slice_.placement) == sorted(
            in_the_way, key=lambda slice_: slice_.placement
        )
        assert all(
            choice.reuse == (ProfilePlacement(choice.profile, choice.placement) in gpu.warm)
            for choice in on_gpu
        )


@given(questions(max_slices=3))
@settings(max_examples=settings.default.max_examples // 2)
def test_fewest_gpus_then_fewest_legal_placements_destroyed(
    question: tuple[list[str], list[GpuOccupancy]],
) -> None:
    """No other way uses fewer GPUs, or as many and destroys fewer still-legal placements."""
    names, gpus = question
    choices = place(names, gpus)
    if choices is None:
        return
    geometry = gpus[0].geometry
    usable = [gpu for gpu in gpus if gpu.usable]
    live = tuple(gpu.live for gpu in usable)

    def score(after: Everywhere) -> tuple[int, int]:
        changed = sum(a != b for a, b in zip(after, live, strict=True))
        return changed, -sum(_worth(on_gpu, geometry) for on_gpu in after)

    chosen_layout = tuple(
        (
            *gpu.live,
            *(ProfilePlacement(c.profile, c.placement) for c in choices if c.gpu == gpu.gpu),
        )
        for gpu in usable
    )
    assert score(chosen_layout) == min(map(score, _all_ways(names, live, geometry)))


WARM = GpuOccupancy("b", A100, warm=(_at("3g.20gb", 4),))
COSTLY = GpuOccupancy("a", A100, warm=(_at("3g.20gb", 0),))
MEDIA = GpuOccupancy("a", A30, warm=(_at("1g.6gb+me", 3, A30),))


TIES = {
    "among equally good places the warm slice is reused": (
        "3g.20gb", [GpuOccupancy("a", A100), WARM], ("b", 4, True, ()),
    ),
    "a warm slice at a place that costs more legal placements is left alone": (
        "3g.20gb", [COSTLY], ("a", 4, False, ()),
    ),
    "a warm +me slice that cannot be reused goes, though nothing overlaps": (
        "2g.12gb+me", [MEDIA], ("a", 0, False, MEDIA.warm),
    ),
    "each profile goes to the GPU that has it": (
        "1g.6gb", [GpuOccupancy("a", A100), GpuOccupancy("b", A30)], ("b", 0, False, ()),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "gpus", "expected"), TIES.values(), ids=TIES)
def test_warmth_breaks_ties(
    name: str, gpus: list[GpuOccupancy], expected: tuple[object, ...]
) -> None:
    """And no more than that."""
    (choice,) = place([name], gpus) or ()
    assert (choice.gpu, choice.placement.start, choice.reuse, choice.destroy) == expected


def test_equal_gpus_are_all_used() -> None:
    """GPUs in equal state are all counted: six with three free places each hold 18, not 19."""
    gpus = [GpuOccupancy(str(index), A100, (_at("4g.20gb", 0),)) for index in range(6)]
    assert len({choice.gpu for choice in place(["1g.5gb"] * 18, gpus) or ()}) == 6
    assert place(["1g.5gb"] * 19, gpus) is None
    assert len({choice.gpu for choice in place(["3g.20gb"] * 2, gpus) or ()}) == 2


def test_nothing_wanted_and_nothing_there() -> None:
    """No slices fit anywhere, even nowhere; some fit on no GPU, an unknown one on none."""
    assert place([], []) == ()
    assert place(["1g.5gb"], []) is None
    assert place(["5g.99gb"], [GpuOccupancy("a", A100)]) is None
    assert place(["1g.5gb"], [GpuOccupancy("a", A100, usable=False)]) is None


def test_could_ever_place_ignores_what_is_there_now() -> None:
    """A shape that fits once everything is free is not refused; one that never fits is.

    Of many GPUs alike as many count as the shape has slices: with 64 that was a sixth of the work.
    """
    gpus = [GpuOccupancy("a", A100, (_at("7g.40gb", 0),)), GpuOccupancy("b", A100, usable=False)]
    many = [GpuOccupancy(str(n), A100) for n in range(64)] + [GpuOccupancy("b", A30)]
    assert [gpu.gpu for gpu in _emptied(many, 2)] == ["0", "1", "b"]
    for gpu_set, max_whole_gpus in ((gpus, 2), (many, 64)):
        assert could_ever_fit(["7g.40gb"] * max_whole_gpus, gpu_set)
        assert not could_ever_fit(["7g.40gb"] * (max_whole_gpus + 1), gpu_set)
    assert could_ever_fit(["1g.5gb+me"] * 2, gpus)
    assert not could_ever_fit(["1g.5gb+me"] * 3, gpus)
    assert could_ever_fit(["7g.40gb"] * 2 + ["1g.6gb"], many)


@pytest.mark.parametrize("n_gpus", [1, 2])
@pytest.mark.parametrize("geometry", [A100, A30], ids=["A100", "A30"])
def test_packs_agrees_with_exhaustive_search(geometry: Geometry, n_gpus: int) -> None:
    """The closed form is right for every multiset that could fit on one or two GPUs."""
    plain = [profile for profile in geometry.profiles if profile.is_plain]
    names = [profile.name for profile in plain]
    on_one_gpu = {
        tuple(map([slice_.profile.name for slice_ in part].count, names))
        for layout in maximal_layouts(geometry, names)
        for size in range(len(layout) + 1)
        for part in itertools.combinations(layout, size)
    }
    pairs = itertools.product(on_one_gpu, on_one_gpu if n_gpus == 2 else [(0,) * len(plain)])
    reachable = {tuple(map(sum, zip(a, b, strict=True))) for a, b in pairs}
    upper_bounds = [n_gpus * geometry.memory_slices // profile.size + 1 for profile in plain]
    for counts in itertools.product(*(range(n + 1) for n in upper_bounds)):
        count_by_profile = dict(zip(names, counts, strict=True))
        assert packs(count_by_profile, n_gpus, geometry) == (counts in reachable), count_by_profile


def test_packs_refuses_media_profiles() -> None:
    """The closed form does not cover +me, and says so instead of guessing."""
    with pytest.raises(ValueError, match=r"\+me"):
        packs({"1g.5gb+me": 1}, 1, A100)

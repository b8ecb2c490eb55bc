"""One GPU's cut: refused with what would fit, laid out, and what is to be done for it."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maximal_layouts import maximal_layouts

from miglab_pool.gpu.geometry import Geometry, ProfilePlacement
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.state.partition import (
    Change,
    LayoutRole,
    PartitionError,
    PresentSlice,
    arrange,
    arrangements,
    is_possible,
    plan_change,
    resolve,
    restrict_geometry,
    slice_key,
)
from miglab_pool.state.placement import GpuOccupancy, clash, place

A100 = model_geometry("A100-40GB")
A30 = model_geometry("A30")
NAMES = [profile.name for profile in A100.profiles]
ALL = sorted({layout for layout in maximal_layouts(A100, NAMES)}, key=lambda layout: str(layout))


def subsets() -> list[tuple[ProfilePlacement, ...]]:
    """Every way in which an A100 can be cut, wholly or in part."""
    parts: dict[frozenset[tuple[int, str]], tuple[ProfilePlacement, ...]] = {}
    for layout in ALL:
        for size in range(len(layout) + 1):
            for part in combinations(layout, size):
                parts.setdefault(frozenset(map(slice_key, part)), part)
    return list(parts.values())


EVERY_STATE = subsets()
PARTITIONS = sorted({tuple(sorted(slice_.profile.name for slice_ in part)) for part in EVERY_STATE})
partitions = st.sampled_from(PARTITIONS)
states = st.sampled_from(EVERY_STATE)
kinds = st.sampled_from(
    (LayoutRole.FREE, LayoutRole.HELD, LayoutRole.COMING, LayoutRole.GRANTED, LayoutRole.GOING)
)


@st.composite
def gpus(draw: st.DrawFn, with_fixed: bool = False) -> tuple[PresentSlice, ...]:
    """A GPU in any state, each slice free, held or on its way."""
    some = st.sampled_from(list(LayoutRole)) if with_fixed else kinds
    return tuple(PresentSlice(n, slice_, draw(some)) for n, slice_ in enumerate(draw(states), 1))


def names(slices: tuple[ProfilePlacement, ...]) -> tuple[str, ...]:
    return tuple(sorted(slice_.profile.name for slice_ in slices))


@pytest.mark.parametrize(
    ("geometry", "partition", "message_part"),
    [
        (A100, ("5g.20gb",), "can be cut into 1g.5gb, 2g.10gb, 3g.20gb"),
        (A100, ("1g",), "it has no 1g; it can be cut into 1g.5gb"),
        (A30, ("3g.18gb",), "it has no 3g.18gb; it can be cut into 1g.6gb, 2g.12gb, 4g.24gb"),
        (A100, ("x" * 10_000,), "it has no xxx"),
        (
            A100,
            ("4g.20gb", *["1g.5gb"] * 4),
            "4g.20gb + 4x1g.5gb do not fit on it: beside 4g.20gb + 3x1g.5gb, which would fit, "
            "there is no place for 1g.5gb",
        ),
        (A100, ("4g.20gb",) * 2, "beside 4g.20gb, which would fit, there is no place for 4g.20gb"),
        (A100, ("1g.5gb+me", "1g.5gb+me"), "no place for 1g.5gb+me"),
        (A100, ("7g.40gb", "1g.5gb"), "beside 7g.40gb, which would fit, there is no place for 1g"),
        (A100, ("1g.5gb",) * 64, "beside 7x1g.5gb, which would fit, there is no place for 57x1g"),
        (Geometry(8, ()), ("1g.5gb",), "can be cut into nothing"),
    ],
)
def test_what_would_fit(geometry: Geometry, partition: tuple[str, ...], message_part: str) -> None:
    """A cut that cannot be says what could."""
    with pytest.raises(PartitionError) as error:
        resolve(partition, geometry)
    assert message_part in str(error.value)
    assert len(str(error.value)) < 300


@given(st.lists(st.sampled_from(NAMES), max_size=8).map(lambda some: tuple(sorted(some))))
def test_possible_means_in_some_layout(partition: tuple[str, ...]) -> None:
    """A cut is possible exactly if some layout of the GPU contains it."""
    assert is_possible(partition, A100) == (partition in PARTITIONS)


@given(states, partitions)
def test_done_is_exactly_the_partition(
    part: tuple[ProfilePlacement, ...], partition: tuple[str, ...]
) -> None:
    """A GPU with other slices is not done."""
    present = tuple(PresentSlice(n, slice_, LayoutRole.HELD) for n, slice_ in enumerate(part, 1))
    assert plan_change(A100, partition, present).is_done == (names(part) == partition)


@given(gpus(with_fixed=True), partitions)
@settings(max_examples=5 * settings.default.max_examples)
def test_a_change_is_whole_and_interrupts_nobody(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...]
) -> None:
    """Every slice is accounted for once, no leased one is removed, what is made has room."""
    plan = plan_change(A100, partition, present)
    parts = (plan.keeps, plan.comes, plan.removes, plan.drains, plan.goes, plan.immovable)
    assert sorted(slice_.number for part in parts for slice_ in part) == [i.number for i in present]
    assert {slice_.role for slice_ in plan.removes} <= {LayoutRole.FREE}
    assert {slice_.role for slice_ in plan.immovable} <= {LayoutRole.FIXED}
    assert names(plan.target) == partition
    stays = [slice_.placed_slice for slice_ in present if slice_ not in plan.removes]
    for new_slice in plan.ready:
        assert not any(clash(new_slice, other) for other in stays)


def step(present: tuple[PresentSlice, ...], plan: Change) -> tuple[PresentSlice, ...]:
    """What the pool does at once: destroy what is free and unwanted, make what has room."""
    remaining = [slice_ for slice_ in present if slice_ not in plan.removes]
    number = max((slice_.number for slice_ in present), default=0)
    created = [
        PresentSlice(number + n, new_slice, LayoutRole.FREE)
        for n, new_slice in enumerate(plan.ready, 1)
    ]
    return (*remaining, *created)


@given(gpus(), partitions, st.randoms(use_true_random=False))
@settings(max_examples=5 * settings.default.max_examples)
def test_applying_ends_conforming(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...], dice
) -> None:  # type: ignore[no-untyped-def]
    """From any state, in whatever order leases end, the GPU comes to have its cut, and stays so."""
    states_before: list[tuple[PresentSlice, ...]] = []
    for _ in range(40):
        plan = plan_change(A100, partition, present)
        if plan.is_done:
            break
        now = step(present, plan)
        if now == present:
            present = end_one(present, dice)
        else:
            assert now not in states_before  # no going in circles
            states_before.append(present)
            present = now
    assert plan_change(A100, partition, present).is_done
    assert step(present, plan_change(A100, partition, present)) == present


def end_one(present: tuple[PresentSlice, ...], dice) -> tuple[PresentSlice, ...]:  # type: ignore[no-untyped-def]
    """One lease ends, or one slice that was on its way is there or gone."""
    ending = dice.choice([slice_ for slice_ in present if slice_.role is not LayoutRole.FREE])
    remaining = tuple(slice_ for slice_ in present if slice_ is not ending)
    arrives = {LayoutRole.COMING: LayoutRole.FREE, LayoutRole.GRANTED: LayoutRole.HELD}.get(
        ending.role
    )
    return remaining if arrives is None else (*remaining, replace(ending, role=arrives))


@given(gpus(with_fixed=True), partitions)
def test_placements_disturb_the_fewest(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...]
) -> None:
    """No other arrangement has fewer seats under a fixed slice, nor then fewer leases to drain."""
    best = arrange(A100, partition, present)

    def cost(layout: tuple[ProfilePlacement, ...]) -> tuple[int, int]:
        fixed_slices = [
            slice_.placed_slice for slice_ in present if slice_.role is LayoutRole.FIXED
        ]
        positions = {slice_key(seat) for seat in layout}
        leased = [
            slice_ for slice_ in present if slice_.role in (LayoutRole.HELD, LayoutRole.GRANTED)
        ]
        under = sum(any(clash(seat, other) for other in fixed_slices) for seat in layout)
        return under, sum(slice_.key not in positions for slice_ in leased)

    assert cost(best) == min(map(cost, arrangements(A100, partition)))


@given(gpus(), partitions, st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
@settings(max_examples=3 * settings.default.max_examples)
def test_only_its_shapes_on_its_placements(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...], profiles: list[str]
) -> None:
    """While a layout is in force nothing is granted that it would have to drain."""
    seats = arrange(A100, partition, present)
    live = tuple(slice_.placed_slice for slice_ in present if slice_.role is not LayoutRole.FREE)
    choices = place(profiles, [GpuOccupancy("a", restrict_geometry(A100, seats), live)])
    for choice in choices or ():
        assert (choice.placement.start, choice.profile.name) in set(map(slice_key, seats))
    free = [seat for seat in seats if not any(clash(seat, other) for other in live)]
    assert (choices is not None) == (not Counter(profiles) - Counter(names(tuple(free))))

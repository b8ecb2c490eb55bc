"""One GPU's cut: refused with what would fit, laid out, and what is to be done for it."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maximal_layouts import maximal_layouts

from miglab_pool.gpu.geometry import Geometry, Placed
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.layouts.rules import (
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
ALL = sorted({layout for layout in maximal_layouts(A100, NAMES)}, key=lambda one: str(one))


def subsets() -> list[tuple[Placed, ...]]:
    """Every way in which an A100 can be cut, wholly or in part."""
    found: dict[frozenset[tuple[int, str]], tuple[Placed, ...]] = {}
    for layout in ALL:
        for size in range(len(layout) + 1):
            for part in combinations(layout, size):
                found.setdefault(frozenset(map(slice_key, part)), part)
    return list(found.values())


EVERY_STATE = subsets()
PARTITIONS = sorted({tuple(sorted(item.profile.name for item in part)) for part in EVERY_STATE})
partitions = st.sampled_from(PARTITIONS)
states = st.sampled_from(EVERY_STATE)
kinds = st.sampled_from(
    (LayoutRole.FREE, LayoutRole.HELD, LayoutRole.COMING, LayoutRole.GRANTED, LayoutRole.GOING)
)


@st.composite
def gpus(draw: st.DrawFn, fixed: bool = False) -> tuple[PresentSlice, ...]:
    """A GPU in any state, each slice free, held or on its way."""
    some = st.sampled_from(list(LayoutRole)) if fixed else kinds
    return tuple(PresentSlice(n, placed, draw(some)) for n, placed in enumerate(draw(states), 1))


def names(items: tuple[Placed, ...]) -> tuple[str, ...]:
    return tuple(sorted(item.profile.name for item in items))


@pytest.mark.parametrize(
    ("geometry", "partition", "says"),
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
def test_what_would_fit(geometry: Geometry, partition: tuple[str, ...], says: str) -> None:
    """A cut that cannot be says what could."""
    with pytest.raises(PartitionError) as error:
        resolve(partition, geometry)
    assert says in str(error.value)
    assert len(str(error.value)) < 300


@given(st.lists(st.sampled_from(NAMES), max_size=8).map(lambda some: tuple(sorted(some))))
def test_possible_means_in_some_layout(partition: tuple[str, ...]) -> None:
    """A cut is possible exactly if some layout of the GPU contains it."""
    assert is_possible(partition, A100) == (partition in PARTITIONS)


@given(states, partitions)
def test_done_is_exactly_the_partition(
    part: tuple[Placed, ...], partition: tuple[str, ...]
) -> None:
    """A GPU with other slices is not done."""
    present = tuple(PresentSlice(n, placed, LayoutRole.HELD) for n, placed in enumerate(part, 1))
    assert plan_change(A100, partition, present).is_done == (names(part) == partition)


@given(gpus(fixed=True), partitions)
@settings(max_examples=5 * settings.default.max_examples)
def test_a_change_is_whole_and_interrupts_nobody(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...]
) -> None:
    """Every slice is accounted for once, no leased one is removed, what is made has room."""
    found = plan_change(A100, partition, present)
    parts = (found.keeps, found.comes, found.removes, found.drains, found.goes, found.immovable)
    assert sorted(item.number for part in parts for item in part) == [i.number for i in present]
    assert {item.role for item in found.removes} <= {LayoutRole.FREE}
    assert {item.role for item in found.immovable} <= {LayoutRole.FIXED}
    assert names(found.target) == partition
    stays = [item.placed_slice for item in present if item not in found.removes]
    for placed in found.ready:
        assert not any(clash(placed, other) for other in stays)


def step(present: tuple[PresentSlice, ...], found: Change) -> tuple[PresentSlice, ...]:
    """What the pool does at once: destroy what is free and unwanted, make what has room."""
    left = [item for item in present if item not in found.removes]
    number = max((item.number for item in present), default=0)
    made = [
        PresentSlice(number + n, placed, LayoutRole.FREE) for n, placed in enumerate(found.ready, 1)
    ]
    return (*left, *made)


@given(gpus(), partitions, st.randoms(use_true_random=False))
@settings(max_examples=5 * settings.default.max_examples)
def test_applying_ends_conforming(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...], dice
) -> None:  # type: ignore[no-untyped-def]
    """From any state, in whatever order leases end, the GPU comes to have its cut, and stays so."""
    held: list[tuple[PresentSlice, ...]] = []
    for _ in range(40):
        found = plan_change(A100, partition, present)
        if found.is_done:
            break
        now = step(present, found)
        if now == present:
            present = end_one(present, dice)
        else:
            assert now not in held  # no going in circles
            held.append(present)
            present = now
    assert plan_change(A100, partition, present).is_done
    assert step(present, plan_change(A100, partition, present)) == present


def end_one(present: tuple[PresentSlice, ...], dice) -> tuple[PresentSlice, ...]:  # type: ignore[no-untyped-def]
    """One lease ends, or one slice that was on its way is there or gone."""
    one = dice.choice([item for item in present if item.role is not LayoutRole.FREE])
    rest = tuple(item for item in present if item is not one)
    arrives = {LayoutRole.COMING: LayoutRole.FREE, LayoutRole.GRANTED: LayoutRole.HELD}.get(
        one.role
    )
    return rest if arrives is None else (*rest, replace(one, role=arrives))


@given(gpus(fixed=True), partitions)
def test_placements_disturb_the_fewest(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...]
) -> None:
    """No other arrangement has fewer seats under a fixed slice, nor then fewer leases to drain."""
    wanted = arrange(A100, partition, present)

    def cost(layout: tuple[Placed, ...]) -> tuple[int, int]:
        fixed = [item.placed_slice for item in present if item.role is LayoutRole.FIXED]
        mine = {slice_key(placed) for placed in layout}
        held = [item for item in present if item.role in (LayoutRole.HELD, LayoutRole.GRANTED)]
        under = sum(any(clash(placed, other) for other in fixed) for placed in layout)
        return under, sum(item.key not in mine for item in held)

    assert cost(wanted) == min(map(cost, arrangements(A100, partition)))


@given(gpus(), partitions, st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
@settings(max_examples=3 * settings.default.max_examples)
def test_only_its_shapes_on_its_placements(
    present: tuple[PresentSlice, ...], partition: tuple[str, ...], asked: list[str]
) -> None:
    """While a layout is in force nothing is granted that it would have to drain."""
    wanted = arrange(A100, partition, present)
    live = tuple(item.placed_slice for item in present if item.role is not LayoutRole.FREE)
    choices = place(asked, [GpuOccupancy("a", restrict_geometry(A100, wanted), live)])
    for choice in choices or ():
        assert (choice.placement.start, choice.profile.name) in set(map(slice_key, wanted))
    free = [placed for placed in wanted if not any(clash(placed, other) for other in live)]
    assert (choices is not None) == (not Counter(asked) - Counter(names(tuple(free))))

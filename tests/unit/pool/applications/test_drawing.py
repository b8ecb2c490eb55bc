"""How GPUs become boxes: no gap, and each state by its own mark."""

from itertools import accumulate

import pytest

from miglab_api.gpus import GpuView, ReservedSlot, SliceState
from miglab_api.tickets import Headcount
from miglab_pool.applications.gpu_drawing import (
    MARK_WORDS,
    BoxMark,
    LeaseActivity,
    count_idle_holders,
    draw_boxes,
    draw_last_hour,
    headline_figures,
)
from miglab_pool.http.access.principal import SPAWNER

from .fakes import ALICE, gpu_view, slice_view

NOTHING = LeaseActivity()


def reserved_slot(start: int, size: int) -> ReservedSlot:
    return ReservedSlot(reservation=1, course="vision", gpu="GPU-0", start=start, size=size)


MARKS = {
    "slices and uncut memory in order": (
        gpu_view(slice_view(2, 4, size=2), slice_view(1, 1)),
        [],
        [(1, "unpartitioned"), (1, "free"), (2, "unpartitioned"), (2, "free"),
         (2, "unpartitioned")],
    ),
    "nothing cut": (gpu_view(), [], [(8, "unpartitioned")]),
    "a whole GPU": (gpu_view(slice_view(1, 0, size=8, profile="full")), [], [(8, "free")]),
    "reserved, on a free slice and on uncut memory": (
        gpu_view(slice_view(1, 0, size=2), slice_view(2, 2, size=2)),
        [reserved_slot(2, 2), reserved_slot(5, 2)],
        [(2, "free"), (2, "reserved"), (1, "unpartitioned"), (2, "reserved"),
         (1, "unpartitioned")],
    ),
    "a GPU that is drained": (
        gpu_view(slice_view(1, 0), slice_view(2, 1, "bob"), draining="new fan"),
        [],
        [(1, "draining"), (1, "leased, then drained"), (6, "draining")],
    ),
    "a slice that is drained": (
        gpu_view(slice_view(1, 0, draining="dust"), slice_view(2, 1)),
        [],
        [(1, "draining"), (1, "free"), (6, "unpartitioned")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("view", "places", "marks"), MARKS.values(), ids=MARKS)
def test_boxes_fill_the_gpu_without_a_gap(
    view: GpuView, places: list[ReservedSlot], marks: list[tuple[int, str]]
) -> None:
    """Each begins where the one before ends."""
    gpu_boxes = draw_boxes(view, places, SPAWNER, NOTHING)
    labels = [(box.size, ", ".join(filter(None, (box.mark.value, box.note)))) for box in gpu_boxes]
    assert labels == marks
    assert [box.start for box in gpu_boxes] == [0, *accumulate(size for size, _ in marks)][:-1]


def test_who_runs_on_a_reserved_slot_runs_on() -> None:
    """A leased slice stays in use and says whose it is next, unless it is the class's own."""
    view = gpu_view(slice_view(1, 0, "bob"), slice_view(2, 1, "eva", course="vision"))
    gpu_boxes = draw_boxes(view, [reserved_slot(0, 1), reserved_slot(1, 1)], SPAWNER, NOTHING)
    assert [(box.mark, box.next_course) for box in gpu_boxes[:2]] == [
        (BoxMark.LEASED, "vision"),
        (BoxMark.LEASED, ""),
    ]


OTHERS = [(state, NOTHING, state.value) for state in SliceState if state is not SliceState.LEASED]


@pytest.mark.parametrize(
    ("state", "doings", "mark"),
    [
        *OTHERS,
        (SliceState.LEASED, NOTHING, BoxMark.LEASED),
        (SliceState.LEASED, LeaseActivity(idle={1}), BoxMark.IDLE),
        (SliceState.LEASED, LeaseActivity(idle={1}, warned={1}), BoxMark.ENDING),
    ],
)
def test_every_state_has_its_mark(state: SliceState, doings: LeaseActivity, mark: str) -> None:
    """No two states look alike, and what is told apart by colour is told apart by word."""
    assert set(MARK_WORDS) == set(BoxMark) and len(set(MARK_WORDS.values())) == len(BoxMark)
    user = "bob" if state is SliceState.LEASED else None
    (box, _) = draw_boxes(gpu_view(slice_view(1, 0, user, state=state)), [], SPAWNER, doings)
    assert box.mark == mark


def test_names_and_memory() -> None:
    """The holder as the principal may name them; how full, as far as it is known."""
    view = gpu_view(
        slice_view(1, 0, "alice", server="lab2", memory_used_mib=2432),
        slice_view(2, 1, "bob", server="lab2"),
        slice_view(3, 2, "bob").model_copy(update={"user": None}),
    )
    gpu_boxes = draw_boxes(view, [], ALICE, NOTHING)
    assert [(box.holder, box.is_own, box.address) for box in gpu_boxes[:3]] == [
        ("you", True, "slice/1"),
        ("bob (lab2)", False, ""),
        ("somebody", False, ""),
    ]
    assert (gpu_boxes[0].used_pct, gpu_boxes[0].memory) == (50, "2.4 of 4.8 GiB")
    assert (gpu_boxes[1].used_pct, gpu_boxes[1].memory) == (None, "? of 4.8 GiB")


def test_sums() -> None:
    """People are counted; what somebody does is shown to, and counted for, who sees the name."""
    unseen = slice_view(3, 2, "eva").model_copy(update={"user": None})
    view = gpu_view(slice_view(1, 0, "bob"), slice_view(2, 1, "bob"), unseen)
    assert LeaseActivity({1, 3, 9}, {3}).on(view) == LeaseActivity({1}, frozenset())
    people = Headcount(shape="1g.5gb", free=3, total=7, holding=2, waiting=5)
    assert headline_figures(people, count_idle_holders([view], {1, 2, 3})) == [
        ("3 of 7", "free (1g.5gb)"),
        ("2", "hold"),
        ("1", "of them idle"),
        ("5", "wait"),
    ]


def test_the_last_hour_is_a_strip() -> None:
    """A column a minute, as high as the most that ever was; what is older is gone."""
    looks = [
        (0.0, Headcount(total=10, holding=9)),
        (60.0, Headcount(total=10, holding=2)),
        (3600.0, Headcount(total=10, holding=10, waiting=10)),
    ]
    assert draw_last_hour(looks[:1], 30.0) is None
    last_hour = draw_last_hour(looks, 3659.0)
    assert last_hour is not None
    assert [(column.minute, column.holding, column.waiting) for column in last_hour.columns] == [
        (1, 10.0, 0.0), (60, 50.0, 50.0)
    ]  # fmt: skip
    assert last_hour.caption == (
        "In the last 59 minutes, 2 to 10 people held slices (lower bars) and 0 to 10 waited."
    )
    assert draw_last_hour(looks, 3659.5) == last_hour


def test_the_strip_is_drawn_by_the_minute() -> None:
    """It changes with a look and with the clock's minute alone."""
    looks = [(at, Headcount(total=10, holding=n)) for n, at in ((9, 0.5), (2, 60.5), (3, 120.5))]
    early, late, later = 3600.1, 3659.9, 3660.1
    assert (
        draw_last_hour(looks, early) == draw_last_hour(looks, late) != draw_last_hour(looks, later)
    )
    assert draw_last_hour([*looks, (late, Headcount(total=10, holding=3))], late) != draw_last_hour(
        looks, late
    )

"""The drawings of the pool: GPUs as runs of memory slices, and the last hour as bars.  Pure.

Views come in and drawings go out; what the principal may not see is removed from the views before.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from miglab_api.gpus import GpuView, ReservedSlot, SliceState, SliceView
from miglab_api.tickets import Headcount
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.pages.frame import memory_amount


class BoxMark(StrEnum):
    """The state of a run of memory slices: `MARK_WORDS` has its label, and it picks the pattern."""

    FREE = "free"
    LEASED = "leased"
    IDLE = "idle"
    ENDING = "ending"
    MAKING = "making"
    SCRUBBING = "scrubbing"
    DRAINING = "draining"
    RESERVED = "reserved"
    QUARANTINED = "quarantined"
    FOREIGN = "foreign"
    UNPARTITIONED = "unpartitioned"


MARK_WORDS = {
    BoxMark.FREE: "free",
    BoxMark.LEASED: "in use",
    BoxMark.IDLE: "idle",
    BoxMark.ENDING: "warned",
    BoxMark.MAKING: "being created",
    BoxMark.SCRUBBING: "being destroyed",
    BoxMark.DRAINING: "draining",
    BoxMark.RESERVED: "reserved",
    BoxMark.QUARANTINED: "quarantined",
    BoxMark.FOREIGN: "foreign",
    BoxMark.UNPARTITIONED: "no slice",
}
"""The label of each mark, in the order of the legend."""


class LeaseActivity(NamedTuple):
    """Which leases are idle or warned, by their numbers.

    Attributes:
        idle: the leases that are idle, as the reclaimer judges them.
        warned: the leases whose holder is warned that the slice is reclaimed.
    """

    idle: Collection[int] = frozenset()
    warned: Collection[int] = frozenset()

    def on(self, gpu: GpuView) -> "LeaseActivity":
        """Return the activity on slices of one GPU whose holder the viewer sees."""
        visible_leases = {item.lease for item in gpu.slices if item.lease and item.user is not None}
        return LeaseActivity(
            frozenset(visible_leases & set(self.idle)), frozenset(visible_leases & set(self.warned))
        )


@dataclass(frozen=True, slots=True)
class Box:
    """A run of memory slices as the page draws it.

    Attributes:
        start: first memory slice.
        size: memory slices.
        profile: the profile, or what is there instead of a slice.
        note: what comes next, or the reason of the state; empty for none.
        next_course: the course that has reserved it next; empty for none.
        holder: the holder, as the principal may name it.
        guaranteed_until: until when its lease is guaranteed; None for no lease.
        used_pct: how full the slice's memory is; None if unknown.
        memory: the memory in use, in words.
        activity: how busy it was lately, in words; empty if the hardware does not tell.
        address: the address of its details; empty if the principal may not open them.
        is_own: whether the principal holds it.
    """

    start: int
    size: int
    mark: BoxMark
    profile: str
    note: str = ""
    next_course: str = ""
    holder: str = ""
    course: str = ""
    guaranteed_until: float | None = None
    used_pct: int | None = None
    memory: str = ""
    activity: str = ""
    address: str = ""
    is_own: bool = False

    @property
    def word(self) -> str:
        """The label of its state."""
        return MARK_WORDS[self.mark]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A GPU as the page draws it.

    Attributes:
        opens: the label of the button that opens its details; empty for none.
    """

    gpu: GpuView
    boxes: tuple[Box, ...]
    opens: str


def draw_gpu(
    gpu: GpuView,
    reserved: Sequence[ReservedSlot],
    lease_activity: LeaseActivity,
    principal: Principal,
) -> Drawing:
    """Draw a GPU, with what is reserved on it."""
    opens = "Manage" if principal.may(Right.DRAIN, gpu.course) else "Details"
    drawn_boxes = tuple(draw_boxes(gpu, reserved, principal, lease_activity))
    return Drawing(gpu, drawn_boxes, opens if principal.is_staff else "")


def reserved_slots_on(gpu: GpuView, reserved: Sequence[ReservedSlot]) -> list[ReservedSlot]:
    """Return the reserved slots of a GPU, lowest start first."""
    return sorted((slot for slot in reserved if slot.gpu == gpu.uuid), key=lambda slot: slot.start)


def headline_figures(people: Headcount, idle: int) -> list[tuple[str, str]]:
    """Return the figures above the drawing with their labels; ``idle``: how many holders idle."""
    free = [(f"{people.free} of {people.total}", f"free ({people.shape})")] if people.shape else []
    doing = [(f"{idle}", "of them idle")] if idle else []
    return [*free, (f"{people.holding}", "hold"), *doing, (f"{people.waiting}", "wait")]


def count_idle_holders(gpus: Iterable[GpuView], idle: Collection[int]) -> int:
    """Return how many of the holders that the viewer sees hold an idle slice."""
    held_slices = (slice_ for gpu in gpus for slice_ in gpu.slices if slice_.user)
    return len({slice_.user for slice_ in held_slices if slice_.lease in idle})


def draw_boxes(
    gpu: GpuView,
    reserved: Sequence[ReservedSlot],
    principal: Principal,
    lease_activity: LeaseActivity,
) -> list[Box]:
    """Draw the boxes of a GPU from its first memory slice to its last, without a gap."""
    drawn_boxes: list[Box] = []
    position = 0
    for slice_ in sorted(gpu.slices, key=lambda slice_: slice_.start):
        if slice_.start > position:
            drawn_boxes += _unpartitioned(position, slice_.start, gpu, reserved)
        drawn_boxes.append(_box(slice_, gpu, reserved, principal, lease_activity))
        position = slice_.start + slice_.size
    if position < gpu.memory_slices:
        drawn_boxes += _unpartitioned(position, gpu.memory_slices, gpu, reserved)
    return drawn_boxes


def _unpartitioned(
    start: int, end: int, gpu: GpuView, reserved: Sequence[ReservedSlot]
) -> Iterator[Box]:
    """Yield the boxes of unpartitioned memory, in runs that are reserved or not."""
    if gpu.draining:
        yield Box(start, end - start, BoxMark.DRAINING, "–")
        return
    position = start
    for slot in reserved:
        first, last = max(position, slot.start), min(end, slot.start + slot.size)
        if first >= last:
            continue
        if first > position:
            yield Box(position, first - position, BoxMark.UNPARTITIONED, "–")
        yield Box(first, last - first, BoxMark.RESERVED, "not created yet", course=slot.course)
        position = last
    if position < end:
        yield Box(position, end - position, BoxMark.UNPARTITIONED, "–")


def _box(
    slice_: SliceView,
    gpu: GpuView,
    reserved: Sequence[ReservedSlot],
    principal: Principal,
    lease_activity: LeaseActivity,
) -> Box:
    slot = _slot_at(slice_, reserved)
    box = Box(
        slice_.start,
        slice_.size,
        _mark(slice_, gpu, slot, lease_activity),
        "whole GPU" if slice_.profile == "full" else slice_.profile,
        used_pct=_used_pct(slice_),
        memory=memory_amount(slice_.memory_used_mib, slice_.memory_mib),
        activity="" if slice_.activity_pct is None else f"{round(slice_.activity_pct)} % busy",
        address=_address(slice_, principal),
    )
    if slice_.lease is None:
        is_reserved = box.mark is BoxMark.RESERVED and slot is not None
        return replace(box, note=slice_.reason, course=slot.course if is_reserved and slot else "")
    is_drained = gpu.draining or slice_.draining
    return replace(
        box,
        note="then drained" if is_drained else "",
        next_course=slot.course if slot and slot.course != slice_.course and not is_drained else "",
        holder=holder_label(slice_, principal),
        course=slice_.course or "",
        guaranteed_until=slice_.guaranteed_until,
        is_own=principal.is_user(slice_.user),
    )


def _slot_at(slice_: SliceView, reserved: Sequence[ReservedSlot]) -> ReservedSlot | None:
    """Return the reserved slot that a slice overlaps, if any."""
    ahead = (slot for slot in reserved if slice_.start < slot.start + slot.size)
    return next((slot for slot in ahead if slot.start < slice_.start + slice_.size), None)


_MARK_OF_STATE = {
    SliceState.MAKING: BoxMark.MAKING,
    SliceState.SCRUBBING: BoxMark.SCRUBBING,
    SliceState.QUARANTINED: BoxMark.QUARANTINED,
    SliceState.FOREIGN: BoxMark.FOREIGN,
}


def _mark(
    slice_: SliceView, gpu: GpuView, slot: ReservedSlot | None, lease_activity: LeaseActivity
) -> BoxMark:
    if slice_.state in _MARK_OF_STATE:
        return _MARK_OF_STATE[slice_.state]
    if slice_.state is SliceState.FREE and (gpu.draining or slice_.draining):
        return BoxMark.DRAINING
    if slice_.state is SliceState.FREE:
        return BoxMark.RESERVED if slot else BoxMark.FREE
    if slice_.lease in lease_activity.warned:
        return BoxMark.ENDING
    return BoxMark.IDLE if slice_.lease in lease_activity.idle else BoxMark.LEASED


def holder_label(slice_: SliceView, principal: Principal) -> str:
    """Return the holder of a slice, as the principal may name them."""
    if principal.is_user(slice_.user):
        return "you"
    if slice_.user is None:
        return "somebody"
    return f"{slice_.user} ({slice_.server})" if slice_.server else slice_.user


def _address(slice_: SliceView, principal: Principal) -> str:
    return (
        f"slice/{slice_.slice_id}" if principal.is_staff or principal.is_user(slice_.user) else ""
    )


def _used_pct(slice_: SliceView) -> int | None:
    if slice_.memory_used_mib is None or not slice_.memory_mib:
        return None
    return min(100, round(100 * slice_.memory_used_mib / slice_.memory_mib))


# -- the last hour --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """How full the pool was in one minute, as a bar in a drawing of height 100.

    Attributes:
        minute: the horizontal position, from 1 for an hour ago to 60.
        holding: the height of the part for people who hold slices.
        waiting: the height of the part above it, for people who wait.
    """

    minute: int
    holding: float
    waiting: float


@dataclass(frozen=True, slots=True)
class HourDrawing:
    """The bars of the last hour; ``caption``: the same in a sentence."""

    columns: tuple[Column, ...]
    caption: str


def draw_last_hour(looks: Iterable[tuple[float, Headcount]], now: float) -> HourDrawing | None:
    """Draw the headcounts of the last hour, each with its moment; None for fewer than two."""
    ages = [(_age_minutes(at, now), people) for at, people in looks]
    recent = [(age, people) for age, people in ages if 0 <= age < 60]
    if len(recent) < 2:
        return None
    highest = max(max(people.total, people.holding + people.waiting) for _, people in recent) or 1
    columns = tuple(
        Column(60 - age, 100 * people.holding / highest, 100 * people.waiting / highest)
        for age, people in recent
    )
    holding_range = _range_text([people.holding for _, people in recent])
    waiting_range = _range_text([people.waiting for _, people in recent])
    sentence = f"{holding_range} people held slices (lower bars) and {waiting_range} waited."
    return HourDrawing(columns, f"In the last {recent[0][0]} minutes, {sentence}")


def _age_minutes(since: float, now: float) -> int:
    """Return the age in whole minutes of the clock, so that a drawing lasts for a minute."""
    return int(now // 60 - since // 60)


def _range_text(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"

"""How the pool is drawn: GPUs as runs of memory slices, and the last hour as a strip.  Pure.

Views in, drawings out; what the principal may not see is gone from the views before they come here.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from miglab_api.gpus import GpuView, ReservedSlot, SliceState, SliceView
from miglab_api.tickets import Headcount
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.pages.frame import amount


class BoxMark(StrEnum):
    """What a run of memory slices is: `WORDS` is what is read, the name picks the pattern."""

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


WORDS = {
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
"""The word that is drawn; the legend's order."""


class Doings(NamedTuple):
    """What is known of leases beside the snapshot, by their ids.

    Attributes:
        idle: those that do nothing, as the reclaimer sees it.
        warned: those whose holder was told that the slice is reclaimed.
    """

    idle: Collection[int] = frozenset()
    warned: Collection[int] = frozenset()

    def on(self, gpu: GpuView) -> "Doings":
        """What of it is about slices of one GPU whose holder the viewer sees."""
        seen = {item.lease for item in gpu.slices if item.lease and item.user is not None}
        return Doings(frozenset(seen & set(self.idle)), frozenset(seen & set(self.warned)))


@dataclass(frozen=True, slots=True)
class Box:
    """A run of memory slices as the page draws it.

    Attributes:
        start: first memory slice.
        size: memory slices.
        what: the profile.
        note: what is to come, or why; empty for nothing.
        next_course: whose it is afterwards, by a reservation; empty for nobody's.
        who: the holder, as the principal may name it.
        guaranteed_until: until when its lease is guaranteed; None for no lease.
        used_pct: how full the slice's memory is; None if unknown.
        memory: the same in words.
        activity: how busy it was lately, in words; empty where the hardware does not tell.
        address: of what can be done to it; empty for nothing.
        is_own: whether the principal holds it.
    """

    start: int
    size: int
    mark: BoxMark
    what: str
    note: str = ""
    next_course: str = ""
    who: str = ""
    course: str = ""
    guaranteed_until: float | None = None
    used_pct: int | None = None
    memory: str = ""
    activity: str = ""
    address: str = ""
    is_own: bool = False

    @property
    def word(self) -> str:
        """Its state in words."""
        return WORDS[self.mark]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A GPU as the page draws it.

    Attributes:
        opens: what the button is called to what is known of it, or can be done; empty for none.
    """

    gpu: GpuView
    boxes: tuple[Box, ...]
    opens: str


def draw(
    gpu: GpuView, reserved: Sequence[ReservedSlot], doings: Doings, principal: Principal
) -> Drawing:
    """One GPU, with what is reserved on it."""
    opens = "Manage" if principal.may(Right.DRAIN, gpu.course) else "Details"
    drawn = tuple(boxes(gpu, reserved, principal, doings))
    return Drawing(gpu, drawn, opens if principal.is_staff else "")


def reserved_on(gpu: GpuView, reserved: Sequence[ReservedSlot]) -> list[ReservedSlot]:
    """The reserved slots of one GPU, in order."""
    return sorted((one for one in reserved if one.gpu == gpu.uuid), key=lambda one: one.start)


def sums(people: Headcount, idle: int) -> list[tuple[str, str]]:
    """The figures above the drawing: how many, and what; ``idle``: of those who hold a slice."""
    free = [(f"{people.free} of {people.total}", f"free ({people.shape})")] if people.shape else []
    doing = [(f"{idle}", "of them idle")] if idle else []
    return [*free, (f"{people.holding}", "hold"), *doing, (f"{people.waiting}", "wait")]


def idle_people(gpus: Iterable[GpuView], idle: Collection[int]) -> int:
    """How many hold an idle slice, of those whom the viewer sees."""
    held = (item for gpu in gpus for item in gpu.slices if item.user)
    return len({item.user for item in held if item.lease in idle})


def boxes(
    gpu: GpuView, reserved: Sequence[ReservedSlot], principal: Principal, doings: Doings
) -> list[Box]:
    """The GPU from its first memory slice to its last, without a gap."""
    drawn: list[Box] = []
    position = 0
    for item in sorted(gpu.slices, key=lambda item: item.start):
        if item.start > position:
            drawn += _unpartitioned(position, item.start, gpu, reserved)
        drawn.append(_box(item, gpu, reserved, principal, doings))
        position = item.start + item.size
    if position < gpu.memory_slices:
        drawn += _unpartitioned(position, gpu.memory_slices, gpu, reserved)
    return drawn


def _unpartitioned(
    start: int, end: int, gpu: GpuView, reserved: Sequence[ReservedSlot]
) -> Iterator[Box]:
    """Memory that is not cut, in runs that are reserved or not."""
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
    item: SliceView,
    gpu: GpuView,
    reserved: Sequence[ReservedSlot],
    principal: Principal,
    doings: Doings,
) -> Box:
    slot = _slot_at(item, reserved)
    drawn = Box(
        item.start,
        item.size,
        _mark(item, gpu, slot, doings),
        "whole GPU" if item.profile == "full" else item.profile,
        used_pct=_used_pct(item),
        memory=amount(item.memory_used_mib, item.memory_mib),
        activity="" if item.activity_pct is None else f"{round(item.activity_pct)} % busy",
        address=_address(item, principal),
    )
    if item.lease is None:
        is_reserved = drawn.mark is BoxMark.RESERVED and slot is not None
        return replace(drawn, note=item.reason, course=slot.course if is_reserved and slot else "")
    is_drained = gpu.draining or item.draining
    return replace(
        drawn,
        note="then drained" if is_drained else "",
        next_course=slot.course if slot and slot.course != item.course and not is_drained else "",
        who=holder(item, principal),
        course=item.course or "",
        guaranteed_until=item.guaranteed_until,
        is_own=principal.is_user(item.user),
    )


def _slot_at(item: SliceView, reserved: Sequence[ReservedSlot]) -> ReservedSlot | None:
    """The reserved slot that a slice lies on, at least in part."""
    ahead = (one for one in reserved if item.start < one.start + one.size)
    return next((one for one in ahead if one.start < item.start + item.size), None)


_AS_IT_IS = {
    SliceState.MAKING: BoxMark.MAKING,
    SliceState.SCRUBBING: BoxMark.SCRUBBING,
    SliceState.QUARANTINED: BoxMark.QUARANTINED,
    SliceState.FOREIGN: BoxMark.FOREIGN,
}


def _mark(item: SliceView, gpu: GpuView, slot: ReservedSlot | None, doings: Doings) -> BoxMark:
    if item.state in _AS_IT_IS:
        return _AS_IT_IS[item.state]
    if item.state is SliceState.FREE and (gpu.draining or item.draining):
        return BoxMark.DRAINING
    if item.state is SliceState.FREE:
        return BoxMark.RESERVED if slot else BoxMark.FREE
    if item.lease in doings.warned:
        return BoxMark.ENDING
    return BoxMark.IDLE if item.lease in doings.idle else BoxMark.LEASED


def holder(item: SliceView, principal: Principal) -> str:
    """Who holds a slice, as the principal may name them."""
    if principal.is_user(item.user):
        return "you"
    if item.user is None:
        return "somebody"
    return f"{item.user} ({item.server})" if item.server else item.user


def _address(item: SliceView, principal: Principal) -> str:
    return f"slice/{item.slice_id}" if principal.is_staff or principal.is_user(item.user) else ""


def _used_pct(item: SliceView) -> int | None:
    if item.memory_used_mib is None or not item.memory_mib:
        return None
    return min(100, round(100 * item.memory_used_mib / item.memory_mib))


# -- the last hour --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One look at how full the pool was, as a strip of height 100 shows it.

    Attributes:
        minute: how far right, from 1 for an hour ago to 60.
        holding: how high the part is that holds slices.
        waiting: how high the part above it is that waits.
    """

    minute: int
    holding: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Strip:
    """The last hour; ``words``: the same in a sentence."""

    columns: tuple[Column, ...]
    words: str


def strip(looks: Iterable[tuple[float, Headcount]], now: float) -> Strip | None:
    """What is drawn of these looks, each with its moment; None before the second look."""
    ages = [(_minutes(at, now), one) for at, one in looks]
    seen = [(age, one) for age, one in ages if 0 <= age < 60]
    if len(seen) < 2:
        return None
    most = max(max(one.total, one.holding + one.waiting) for _, one in seen) or 1
    columns = tuple(
        Column(60 - age, 100 * one.holding / most, 100 * one.waiting / most) for age, one in seen
    )
    held = _span([one.holding for _, one in seen])
    waited = _span([one.waiting for _, one in seen])
    who = f"{held} people held slices (lower bars) and {waited} waited."
    return Strip(columns, f"In the last {seen[0][0]} minutes, {who}")


def _minutes(since: float, now: float) -> int:
    """By the clock's minutes: the strip stays as it is until the next one."""
    return int(now // 60 - since // 60)


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"

"""Reservations ahead: when slots are reserved, and which leases would block them.  Reads only.

A lease *blocks* what is reserved at a moment if more of it finds a slot when the lease is over by
then.  Whose end, as it is set, lies behind the moment is reckoned to stay.  GPUs are looked at as
their layouts cut them.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from miglab_api.leases import LeaseState
from miglab_api.wording import clock_time
from miglab_pool.gpu.geometry import Placed
from miglab_pool.gpu.shapes import profiles
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations import rules
from miglab_pool.reservations.rules import InForce, Key, in_words, reserved_until, schedule_of
from miglab_pool.schedule import Occurrence, occurrences
from miglab_pool.state.placement import SOON, Slot
from miglab_pool.state.slot_choice import SlotCandidate, SlotRequest, choose_slots_for
from miglab_pool.state.view import GpuSnapshot, PoolView, once

SlicesByGpu = dict[str, tuple[int, ...]]  # by number
Candidates = dict[str, SlotCandidate]  # by GPU


@dataclass(frozen=True)
class ReservedTime:
    """A time at which a reservation has its slots.

    Attributes:
        time: when the class takes place.
        begins: the lead before its start.
        ends: the end of its grace.
    """

    row: ReservationRow
    time: Occurrence
    begins: float
    ends: float


def reserved_times(view: PoolView, since: float, until: float) -> list[ReservedTime]:
    """When slots are reserved between two moments, the first in front."""
    lead_s = view.settings.pool.reserve_lead_s
    found = [
        ReservedTime(row, time, time.starts_at - lead_s, reserved_until(row, time))
        for row in view.reservations.values()
        for time in occurrences(schedule_of(row), since, until + lead_s)
    ]
    times = [one for one in found if one.begins < until and since < one.ends]
    return sorted(times, key=lambda one: (one.begins, one.row.id))


def stays_until(view: PoolView, lease: LeaseRow) -> float:
    """Until when a lease is reckoned to stay: its guarantee's end."""
    return SOON if lease.state == LeaseState.RELEASING else lease.guaranteed_until


def staying(view: PoolView, at: float) -> list[LeaseRow]:
    """The leases whose end, as it is set, lies behind a moment."""
    return [lease for lease in view.leases.values() if stays_until(view, lease) > at]


# -- what blocks -----------------------------------------------------------------------------------


def check_end(view: PoolView, lease: LeaseRow, ends_at: float) -> None:
    """Refuse a later end of a lease that would block what is reserved.

    Raises:
        Refused: ``no-extension``, with what is reserved and until when it may be extended.
    """
    time = first_blocked(view, lease, ends_at)
    if time is not None:
        raise Refused("no-extension", _why_blocked(view, lease, time))


def first_blocked(view: PoolView, lease: LeaseRow, ends_at: float) -> ReservedTime | None:
    """The first time that a lease would block if it ended so late, and does not now."""
    return Outlook(view, ends_at).first_blocked(lease, ends_at)


class Outlook:
    """The time ahead, for all who ask while nothing changes: what they share is worked out once.

    Args:
        view: the pool.
        until: how far to look, seconds since the epoch.
    """

    def __init__(self, view: PoolView, until: float) -> None:
        self.until = until
        self._view = view
        self._times = reserved_times(view, view.at, until)
        held = (one for one in view.leases.values() if one.state != LeaseState.RELEASING)
        self._leases = [(stays_until(view, lease), lease) for lease in held]
        self._moments: dict[float, _Moment] = {}

    def first_blocked(self, lease: LeaseRow, ends_at: float) -> ReservedTime | None:
        """As the function of that name; ``ends_at`` is not beyond ``until``."""
        since = max(self._view.at, lease.guaranteed_until)
        for time in self._times:
            is_in_time = time.begins < ends_at and since < time.ends
            at = max(since, time.begins)
            if is_in_time and self._without(lease, at).is_worse_with(lease):
                return time
        return None

    def _without(self, lease: LeaseRow, at: float) -> "_Moment":
        """A moment without a lease: one for all the leases that do not stay till then anyway."""
        stays = [one for until, one in self._leases if until > at]
        if any(one.id == lease.id for one in stays):
            return _Moment(self._view, at, [one for one in stays if one.id != lease.id])
        if at not in self._moments:
            self._moments[at] = _Moment(self._view, at, stays)
        return self._moments[at]


class _Moment:
    """What is reserved at a moment if these leases stay, and how much of it finds no slot."""

    def __init__(self, view: PoolView, at: float, stays: Sequence[LeaseRow]) -> None:
        self._view, self._at, self._stays = view, at, stays
        self._found = _undrawn(view, at)
        self._drawn = rules.drawn(stays)
        self._reserved = _reserved(self._found, self._drawn)
        self._slices = _by_gpu(view, stays)
        self._candidates = _candidates(view, self._slices, {}) if self._found else {}
        self._slots = _slots(self._reserved, self._candidates)
        self._missing = _missing(view, self._reserved, self._slots, stays)

    def is_worse_with(self, lease: LeaseRow) -> bool:
        """Whether more finds no slot if one more lease stays."""
        reserved = _reserved(self._found, self._drawn + rules.drawn([lease]))
        if not reserved:
            return False
        candidates = self._candidates_with(lease)
        if reserved == self._reserved and self._is_beside(lease, candidates):
            return False
        slots = _slots(reserved, candidates)
        return _missing(self._view, reserved, slots, [*self._stays, lease]) > self._missing

    def _candidates_with(self, lease: LeaseRow) -> Candidates:
        """The GPUs with one more lease that stays; a layout may be cut otherwise around it."""
        more = _by_gpu(self._view, [lease])
        slices = self._slices | {
            gpu: (*self._slices.get(gpu, ()), *numbers) for gpu, numbers in more.items()
        }
        return self._candidates | _candidates(self._view, slices, {}, more)

    def _is_beside(self, lease: LeaseRow, candidates: Candidates) -> bool:
        """Whether every slot is found and chosen again though the lease stays: it lies on none.

        Args:
            lease: which.
            candidates: the GPUs with it.
        """
        if self._missing or lease.shape == FULL:
            return False
        if any(one.occupancy.course for one in candidates.values()):
            return False
        changed = {gpu: now for gpu, now in candidates.items() if now is not self._candidates[gpu]}
        if any(
            now.occupancy.geometry != self._candidates[gpu].occupancy.geometry
            for gpu, now in changed.items()
        ):
            return False
        closed = {gpu: now.fixed_bits for gpu, now in changed.items()}
        return not any(closed.get(slot.gpu, 0) & slot.placed.bits for slot in self._slots)


def _why_blocked(view: PoolView, lease: LeaseRow, time: ReservedTime) -> str:
    row = time.row
    left_s = time.begins - max(view.at, lease.guaranteed_until)
    clock = clock_time(time.begins, row.tz)
    reserved = (
        f"Its slices are reserved from {clock} on for reservation {row.id} ({in_words(row)}). "
    )
    if left_s < 60:
        return f"{reserved}So it cannot be extended: save your work in time."
    return f"{reserved}It may be extended until then, by {int(left_s // 60)} minutes: ask for less."


def on_slots(
    view: PoolView,
    at: float,
    reserving: Sequence[InForce],
    stays: Sequence[LeaseRow],
    go: Sequence[LeaseRow],
) -> list[LeaseRow]:
    """Which leases lie on the slots that would be reserved, these chosen so that few do.

    Args:
        view: the pool.
        at: when.
        reserving: what slots are reserved for.
        stays: the leases that stay whatever comes.
        go: those that may go.
    """
    candidates = _candidates(view, _by_gpu(view, stays), _by_gpu(view, go))
    slots = _slots(reserving, candidates)
    full = [lease for lease in go if lease.shape == FULL]
    too_few = _missing_whole(view, reserving, [*stays, *full])
    return [*full[:too_few], *(lease for lease in go if _lies_on(view, lease, slots))]


def reserving(view: PoolView, at: float, stays: Sequence[LeaseRow]) -> list[InForce]:
    """The reservations that have slots at a moment if these leases live then."""
    return _reserved(_undrawn(view, at), rules.drawn(stays))


def _undrawn(view: PoolView, at: float) -> list[InForce]:
    rows, lead_s = view.reservations.values(), view.settings.pool.reserve_lead_s
    return rules.undrawn(rows, at, lead_s)


def _reserved(found: Sequence[InForce], drawn: Mapping[Key, int]) -> list[InForce]:
    return [one for one in rules.less_drawn(found, drawn) if one.is_reserved and one.left]


def _slots(reserved: Sequence[InForce], candidates: Candidates) -> tuple[Slot, ...]:
    requests = [
        SlotRequest(one.row.course, profiles(one.row.shape))
        for one in reserved
        if one.row.shape != FULL
        for _ in range(one.left)
    ]
    return (
        tuple(chain.from_iterable(choose_slots_for(requests, [*candidates.values()]).values()))
        if requests
        else ()
    )


def _missing(
    view: PoolView, reserved: Sequence[InForce], slots: Sequence[Slot], stays: Sequence[LeaseRow]
) -> int:
    """How many slices of what is reserved find no slot beside these leases."""
    sliced = (one for one in reserved if one.row.shape != FULL)
    wanted = sum(one.left * len(profiles(one.row.shape)) for one in sliced)
    return wanted - len(slots) + _missing_whole(view, reserved, stays)


def _candidates(
    view: PoolView,
    stays: SlicesByGpu,
    go: SlicesByGpu,
    gpus: Collection[str] | None = None,
) -> Candidates:
    """The GPUs, or these, when all leases are over but these, as they are to be cut then."""
    return {
        uuid: _candidate(gpu, stays.get(uuid, ()), go.get(uuid, ()))
        for uuid, gpu in view.gpus.items()
        if gpu.occupancy and (gpus is None or uuid in gpus)
    }


@once
def _candidate(gpu: GpuSnapshot, stays: tuple[int, ...], go: tuple[int, ...]) -> SlotCandidate:
    """One GPU, as its layout cuts it around these slices; cached with the GPU, for every moment."""
    assert gpu.occupancy is not None
    then = gpu.facts.then({*stays, *go})
    assert then.geometry is not None
    fixed, leased = _placed(gpu, stays), _placed(gpu, go)
    all_fixed = (*gpu.occupancy.fixed, *fixed)
    occupancy = replace(gpu.occupancy, geometry=then.geometry, fixed=all_fixed)
    return SlotCandidate(occupancy, leased)


def _placed(gpu: GpuSnapshot, numbers: Collection[int]) -> tuple[Placed, ...]:
    """Where slices lie, whole GPUs left out."""
    rows = (row for row in gpu.slices if row.id in numbers and row.profile != FULL)
    return tuple(gpu.facts.placed(row) for row in rows)


def _by_gpu(view: PoolView, leases: Iterable[LeaseRow]) -> SlicesByGpu:
    """The slices of leases, by number."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for lease in leases:
        for number in lease.slices:
            if number in view.slices:
                found[view.slices[number].gpu].append(number)
    return {gpu: tuple(numbers) for gpu, numbers in found.items()}


def _missing_whole(view: PoolView, reserved: Iterable[InForce], stays: Sequence[LeaseRow]) -> int:
    """How many whole GPUs of what is reserved are not there: free, and open to who has reserved."""
    full = [one for one in reserved if one.row.shape == FULL]
    if not full:
        return 0
    wanted = Counter(course for one in full for course in [one.row.course] * one.left)
    held = {row.gpu for lease in stays for row in view.slices_of(lease)}
    free = Counter(
        gpu.course for gpu in view.gpus.values() if gpu.is_whole and gpu.uuid not in held
    )
    left = wanted - free  # of each course's own
    return max(0, left.total() - free[""])


def _lies_on(view: PoolView, lease: LeaseRow, slots: Collection[Slot]) -> bool:
    rows = [row for row in view.slices_of(lease) if row.profile != FULL]
    return any(
        row.gpu == slot.gpu and view.placed(row).placement.mask & slot.placed.placement.mask
        for row in rows
        for slot in slots
    )

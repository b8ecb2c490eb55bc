"""What is promised at a moment, and whether it can be had: one rule for all who ask.

`feasible` places each lease of the reservations that take place at a moment on the usable GPUs,
beside the leases that are guaranteed beyond it.  Reservations are accepted by it, grants and
extensions are bounded by it, and pages say by it how much of a reservation is certain.

An open lease takes no place: it ends when a reservation needs its slices.  A lease of the reserved
shape that is guaranteed beyond the moment, of a member of the course, draws on the reservation: one
person, one claim.  Which slots a reservation gets is decided at its lead, in `slots`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from miglab_api.leases import LeaseState
from miglab_api.wording import day_and_time
from miglab_pool.gpu.geometry import Placed
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, ReservationRow
from miglab_pool.reservations import rules
from miglab_pool.reservations.rules import (
    InForce,
    Key,
    in_words,
    reserved_until,
    schedule_of,
)
from miglab_pool.schedule import DAY_S, Occurrence, next_occurrence, occurrences
from miglab_pool.state.placement import GpuOccupancy, Slot
from miglab_pool.state.slot_choice import SlotCandidate, SlotRequest, choose_slots_for
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

WEEK_S = 7 * DAY_S


class Guarantee(NamedTuple):
    """A lease as if it were guaranteed beyond a moment: whose it is, and what it takes.

    Attributes:
        user: who holds it.
        key: its course and shape.
        slices: the GPU and the place of each of its slices; no place: all of the GPU.
    """

    user: str
    key: Key
    slices: tuple[tuple[str, Placed | None], ...]


@dataclass(frozen=True)
class Feasible:
    """What can be had at a moment.

    Attributes:
        held: how many leases of each reservation have a place, those drawn on it among them.
        slots: where the rest of them could lie; each with its reservation.
    """

    held: Mapping[int, int] = field(default_factory=dict)
    slots: tuple[tuple[int, Slot], ...] = ()

    def lies_on(self, one: Guarantee) -> bool:
        """Whether a lease takes any of the slots."""
        return any(
            gpu == slot.gpu and placed is not None and placed.bits & slot.placed_slice.bits
            for gpu, placed in one.slices
            for _, slot in self.slots
        )


@cached_on_instance
def feasible(
    view: PoolView,
    moment: float,
    more: Guarantee | None = None,
    rows: tuple[ReservationRow, ...] | None = None,
    gpus: tuple[GpuSnapshot, ...] | None = None,
) -> Feasible:
    """What of all reservations of a moment finds a place beside what is guaranteed beyond it.

    Args:
        view: the pool.
        moment: seconds since the epoch.
        more: one more lease that is guaranteed beyond it.
        rows: the reservations; None: the pool's.
        gpus: the GPUs; None: as they are.

    Returns:
        All of them if a placement exists; else those made first keep theirs, and each later one has
        as many as fit beside these.
    """
    found = taking_place(view, moment, more, rows)
    if not found:
        return Feasible()
    clear_s = view.settings.pool.clear_s
    there = tuple(view.gpus.values()) if gpus is None else gpus
    cut = [_with(_candidate(gpu, moment, clear_s), more) for gpu in there if gpu.geometry]
    is_whole = any(one.row.shape == FULL for one in found)
    return placed(found, cut, _whole(there, moment, clear_s, more) if is_whole else {})


def room_beside(view: PoolView, course: str, shape: str, others: Sequence[InForce]) -> int:
    """How many leases of a shape a course could have beside these if nothing else lies anywhere."""
    most = sum(gpu.hardware.memory_slices if gpu.hardware else 1 for gpu in view.gpus.values())
    last = max((one.row.id for one in others), default=0) + 1  # made after all of them
    row = ReservationRow(last, course, shape, most, 0, "", "", "", "", "", 0.0, "", 0.0, "")
    time = Occurrence(0.0, 0.0)
    return bare(view, [*others, InForce(row, time, False, True, most)]).held[last]


def bare(view: PoolView, wanted: Sequence[InForce]) -> Feasible:
    """What of these finds a place if nothing else lies on any GPU, usable now or not."""
    gpus = [gpu for gpu in view.gpus.values() if gpu.hardware]
    whole = Counter(gpu.course for gpu in gpus if gpu.is_whole)
    cut = [_empty(gpu) for gpu in gpus if gpu.is_partitionable]
    return placed(wanted, cut, whole)


@cached_on_instance
def _empty(gpu: GpuSnapshot) -> SlotCandidate:
    geometry = gpu.at_moment(None).geometry
    assert geometry is not None
    return SlotCandidate(GpuOccupancy(gpu.uuid, geometry, course=gpu.course))


def taking_place(
    view: PoolView,
    moment: float,
    more: Guarantee | None = None,
    rows: Iterable[ReservationRow] | None = None,
) -> list[InForce]:
    """The reservations that take place at a moment, with what is not drawn from them by then."""
    found = [
        one
        for one in rules.undrawn(view.reservations.values() if rows is None else rows, moment, 0.0)
        if view.at < reserved_until(one.row, one.time)  # else what was not taken up is free for all
    ]
    if not found:
        return []
    users = {one.key: _guaranteed_users(view, one.key, moment) for one in found}
    if more is not None and more.key in users:
        users[more.key] |= {more.user}
    return rules.less_drawn(found, {key: len(names) for key, names in users.items()})


def placed(
    wanted: Sequence[InForce], gpus: Sequence[SlotCandidate], whole: Mapping[str, int]
) -> Feasible:
    """`feasible` on these GPUs; ``whole``: how many whole GPUs of each course's own, or of none."""
    sliced = [one for one in wanted if one.row.shape != FULL]
    slots, left = _slots(sliced, gpus)
    left |= _whole_left([one for one in wanted if one.row.shape == FULL], whole)
    drawn = {one.row.id: one.row.count - one.left for one in wanted}
    return Feasible({number: drawn[number] + count for number, count in left.items()}, slots)


def _slots(
    wanted: Sequence[InForce], gpus: Sequence[SlotCandidate]
) -> tuple[tuple[tuple[int, Slot], ...], dict[int, int]]:
    """Slots for all, or as many as there are: those made first in front."""
    fitting = {one.row.id: one.left for one in wanted}
    slots = _choose(wanted, fitting, gpus)
    if slots is not None:
        return slots, fitting
    fitting = dict.fromkeys(fitting, 0)
    for one in sorted(wanted, key=lambda one: one.row.id):
        number = one.row.id
        fitting[number] = bisect_left(
            range(1, one.left + 1),
            True,
            key=lambda count, number=number: (  # type: ignore[misc]
                _choose(wanted, fitting | {number: count}, gpus) is None
            ),
        )
    return _choose(wanted, fitting, gpus) or (), fitting


def _choose(
    wanted: Iterable[InForce], counts: Mapping[int, int], gpus: Sequence[SlotCandidate]
) -> tuple[tuple[int, Slot], ...] | None:
    """Slots for so many leases of each reservation; None if they do not all fit."""
    leases = [one for one in wanted for _ in range(counts[one.row.id])]
    requests = [SlotRequest(one.row.course, profiles_of(one.row.shape)) for one in leases]
    if not requests:
        return ()
    found = choose_slots_for(requests, gpus)
    slots = tuple((leases[n].row.id, slot) for n, mine in found.items() for slot in mine)
    return slots if len(slots) == sum(len(one.profiles) for one in requests) else None


def _whole_left(wanted: Sequence[InForce], whole: Mapping[str, int]) -> dict[int, int]:
    """How many whole GPUs each of these has: its course's own, then of those for all."""
    rest, fitting = Counter(whole), {}
    for one in sorted(wanted, key=lambda one: one.row.id):
        own = min(one.left, rest[one.row.course])
        shared = min(one.left - own, rest[""])
        rest.subtract({one.row.course: own, "": shared})
        fitting[one.row.id] = own + shared
    return fitting


# -- what is guaranteed ---------------------------------------------------------------------------


def stays(lease: LeaseRow, moment: float, clear_s: float) -> bool:
    """Whether a lease is guaranteed so long that its slices are not clear at a moment."""
    is_going = lease.state == LeaseState.RELEASING
    return not is_going and lease.guaranteed_until > moment - clear_s


@cached_on_instance
def _by_key(view: PoolView) -> dict[Key, list[LeaseRow]]:
    found: dict[Key, list[LeaseRow]] = {}
    for lease in view.leases.values():
        found.setdefault((lease.course, lease.shape), []).append(lease)
    return found


@cached_on_instance
def holders(view: PoolView, key: Key) -> frozenset[str]:
    """Who holds a lease of a course and shape, guaranteed or open."""
    return frozenset(lease.user for lease in _by_key(view).get(key, ()))


def _guaranteed_users(view: PoolView, key: Key, moment: float) -> set[str]:
    """Who holds a lease of a course and shape that is guaranteed beyond a moment."""
    clear_s = view.settings.pool.clear_s
    leases = _by_key(view).get(key, ())
    return {lease.user for lease in leases if stays(lease, moment, clear_s)}


@cached_on_instance
def starts(view: PoolView, since: float, until: float) -> list[float]:
    """When reservations begin from one moment on and before another, each once."""
    return sorted(
        {
            time.starts_at
            for row in view.reservations.values()
            for time in occurrences(schedule_of(row), since, until)
            if since <= time.starts_at < until
        }
    )


def guaranteed_ends(view: PoolView) -> list[float]:
    """When the slices of guaranteed leases can be clear, the first in front."""
    clear_s = view.settings.pool.clear_s
    return sorted({lease.guaranteed_until + clear_s for lease in view.leases.values()})


def is_usable(gpu: GpuSnapshot) -> bool:
    """Whether reservations can count on a GPU; that it rests for a moment does not matter."""
    return gpu.row.state == GPU_OK and not gpu.row.draining and not gpu.has_lost


@cached_on_instance
def _candidate(gpu: GpuSnapshot, moment: float, clear_s: float) -> SlotCandidate:
    """A GPU at a moment: what is guaranteed beyond it, and what only a person can move."""
    leases = ((row, gpu.leases.get(row.lease or 0)) for row in gpu.slices)
    staying = [row for row, lease in leases if lease and stays(lease, moment, clear_s)]
    then = gpu.at_moment({row.id for row in staying}) if gpu.layout else gpu
    assert then.geometry is not None
    fixed = tuple(gpu.placed(row) for row in gpu.slices if row.is_fixed or row in staying)
    return SlotCandidate(
        GpuOccupancy(
            gpu.uuid, then.geometry, immovable=fixed, usable=is_usable(gpu), course=gpu.course
        )
    )


def _with(candidate: SlotCandidate, more: Guarantee | None) -> SlotCandidate:
    """The same with one more lease there."""
    occupancy = candidate.occupancy
    mine = [place for gpu, place in more.slices if gpu == occupancy.gpu and place] if more else []
    if not mine:
        return candidate
    return replace(candidate, occupancy=replace(occupancy, immovable=(*occupancy.immovable, *mine)))


def _whole(
    gpus: Iterable[GpuSnapshot], moment: float, clear_s: float, more: Guarantee | None
) -> Counter[str]:
    """How many whole GPUs are there at a moment, by the course whose own they are."""
    taken = {gpu for gpu, _ in more.slices} if more else set()
    return Counter(
        gpu.course
        for gpu in gpus
        if gpu.is_whole
        and is_usable(gpu)
        and gpu.uuid not in taken
        and not any(stays(lease, moment, clear_s) for lease in gpu.leases.values())
    )


# -- what breaks a reservation --------------------------------------------------------------------


class BrokenPromise(NamedTuple):
    """A reservation that would lose slices: when first, how many it has then, and had."""

    row: ReservationRow
    moment: float
    held: int
    before: int

    @property
    def words(self) -> str:
        """Which, when, and how many are left, in a sentence."""
        return (
            f"On {day_and_time(self.moment, self.row.tz)} reservation {self.row.id} "
            f"({in_words(self.row)}) would have {self.held} of its slices instead of {self.before}."
        )


def broken_by(view: PoolView, gpus: Mapping[str, GpuSnapshot]) -> list[BrokenPromise]:
    """The reservations that would have fewer of their slices if the GPUs were these.

    Args:
        view: the pool.
        gpus: every GPU, by UUID, as it would be.
    """
    found: dict[int, BrokenPromise] = {}
    after = tuple(gpus.values())
    for moment in _moments_ahead(view):
        held = feasible(view, moment, gpus=after).held
        for number, before in feasible(view, moment).held.items():
            now = held.get(number, 0)
            if now < before:
                row = view.reservations[number]
                found.setdefault(number, BrokenPromise(row, moment, now, before))
    return list(found.values())


def _moments_ahead(view: PoolView) -> list[float]:
    """When reservations begin, or take place now: as far as each has taken place twice."""
    firsts = [next_occurrence(schedule_of(row), view.at) for row in view.reservations.values()]
    last = max((one.starts_at for one in firsts if one), default=view.at) + WEEK_S
    return sorted({view.at, *starts(view, view.at, last)}) if any(firsts) else []

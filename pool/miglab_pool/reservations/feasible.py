"""Which of the reservations at a moment can be had: one rule for all that ask.

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
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, GPU_OK, LeaseRow, ReservationRow
from miglab_pool.reservations import rules
from miglab_pool.reservations.rules import Key, ReservationInForce, describe, reserved_until
from miglab_pool.schedule import DAY_S, Occurrence, next_occurrence, occurrences
from miglab_pool.state.placement import GpuOccupancy, Slot
from miglab_pool.state.reservation_times import schedule_of
from miglab_pool.state.slot_choice import SlotCandidate, SlotRequest, choose_slots_for
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

WEEK_S = 7 * DAY_S


ANY_COURSE = "-"  # no course is called so: one that has no GPUs of its own


class Guarantee(NamedTuple):
    """A lease, or one about to be granted, that is taken to be guaranteed beyond a moment.

    Attributes:
        user: who holds it.
        key: its course and shape.
        slices: the GPU and the placement of each of its slices; None: the whole GPU.
    """

    user: str
    key: Key
    slices: tuple[tuple[str, ProfilePlacement | None], ...]


@dataclass(frozen=True)
class Feasible:
    """What of the reservations at a moment can be had.

    Attributes:
        counts: how many leases each reservation can have, including those drawn from it.
        slots: slots for the leases that are not drawn yet, each with its reservation.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    slots: tuple[tuple[int, Slot], ...] = ()

    def lies_on(self, guarantee: Guarantee) -> bool:
        """Whether a lease takes any of the slots."""
        return any(
            gpu == slot.gpu
            and placed_slice is not None
            and placed_slice.bits & slot.placed_slice.bits
            for gpu, placed_slice in guarantee.slices
            for _, slot in self.slots
        )

    def for_rows(self, rows: Sequence[ReservationRow]) -> "Feasible":
        """Return the same of these reservations, which it numbers from 0 in their order."""
        counts = {rows[number].id: count for number, count in self.counts.items()}
        return Feasible(counts, tuple((rows[number].id, slot) for number, slot in self.slots))


@cached_on_instance
def feasible(
    view: PoolView,
    moment: float,
    extra: Guarantee | None = None,
    rows: tuple[ReservationRow, ...] | None = None,
    gpus: tuple[GpuSnapshot, ...] | None = None,
) -> Feasible:
    """Place the reservations of a moment beside the leases that are guaranteed beyond it.

    Args:
        view: the pool.
        moment: seconds since the epoch.
        extra: one more lease that is guaranteed beyond it.
        rows: the reservations; None: those of the pool.
        gpus: the GPUs; None: those of the pool, as they are.

    Returns:
        All leases of all reservations if a placement exists.  Otherwise the reservations that were
        made first have all theirs, and each later one has as many as fit beside these.
    """
    reservations = reservations_at(view, moment, extra, rows)
    if not reservations:
        return Feasible()
    rows_by_age, claims = _as_claims(view, reservations)
    begins = min(moment, _all_clear_at(view))
    return _place_claims(view, begins, extra, gpus, claims).for_rows(rows_by_age)


class _Claim(NamedTuple):
    """A reservation in force as far as its place depends on it.

    Attributes:
        age: its rank by age among those in force, from 0.
        course: whose it is, if GPUs are assigned to that course; else `ANY_COURSE`.
    """

    age: int
    course: str
    shape: str
    size: int
    undrawn: int


def _as_claims(
    view: PoolView,
    reservations: Sequence[ReservationInForce],
) -> tuple[list[ReservationRow], tuple[_Claim, ...]]:
    """Return the rows of reservations, the oldest first, and what they claim, in their order.

    Of two moments at which as much is claimed of the same, one answer serves both, whichever of the
    courses without GPUs of their own it is for.
    """
    owners = {gpu.course for gpu in view.gpus.values()}
    rows = sorted((reservation.row for reservation in reservations), key=lambda row: row.id)
    ages = {row.id: age for age, row in enumerate(rows)}
    claims = (
        _Claim(
            ages[r.row.id],
            r.row.course if r.row.course in owners else ANY_COURSE,
            r.row.shape,
            r.row.count,
            r.undrawn,
        )
        for r in reservations
    )
    return rows, tuple(claims)


def _in_force(claim: _Claim) -> ReservationInForce:
    row = ReservationRow(
        claim.age, claim.course, claim.shape, claim.size, 0, "", "", "", "", "", 0.0, "", 0.0, ""
    )
    return ReservationInForce(row, Occurrence(0.0, 0.0), False, True, claim.undrawn)


@cached_on_instance
def _all_clear_at(view: PoolView) -> float:
    """Return from when on no lease is guaranteed any more: later moments are all alike."""
    return max([view.at, *guaranteed_ends(view)])


@cached_on_instance
def _place_claims(
    view: PoolView,
    moment: float,
    extra: Guarantee | None,
    gpus: tuple[GpuSnapshot, ...] | None,
    claims: tuple[_Claim, ...],
) -> Feasible:
    clear_s = view.settings.pool.clear_s
    all_gpus = tuple(view.gpus.values()) if gpus is None else gpus
    partitioned = [
        _with_lease(_candidate(gpu, moment, clear_s), extra) for gpu in all_gpus if gpu.geometry
    ]
    needs_whole = any(claim.shape == FULL for claim in claims)
    whole_counts = _count_whole_gpus(all_gpus, moment, clear_s, extra) if needs_whole else {}
    return choose_slots([*map(_in_force, claims)], partitioned, whole_counts)


def count_room_beside(
    view: PoolView, course: str, shape: str, reservations: Sequence[ReservationInForce]
) -> int:
    """Return how many leases of a shape fit beside these reservations on otherwise empty GPUs."""
    upper_bound = sum(
        gpu.hardware.memory_slices if gpu.hardware else 1 for gpu in view.gpus.values()
    )
    last_id = max((r.row.id for r in reservations), default=0) + 1  # made after all of them
    row = ReservationRow(
        last_id, course, shape, upper_bound, 0, "", "", "", "", "", 0.0, "", 0.0, ""
    )
    newest = ReservationInForce(row, Occurrence(0.0, 0.0), False, True, upper_bound)
    return feasible_if_empty(view, [*reservations, newest]).counts[last_id]


def feasible_if_empty(view: PoolView, reservations: Sequence[ReservationInForce]) -> Feasible:
    """Place reservations on the GPUs as if these were empty and all of them usable."""
    rows, claims = _as_claims(view, reservations)
    return _place_claims_if_empty(view, claims).for_rows(rows)


@cached_on_instance
def _place_claims_if_empty(view: PoolView, claims: tuple[_Claim, ...]) -> Feasible:
    gpus = [gpu for gpu in view.gpus.values() if gpu.hardware]
    whole_counts = Counter(gpu.course for gpu in gpus if gpu.is_whole)
    partitioned = [_empty_gpu(gpu) for gpu in gpus if gpu.is_partitionable]
    return choose_slots([*map(_in_force, claims)], partitioned, whole_counts)


@cached_on_instance
def _empty_gpu(gpu: GpuSnapshot) -> SlotCandidate:
    geometry = gpu.at_moment(None).geometry
    assert geometry is not None
    return SlotCandidate(GpuOccupancy(gpu.uuid, geometry, course=gpu.course))


def reservations_at(
    view: PoolView,
    moment: float,
    extra: Guarantee | None = None,
    rows: Iterable[ReservationRow] | None = None,
) -> list[ReservationInForce]:
    """Return the reservations that take place at a moment, less what is drawn from them by then."""
    rows = view.reservations.between(moment, moment) if rows is None else rows
    in_force = rules.reservations_in_force_at(rows, moment, 0.0)
    # After its grace period, what was not taken up is free for all.
    reservations = [r for r in in_force if view.at < reserved_until(r.row, r.time)]
    if not reservations:
        return []
    users = {r.key: _guaranteed_users(view, r.key, moment) for r in reservations}
    if extra is not None and extra.key in users:
        users[extra.key] |= {extra.user}
    return rules.subtract_drawn(reservations, {key: len(names) for key, names in users.items()})


def choose_slots(
    reservations: Sequence[ReservationInForce],
    gpus: Sequence[SlotCandidate],
    whole_counts: Mapping[str, int],
) -> Feasible:
    """Place reservations on these GPUs.

    Args:
        reservations: what is reserved.
        gpus: the partitionable GPUs.
        whole_counts: the number of whole GPUs, by the course that owns them; empty: shared ones.
    """
    slots, counts = _slots([r for r in reservations if r.row.shape != FULL], gpus)
    counts |= _count_whole([r for r in reservations if r.row.shape == FULL], whole_counts)
    drawn_counts = {r.row.id: r.row.count - r.undrawn for r in reservations}
    totals = {number: drawn_counts[number] + count for number, count in counts.items()}
    return Feasible(totals, slots)


def _slots(
    reservations: Sequence[ReservationInForce], gpus: Sequence[SlotCandidate]
) -> tuple[tuple[tuple[int, Slot], ...], dict[int, int]]:
    """Return slots for all leases, or for as many as fit, and how many fit of each reservation.

    Reservations that were made first choose first.
    """
    fitting = {reservation.row.id: reservation.undrawn for reservation in reservations}
    slots = _choose_all(reservations, fitting, gpus)
    if slots is not None:
        return slots, fitting
    fitting = dict.fromkeys(fitting, 0)
    for reservation in sorted(reservations, key=lambda r: r.row.id):
        number = reservation.row.id
        fitting[number] = bisect_left(
            range(1, reservation.undrawn + 1),
            True,
            key=lambda count, number=number: (  # type: ignore[misc]
                _choose_all(reservations, fitting | {number: count}, gpus) is None
            ),
        )
    return _choose_all(reservations, fitting, gpus) or (), fitting


def _choose_all(
    reservations: Iterable[ReservationInForce],
    counts: Mapping[int, int],
    gpus: Sequence[SlotCandidate],
) -> tuple[tuple[int, Slot], ...] | None:
    """Return slots for so many leases of each reservation; None if they do not all fit."""
    rows = [r.row for r in reservations for _ in range(counts[r.row.id])]  # one per lease
    requests = [SlotRequest(row.course, profiles_of(row.shape)) for row in rows]
    if not requests:
        return ()
    slots_by_request = choose_slots_for(requests, gpus).items()
    slots = tuple((rows[n].id, slot) for n, lease_slots in slots_by_request for slot in lease_slots)
    return slots if len(slots) == sum(len(request.profiles) for request in requests) else None


def _count_whole(
    reservations: Sequence[ReservationInForce], whole_counts: Mapping[str, int]
) -> dict[int, int]:
    """Return how many whole GPUs each reservation gets: those of its course, then shared ones."""
    free_counts, fitting = Counter(whole_counts), {}
    for reservation in sorted(reservations, key=lambda reservation: reservation.row.id):
        own_count = min(reservation.undrawn, free_counts[reservation.row.course])
        shared_count = min(reservation.undrawn - own_count, free_counts[""])
        free_counts.subtract({reservation.row.course: own_count, "": shared_count})
        fitting[reservation.row.id] = own_count + shared_count
    return fitting


# -- what is guaranteed ---------------------------------------------------------------------------


def is_guaranteed_beyond(lease: LeaseRow, moment: float, clear_s: float) -> bool:
    """Whether a lease's guarantee lasts so long that its slices are not clear at a moment."""
    is_going = lease.state == LeaseState.RELEASING
    return not is_going and lease.guaranteed_until > moment - clear_s


@cached_on_instance
def _leases_by_key(view: PoolView) -> dict[Key, list[LeaseRow]]:
    leases: dict[Key, list[LeaseRow]] = {}
    for lease in view.leases.values():
        leases.setdefault((lease.course, lease.shape), []).append(lease)
    return leases


@cached_on_instance
def holders(view: PoolView, key: Key) -> frozenset[str]:
    """Return the users who hold a lease of a course and shape, guaranteed or open."""
    return frozenset(lease.user for lease in _leases_by_key(view).get(key, ()))


def _guaranteed_users(view: PoolView, key: Key, moment: float) -> set[str]:
    """Return the users who hold a lease of a course and shape guaranteed beyond a moment."""
    clear_s = view.settings.pool.clear_s
    leases = _leases_by_key(view).get(key, ())
    return {lease.user for lease in leases if is_guaranteed_beyond(lease, moment, clear_s)}


@cached_on_instance
def start_times(view: PoolView, since: float, until: float) -> list[float]:
    """Return when reservations begin from ``since`` on and before ``until``, without duplicates."""
    return sorted(
        {
            time.starts_at
            for row in view.reservations.between(since, until)
            for time in occurrences(schedule_of(row), since, until)
            if since <= time.starts_at < until
        }
    )


def guaranteed_ends(view: PoolView) -> list[float]:
    """Return when the slices of the guaranteed leases can be clear, sorted."""
    clear_s = view.settings.pool.clear_s
    return sorted({lease.guaranteed_until + clear_s for lease in view.leases.values()})


def is_usable(gpu: GpuSnapshot) -> bool:
    """Whether reservations can count on a GPU; a short rest after a failure does not matter."""
    return gpu.row.state == GPU_OK and not gpu.row.draining and not gpu.has_lost


@cached_on_instance
def _candidate(gpu: GpuSnapshot, moment: float, clear_s: float) -> SlotCandidate:
    """Return a GPU with what is guaranteed beyond a moment and what only a person can remove."""
    leases = ((row, gpu.leases.get(row.lease or 0)) for row in gpu.slices)
    staying = [
        row for row, lease in leases if lease and is_guaranteed_beyond(lease, moment, clear_s)
    ]
    then = gpu.at_moment({row.id for row in staying}) if gpu.layout else gpu
    assert then.geometry is not None
    immovable = tuple(gpu.placement_of(row) for row in gpu.slices if row.is_fixed or row in staying)
    return SlotCandidate(
        GpuOccupancy(
            gpu.uuid, then.geometry, immovable=immovable, usable=is_usable(gpu), course=gpu.course
        )
    )


def _with_lease(candidate: SlotCandidate, extra: Guarantee | None) -> SlotCandidate:
    """Return the candidate with one more lease on it."""
    occupancy = candidate.occupancy
    extra_slices = (
        [place for gpu, place in extra.slices if gpu == occupancy.gpu and place] if extra else []
    )
    if not extra_slices:
        return candidate
    return replace(
        candidate, occupancy=replace(occupancy, immovable=(*occupancy.immovable, *extra_slices))
    )


def _count_whole_gpus(
    gpus: Iterable[GpuSnapshot], moment: float, clear_s: float, extra: Guarantee | None
) -> Counter[str]:
    """Return how many whole GPUs can be had at a moment, by the course that owns them."""
    taken_gpus = {gpu for gpu, _ in extra.slices} if extra else set()
    return Counter(
        gpu.course
        for gpu in gpus
        if gpu.is_whole
        and is_usable(gpu)
        and gpu.uuid not in taken_gpus
        and not any(is_guaranteed_beyond(lease, moment, clear_s) for lease in gpu.leases.values())
    )


# -- broken promises -----------------------------------------------------------------------------


class BrokenPromise(NamedTuple):
    """A reservation that would lose slices.

    Attributes:
        row: the reservation.
        moment: when it would first lose some, seconds since the epoch.
        count_then: how many of its leases it could have then.
        count_now: how many it can have as things are.
    """

    row: ReservationRow
    moment: float
    count_then: int
    count_now: int

    @property
    def message(self) -> str:
        """A sentence for people: which reservation, when, and how many slices it would have."""
        return (
            f"On {day_and_time(self.moment, self.row.tz)} reservation {self.row.id} "
            f"({describe(self.row)}) would have {self.count_then} of its slices instead of "
            f"{self.count_now}."
        )


def broken_promises(view: PoolView, gpus: Mapping[str, GpuSnapshot]) -> list[BrokenPromise]:
    """Return the reservations that would have fewer of their slices if the GPUs were these.

    Args:
        view: the pool.
        gpus: every GPU, by UUID, as it would be.
    """
    broken: dict[int, BrokenPromise] = {}
    after = tuple(gpus.values())
    for moment in _moments_ahead(view):
        counts = feasible(view, moment, gpus=after).counts
        for number, before in feasible(view, moment).counts.items():
            now = counts.get(number, 0)
            if now < before:
                row = view.reservations[number]
                broken.setdefault(number, BrokenPromise(row, moment, now, before))
    return list(broken.values())


def _moments_ahead(view: PoolView) -> list[float]:
    """Return now and when reservations begin, until a week after each has begun once."""
    firsts = [next_occurrence(schedule_of(row), view.at) for row in view.reservations.values()]
    last = max((first.starts_at for first in firsts if first), default=view.at) + WEEK_S
    return sorted({view.at, *start_times(view, view.at, last)}) if any(firsts) else []

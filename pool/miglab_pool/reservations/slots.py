"""What reservations in force mean for the queue: whose tickets go first, which slots are reserved.

From the lead before its start to the end of its grace period, a reservation has a slot for each
lease that its course has not yet drawn.  Nobody else gets a new lease there, and leases that run
there go on.  From then to its end, its students only go first in the queue.  A class that takes
place goes before one that is about to begin.  All of it follows from the view.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby, product

from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow, TicketRow
from miglab_pool.reservations import rules
from miglab_pool.reservations.feasible import feasible, is_guaranteed_beyond, start_times
from miglab_pool.reservations.rules import Key, ReservationInForce, reserved_until
from miglab_pool.state.placement import (
    Choice,
    GpuOccupancy,
    Slot,
    course_gpus_first,
    place,
    places_by_gpu,
    without_places,
    without_reserved,
)
from miglab_pool.state.slot_choice import (
    SlotCandidate,
    SlotRequest,
    choose_slots_for,
    is_unleased,
)
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

SlotsByReservation = dict[int, tuple[Slot, ...]]
"""The slots by reservation; a slot's request says which lease of the reservation it is for."""
NO_REQUEST = -1
MINUTE_S = 60.0

# -- the slots ----------------------------------------------------------------------------


@cached_on_instance
def reservations_in_force(view: PoolView) -> list[ReservationInForce]:
    """Return the reservations that have slots reserved or take place now, by start."""
    if not view.reservations:
        return []
    lead_s = view.settings.pool.reserve_lead_s
    rows = view.reservations.between(view.at, view.at + lead_s)
    ahead = rules.reservations_in_force_at(rows, view.at, lead_s)
    return rules.subtract_drawn(ahead, rules.count_drawing(view.leases.values())) if ahead else []


@cached_on_instance
def open_gpus(view: PoolView) -> list[GpuOccupancy]:
    """Return the occupancy of each partitionable GPU, without the slots that are reserved now."""
    slots = [slot for own_slots in slots_of(view).values() for slot in own_slots]
    return without_reserved(view.occupancies, places_by_gpu(slots)) if slots else view.occupancies


def slots_with_reservation(view: PoolView) -> list[tuple[ReservationRow, Slot]]:
    """Return the slots that are reserved now, each with its reservation."""
    rows = view.reservations
    return [(rows[number], slot) for number, slots in slots_of(view).items() for slot in slots]


@cached_on_instance
def remaining_reserved_s(view: PoolView) -> float | None:
    """Return for how long slots stay reserved; None while none are."""
    ends = [
        reserved_until(reservation.row, reservation.time)
        for reservation in reservations_with_slots(view)
    ]
    return max(ends) - view.at if ends else None


def count_ready(view: PoolView, course: str, shape: str) -> int:
    """Return how many more students of a course would find a reserved slot of a shape empty now."""
    ready = 0
    for reservation, tickets in reservations_with_claimants(view):
        if reservation.key == (course, shape):
            ready += max(0, _count_ready_of(view, reservation) - len(tickets))
    return ready


def _count_ready_of(view: PoolView, reservation: ReservationInForce) -> int:
    if reservation.row.shape == FULL:
        return min(
            reservation.undrawn,
            len(free_whole_gpus(view, except_for=reservation)) - len(free_whole_gpus(view)),
        )
    _, own_slots = _slots_beside(view, reservation)
    gpus = {occupancy.gpu: occupancy for occupancy in view.occupancies}
    occupied = {
        slot.request for slot in own_slots if not is_unleased(gpus[slot.gpu], slot.placed_slice)
    }
    return len({slot.request for slot in own_slots} - occupied)


def count_held_up(view: PoolView, row: ReservationRow) -> int:
    """Return how many leases of a reservation have a slot that is not empty yet."""
    matching = (
        reservation for reservation in reservations_with_slots(view) if reservation.row.id == row.id
    )
    return sum(reservation.undrawn - _count_ready_of(view, reservation) for reservation in matching)


@cached_on_instance
def reservations_with_slots(view: PoolView) -> tuple[ReservationInForce, ...]:
    """Return the reservations that have slots now."""
    return tuple(r for r in reservations_in_force(view) if r.is_reserved and r.undrawn)


@cached_on_instance
def slots_of(view: PoolView) -> SlotsByReservation:
    """Return the slots of each reservation; earlier reservations choose first."""
    sliced = [r for r in reservations_with_slots(view) if r.row.shape != FULL]
    slots: SlotsByReservation = {}
    for starts_at, group in groupby(sliced, lambda reservation: reservation.time.starts_at):
        reservations = list(group)
        gpus = _candidates(view, starts_at, frozenset(r.key for r in sliced))
        gpus = _without_slots(gpus, [slot for earlier in slots.values() for slot in earlier])
        later_slots = _slots_of_later(view, reservations)
        beside_later = _choose_slots(reservations, _without_slots(gpus, later_slots))
        slice_count = sum(r.undrawn * len(profiles_of(r.row.shape)) for r in reservations)
        has_all = sum(map(len, beside_later.values())) == slice_count
        slots |= beside_later if has_all else _choose_slots(reservations, gpus)
    return slots


def _slots_of_later(view: PoolView, reservations: Sequence[ReservationInForce]) -> list[Slot]:
    """Return where reservations that begin while these take place may have slots.

    These slots are better left to them.
    """
    own_ids = {reservation.row.id for reservation in reservations}
    begins, ends = reservations[0].time.starts_at, max(r.time.ends_at for r in reservations)
    return [
        slot
        for start in start_times(view, max(begins, view.at), ends)
        for number, slot in feasible(view, start).slots
        if number not in own_ids and begins < start < ends
    ]


def _candidates(view: PoolView, starts_at: float, drawing: frozenset[Key]) -> list[SlotCandidate]:
    late = view.at // MINUTE_S * MINUTE_S  # a reservation that has begun is placed anew each minute
    moment, clear_s = max(starts_at, late), view.settings.pool.clear_s
    gpus = (gpu for gpu in view.gpus.values() if gpu.occupancy)
    return [_candidate(gpu, drawing, moment, clear_s) for gpu in gpus]


@cached_on_instance
def _candidate(
    gpu: GpuSnapshot, drawing: frozenset[Key], moment: float, clear_s: float
) -> SlotCandidate:
    """Return a GPU for the choice of slots beside the leases guaranteed beyond a moment.

    A lease that was warned counts as gone, so that no other lease is warned instead.
    """
    assert gpu.occupancy is not None
    kinds: dict[str, list[ProfilePlacement]] = {"fixed": [], "drawn": [], "leased": [], "gone": []}
    for row in gpu.slices:
        lease = gpu.leases.get(row.lease or 0)
        if lease is not None:
            kinds[_lease_kind(lease, drawing, moment, clear_s)].append(gpu.placement_of(row))
    immovable = (*gpu.occupancy.immovable, *kinds["fixed"])
    occupancy = replace(gpu.occupancy, immovable=immovable)
    return SlotCandidate(occupancy, tuple(kinds["leased"]), tuple(kinds["drawn"]))


def _lease_kind(lease: LeaseRow, drawing: Collection[Key], moment: float, clear_s: float) -> str:
    if is_guaranteed_beyond(lease, moment, clear_s):
        return "fixed"
    if (lease.course, lease.shape) in drawing:
        return "drawn"
    return "gone" if lease.reclaim_at is not None or lease.releasing_at is not None else "leased"


def _without_slots(gpus: Sequence[SlotCandidate], slots: Sequence[Slot]) -> list[SlotCandidate]:
    """Return the candidates without slots that other reservations have."""
    slots_by_gpu = places_by_gpu(slots)
    return [
        replace(
            candidate,
            occupancy=without_places(
                candidate.occupancy, slots_by_gpu.get(candidate.occupancy.gpu, ())
            ),
        )
        for candidate in gpus
    ]


def _choose_slots(
    reservations: Sequence[ReservationInForce], gpus: Sequence[SlotCandidate]
) -> SlotsByReservation:
    leases = [reservation for reservation in reservations for _ in range(reservation.undrawn)]
    requests = [SlotRequest(lease.row.course, profiles_of(lease.row.shape)) for lease in leases]
    slots: SlotsByReservation = {reservation.row.id: () for reservation in reservations}
    for request, lease_slots in choose_slots_for(requests, gpus).items():
        number = leases[request].row.id
        slots[number] = (*slots[number], *lease_slots)
    return slots


@cached_on_instance
def drawn_until(view: PoolView) -> dict[int, float]:
    """Return until when each lease that draws on a reservation is guaranteed: to its end.

    One lease of each person draws, those granted first, up to the reserved count.  Borrowed slices
    keep the end that was set for them.
    """
    ends: dict[int, float] = {}
    for reservation in reservations_in_force(view) if view.reservations else ():
        leases_by_user: dict[str, LeaseRow] = {}
        for lease in sorted(view.leases.values(), key=lambda lease: lease.id):
            if (
                lease.course,
                lease.shape,
            ) == reservation.key and lease.state != LeaseState.RELEASING:
                leases_by_user.setdefault(lease.user, lease)
        drawn_leases = [lease for lease in leases_by_user.values() if lease.id not in ends][
            : reservation.row.count
        ]
        if reservation.is_reserved:
            ends |= {
                lease.id: reservation.time.ends_at for lease in drawn_leases if not lease.is_borrow
            }
    return ends


# -- claims ------------------------------------------------------------------------------------


@cached_on_instance
def _claimants(view: PoolView) -> dict[Key, list[TicketRow]]:
    """Return the tickets that may draw on a reservation, by course and shape, oldest first.

    Each person has one claim: tickets of those who draw already, and second tickets, are left out.
    """
    waiting: defaultdict[Key, list[TicketRow]] = defaultdict(list)
    claims = {
        (lease.user, lease.course, lease.shape)
        for lease in view.leases.values()
        if lease.state != LeaseState.RELEASING
    }
    for ticket in view.queued:
        claim = (ticket.user, ticket.course, ticket.shape)
        if claim not in claims and (ticket.user, ticket.server) not in view.held_servers:
            claims.add(claim)
            waiting[ticket.course, ticket.shape].append(ticket)
    return waiting


def claiming_tickets(
    view: PoolView, reservation: ReservationInForce, excluded: Collection[int] = ()
) -> list[TicketRow]:
    """Return the tickets that may draw on a reservation now, oldest first.

    They are at most as many as its leases that are not drawn yet.

    Args:
        view: the pool.
        reservation: the reservation.
        excluded: tickets that have a slot of another reservation.
    """
    tickets = [
        ticket for ticket in _claimants(view).get(reservation.key, ()) if ticket.id not in excluded
    ]
    return tickets[: reservation.undrawn]


@cached_on_instance
def reservations_with_claimants(view: PoolView) -> list[tuple[ReservationInForce, list[TicketRow]]]:
    """Return the reservations with slots, each with the tickets that claim them; none twice."""
    reserved: list[tuple[ReservationInForce, list[TicketRow]]] = []
    claimants_with_slot: set[int] = set()
    for reservation in reservations_in_force(view):
        if reservation.is_reserved:
            tickets = claiming_tickets(view, reservation, claimants_with_slot)
            claimants_with_slot.update(ticket.id for ticket in tickets)
            reserved.append((reservation, tickets))
    return reserved


@cached_on_instance
def claimants_with_slot(view: PoolView) -> frozenset[int]:
    """Return the tickets for which a slot is reserved, so that they need no hold."""
    return frozenset(
        ticket.id for _, tickets in reservations_with_claimants(view) for ticket in tickets
    )


def choose_next(view: PoolView, reservation: ReservationInForce) -> tuple[Choice, ...] | None:
    """Return the slices for a reservation's next lease; None if they are not free yet.

    They lie on one of its own slots, or beside all that is reserved.
    """
    other_slots, own_slots = _slots_beside(view, reservation)
    gpus = course_gpus_first(view.occupancies, reservation.row.course)
    names = profiles_of(reservation.row.shape)
    requests = sorted({slot.request for slot in own_slots}) or [NO_REQUEST]
    for later, request in product((_slots_of_later(view, [reservation]), []), requests):
        closed_slots = [
            *other_slots,
            *later,
            *(slot for slot in own_slots if slot.request != request),
        ]
        choices = place(names, without_reserved(gpus, places_by_gpu(closed_slots)))
        if choices is not None:
            return choices
    return None


def _slots_beside(
    view: PoolView, reservation: ReservationInForce
) -> tuple[list[Slot], tuple[Slot, ...]]:
    """Return the slots of other reservations, and those of this one."""
    slots = slots_of(view)
    other_slots = [
        slot
        for number, their_slots in slots.items()
        if number != reservation.row.id
        for slot in their_slots
    ]
    return other_slots, slots.get(reservation.row.id, ())


# -- whole GPUs ---------------------------------------------------------------------------------


def free_whole_gpus(
    view: PoolView, course: str = "", except_for: ReservationInForce | None = None
) -> list[GpuSnapshot]:
    """Return the whole GPUs that a course may lease now, its own GPUs first.

    GPUs that reservations other than ``except_for`` need are left out.
    """
    free = [gpu for gpu in view.gpus.values() if gpu.is_free_whole]
    reservations = [
        reservation
        for reservation in (reservations_with_slots(view) if free else ())
        if reservation.row.shape == FULL
        and (except_for is None or reservation.row.id != except_for.row.id)
    ]
    own_gpus = [gpu for gpu in free if course and gpu.course == course]
    shared_gpus = [gpu for gpu in free if not gpu.course]
    own_count = sum(r.undrawn for r in reservations if r.row.course == course)
    shared_count = _count_shared_reserved(free, reservations, course)
    shared_count += max(0, own_count - len(own_gpus))
    return [
        *own_gpus[: max(0, len(own_gpus) - own_count)],
        *shared_gpus[: max(0, len(shared_gpus) - shared_count)],
    ]


def _count_shared_reserved(
    free: Sequence[GpuSnapshot], reservations: Sequence[ReservationInForce], course: str
) -> int:
    """Return how many shared whole GPUs the reservations of other courses take."""
    reserved_counts = Counter[str]()
    for reservation in reservations:
        if reservation.row.course != course:
            reserved_counts[reservation.row.course] += reservation.undrawn
    owned = Counter(gpu.course for gpu in free)
    return sum(max(0, number - owned[owner]) for owner, number in reserved_counts.items())

"""What reservations in force mean for the queue: who goes first, and which slots are reserved.

From the lead before its start to the end of its grace a reservation has a slot for each lease
that its course has not yet drawn; nobody else gets a new lease there, and who runs there runs on.
From then to its end its students only go first.  A class that takes place goes before one that is
about to begin.  All of it follows from the view.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from miglab_pool.gpu.geometry import Placed
from miglab_pool.gpu.shapes import profiles
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow, TicketRow
from miglab_pool.reservations import rules
from miglab_pool.reservations.rules import InForce, Key, reserved_until
from miglab_pool.state.placement import Choice, GpuOccupancy, Slot, own_first, place
from miglab_pool.state.slot_choice import (
    SlotCandidate,
    SlotRequest,
    choose_slots_for,
    is_empty,
    without,
)
from miglab_pool.state.view import GpuSnapshot, PoolView, once

SlotsByReservation = dict[
    int, tuple[Slot, ...]
]  # by reservation; a slot's request is which of its leases it is for
NO_REQUEST = -1

# -- the slots ----------------------------------------------------------------------------


@once
def in_force(view: PoolView) -> list[InForce]:
    """The reservations that keep places or take place, those that began first in front."""
    return in_force_at(view, view.at, view.leases.values())


def in_force_at(view: PoolView, moment: float, leases: Collection[LeaseRow]) -> list[InForce]:
    """The same of another moment, when these leases live."""
    rows, lead_s = view.reservations.values(), view.settings.pool.reserve_lead_s
    return rules.in_force(rows, moment, lead_s, leases)


@once
def open_gpus(view: PoolView) -> list[GpuOccupancy]:
    """Every GPU that can be cut, without the slots that are reserved now."""
    return closed(view, view.occupancies)


def closed(view: PoolView, gpus: list[GpuOccupancy]) -> list[GpuOccupancy]:
    """These GPUs without the slots that are reserved now."""
    slots = [slot for mine in slots_of(view).values() for slot in mine]
    return _without(gpus, slots) if slots else gpus


def slots_with_reservation(view: PoolView) -> list[tuple[ReservationRow, Slot]]:
    """The slots that are reserved now, each with the reservation it is for."""
    rows = view.reservations
    return [(rows[number], slot) for number, slots in slots_of(view).items() for slot in slots]


@once
def reserved_s(view: PoolView) -> float | None:
    """How long slots are reserved yet; None while none are."""
    ends = [reserved_until(one.row, one.time) for one in reserving(view)]
    return max(ends) - view.at if ends else None


def ready(view: PoolView, course: str, shape: str) -> int:
    """How many who ask now would find a slot of their course's reservations empty."""
    mine = [(one, len(tickets)) for one, tickets in claimed_by(view) if one.key == (course, shape)]
    return sum(max(0, _count_ready(view, one) - claimed) for one, claimed in mine)


def _count_ready(view: PoolView, one: InForce) -> int:
    if one.row.shape == FULL:
        return min(one.left, len(free_whole(view, but=one)) - len(free_whole(view)))
    _, mine = _slots_beside(view, one)
    gpus = {one.gpu: one for one in view.occupancies}
    taken = {slot.request for slot in mine if not is_empty(gpus[slot.gpu], slot.placed)}
    return len({slot.request for slot in mine} - taken)


def count_held_up(view: PoolView, row: ReservationRow) -> int:
    """How many of a reservation's leases have a slot that something still lies on."""
    mine = (one for one in reserving(view) if one.row.id == row.id)
    return sum(one.left - _count_ready(view, one) for one in mine)


@once
def reserving(view: PoolView) -> tuple[InForce, ...]:
    """The reservations that have slots now."""
    return tuple(one for one in in_force(view) if one.is_reserved and one.left)


@once
def slots_of(view: PoolView) -> SlotsByReservation:
    """The slots of each reservation that has any."""
    wanted = reserving(view)
    if not wanted:
        return {}
    numbers = tuple((one.row.id, one.key, one.left) for one in wanted)
    return _slots_for(numbers, tuple(gpu for gpu in view.gpus.values() if gpu.occupancy))


@lru_cache(maxsize=4)
def _slots_for(
    wanted: tuple[tuple[int, Key, int], ...], gpus: tuple[GpuSnapshot, ...]
) -> SlotsByReservation:
    """Worked out anew when what is wanted or a GPU has changed: it is then another snapshot."""
    sliced = [one for one in wanted if one[1][1] != FULL]
    drawing = {key for _, key, _ in sliced}
    candidates = [_candidate(gpu, drawing) for gpu in gpus]
    leases = [(number, key) for number, key, left in sliced for _ in range(left)]
    requests = [SlotRequest(course, profiles(shape)) for _, (course, shape) in leases]
    slots: SlotsByReservation = {number: () for number, _, _ in sliced}
    for request, mine in choose_slots_for(requests, candidates).items():
        number = leases[request][0]
        slots[number] = (*slots[number], *mine)
    return slots


def _candidate(gpu: GpuSnapshot, drawing: Collection[Key]) -> SlotCandidate:
    assert gpu.occupancy is not None
    leased: list[Placed] = []
    drawn: list[Placed] = []
    for row in gpu.slices:
        lease = gpu.facts.leases.get(row.lease or 0)
        if lease is not None:
            kind = drawn if (lease.course, lease.shape) in drawing else leased
            kind.append(gpu.facts.placed(row))
    return SlotCandidate(gpu.occupancy, tuple(leased), tuple(drawn))


# -- whose they are -----------------------------------------------------------------------------


@once
def _claimants(view: PoolView) -> dict[Key, list[TicketRow]]:
    """The tickets that may be served, by what they could draw on, oldest first."""
    waiting: defaultdict[Key, list[TicketRow]] = defaultdict(list)
    for ticket in view.queued:
        if (ticket.user, ticket.server) not in view.held_servers:
            waiting[ticket.course, ticket.shape].append(ticket)
    return waiting


def claims(view: PoolView, one: InForce, but: Collection[int] = ()) -> list[TicketRow]:
    """The tickets that may draw on a reservation now, as many as it has left, oldest first.

    Args:
        view: the pool.
        one: the reservation.
        but: tickets that stand for another's slots.
    """
    mine = [ticket for ticket in _claimants(view).get(one.key, ()) if ticket.id not in but]
    return mine[: one.left]


@once
def claimed_by(view: PoolView) -> list[tuple[InForce, list[TicketRow]]]:
    """The reservations that have slots, each with the tickets for which it does: none twice."""
    reserved: list[tuple[InForce, list[TicketRow]]] = []
    claimants_with_slot: set[int] = set()
    for one in in_force(view):
        if one.is_reserved:
            mine = claims(view, one, claimants_with_slot)
            claimants_with_slot.update(ticket.id for ticket in mine)
            reserved.append((one, mine))
    return reserved


@once
def claimants_with_slot(view: PoolView) -> frozenset[int]:
    """The tickets for which a slot is reserved: they need no other hold."""
    return frozenset(ticket.id for _, mine in claimed_by(view) for ticket in mine)


def choose(view: PoolView, one: InForce) -> tuple[Choice, ...] | None:
    """Where its next lease goes: on one of its own slots, or beside what is reserved."""
    others, mine = _slots_beside(view, one)
    gpus = own_first(view.occupancies, one.row.course)
    wanted = profiles(one.row.shape)
    for request in sorted({slot.request for slot in mine}) or [NO_REQUEST]:
        shut = [*others, *(slot for slot in mine if slot.request != request)]
        choices = place(wanted, _without(gpus, shut))
        if choices is not None:
            return choices
    return None


def _slots_beside(view: PoolView, one: InForce) -> tuple[list[Slot], tuple[Slot, ...]]:
    """The slots that this reservation's students may not use, and their own."""
    slots = slots_of(view)
    others = [
        slot
        for other in reserving(view)
        if other.row.id != one.row.id and (other.has_begun or not one.has_begun)
        for slot in slots.get(other.row.id, ())
    ]
    return others, slots.get(one.row.id, ())


def _without(gpus: Iterable[GpuOccupancy], slots: Iterable[Slot]) -> list[GpuOccupancy]:
    """The GPUs for those who may not use these slots."""
    shut: defaultdict[str, list[Placed]] = defaultdict(list)
    for slot in slots:
        shut[slot.gpu].append(slot.placed)
    return [without(one, shut.get(one.gpu, ())) for one in gpus]


# -- whole GPUs ---------------------------------------------------------------------------------


def free_whole(view: PoolView, course: str = "", but: InForce | None = None) -> list[GpuSnapshot]:
    """The whole GPUs that a course may lease now, less those reserved for others than ``but``.

    Its own come first: what is reserved for others is counted among those for all.
    """
    free = [gpu for gpu in view.gpus.values() if gpu.is_free_whole]
    others = [
        one
        for one in (reserving(view) if free else ())
        if one.row.shape == FULL and (but is None or one.row.id != but.row.id)
    ]
    own = [gpu for gpu in free if course and gpu.course == course]
    for_all = [gpu for gpu in free if not gpu.course]
    mine = sum(one.left for one in others if one.row.course == course)
    taken = _reserved_for_all(free, others, course) + max(0, mine - len(own))
    return [*own[: max(0, len(own) - mine)], *for_all[: max(0, len(for_all) - taken)]]


def _reserved_for_all(free: Sequence[GpuSnapshot], others: Sequence[InForce], course: str) -> int:
    """How many whole GPUs other courses' reservations take beside those courses' own."""
    wanted = Counter[str]()
    for one in others:
        if one.row.course != course:
            wanted[one.row.course] += one.left
    owned = Counter(gpu.course for gpu in free)
    return sum(max(0, number - owned[whose]) for whose, number in wanted.items())

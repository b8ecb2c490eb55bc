"""What reservations in force mean for the queue: who goes first, and which slots are reserved.

From the lead before its start to the end of its grace a reservation has a slot for each lease
that its course has not yet drawn; nobody else gets a new lease there, and who runs there runs on.
From then to its end its students only go first.  A class that takes place goes before one that is
about to begin.  All of it follows from the view.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby, product

from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placed
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow, TicketRow
from miglab_pool.reservations import rules
from miglab_pool.reservations.feasible import feasible, starts, stays
from miglab_pool.reservations.rules import InForce, Key, reserved_until
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
"""By reservation; a slot's request is which of its leases it is for."""
NO_REQUEST = -1
MINUTE_S = 60.0

# -- the slots ----------------------------------------------------------------------------


@cached_on_instance
def in_force(view: PoolView) -> list[InForce]:
    """The reservations that keep places or take place, those that began first in front."""
    if not view.reservations:
        return []
    rows, lead_s = view.reservations.values(), view.settings.pool.reserve_lead_s
    ahead = rules.undrawn(rows, view.at, lead_s)
    return rules.less_drawn(ahead, rules.drawn(view.leases.values())) if ahead else []


@cached_on_instance
def open_gpus(view: PoolView) -> list[GpuOccupancy]:
    """Every GPU that can be cut, without the slots that are reserved now."""
    slots = [slot for mine in slots_of(view).values() for slot in mine]
    return without_reserved(view.occupancies, places_by_gpu(slots)) if slots else view.occupancies


def slots_with_reservation(view: PoolView) -> list[tuple[ReservationRow, Slot]]:
    """The slots that are reserved now, each with the reservation it is for."""
    rows = view.reservations
    return [(rows[number], slot) for number, slots in slots_of(view).items() for slot in slots]


@cached_on_instance
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
    taken = {slot.request for slot in mine if not is_unleased(gpus[slot.gpu], slot.placed_slice)}
    return len({slot.request for slot in mine} - taken)


def count_held_up(view: PoolView, row: ReservationRow) -> int:
    """How many of a reservation's leases have a slot that something still lies on."""
    mine = (one for one in reserving(view) if one.row.id == row.id)
    return sum(one.left - _count_ready(view, one) for one in mine)


@cached_on_instance
def reserving(view: PoolView) -> tuple[InForce, ...]:
    """The reservations that have slots now."""
    return tuple(one for one in in_force(view) if one.is_reserved and one.left)


@cached_on_instance
def slots_of(view: PoolView) -> SlotsByReservation:
    """The slots of each reservation that has any: what begins first is placed first."""
    sliced = [one for one in reserving(view) if one.row.shape != FULL]
    slots: SlotsByReservation = {}
    for starts_at, group in groupby(sliced, lambda one: one.time.starts_at):
        wanted = list(group)
        taken = [slot for mine in slots.values() for slot in mine]
        gpus = _candidates(view, starts_at, frozenset(one.key for one in sliced))
        beside = _chosen(wanted, _closed(gpus, [*taken, *_later(view, wanted)]))
        is_all = sum(map(len, beside.values())) == sum(
            one.left * len(profiles_of(one.row.shape)) for one in wanted
        )
        slots |= beside if is_all else _chosen(wanted, _closed(gpus, taken))
    return slots


def _later(view: PoolView, wanted: Sequence[InForce]) -> list[Slot]:
    """Where those may lie that begin while these take place: better left to them."""
    mine = {one.row.id for one in wanted}
    begins, ends = wanted[0].time.starts_at, max(one.time.ends_at for one in wanted)
    return [
        slot
        for start in starts(view, max(begins, view.at), ends)
        for number, slot in feasible(view, start).slots
        if number not in mine and begins < start < ends
    ]


def _candidates(view: PoolView, starts_at: float, drawing: frozenset[Key]) -> list[SlotCandidate]:
    late = view.at // MINUTE_S * MINUTE_S  # of what should have begun: looked at every minute
    moment, clear_s = max(starts_at, late), view.settings.pool.clear_s
    gpus = (gpu for gpu in view.gpus.values() if gpu.occupancy)
    return [_candidate(gpu, drawing, moment, clear_s) for gpu in gpus]


@cached_on_instance
def _candidate(
    gpu: GpuSnapshot, drawing: frozenset[Key], moment: float, clear_s: float
) -> SlotCandidate:
    """A GPU on which slots may be chosen beside what is guaranteed beyond a moment.

    A lease that has been warned is as good as gone, so that nobody else is warned instead.
    """
    assert gpu.occupancy is not None
    kinds: dict[str, list[Placed]] = {"fixed": [], "drawn": [], "leased": [], "gone": []}
    for row in gpu.slices:
        lease = gpu.leases.get(row.lease or 0)
        if lease is not None:
            kinds[_kind(lease, drawing, moment, clear_s)].append(gpu.placed(row))
    fixed = (*gpu.occupancy.immovable, *kinds["fixed"])
    occupancy = replace(gpu.occupancy, immovable=fixed)
    return SlotCandidate(occupancy, tuple(kinds["leased"]), tuple(kinds["drawn"]))


def _kind(lease: LeaseRow, drawing: Collection[Key], moment: float, clear_s: float) -> str:
    if stays(lease, moment, clear_s):
        return "fixed"
    if (lease.course, lease.shape) in drawing:
        return "drawn"
    return "gone" if lease.reclaim_at is not None or lease.releasing_at is not None else "leased"


def _closed(gpus: Sequence[SlotCandidate], slots: Sequence[Slot]) -> list[SlotCandidate]:
    """The same without slots that others have."""
    kept = places_by_gpu(slots)
    return [
        replace(one, occupancy=without_places(one.occupancy, kept.get(one.occupancy.gpu, ())))
        for one in gpus
    ]


def _chosen(wanted: Sequence[InForce], gpus: Sequence[SlotCandidate]) -> SlotsByReservation:
    leases = [one for one in wanted for _ in range(one.left)]
    requests = [SlotRequest(one.row.course, profiles_of(one.row.shape)) for one in leases]
    slots: SlotsByReservation = {one.row.id: () for one in wanted}
    for request, mine in choose_slots_for(requests, gpus).items():
        number = leases[request].row.id
        slots[number] = (*slots[number], *mine)
    return slots


@cached_on_instance
def drawn_until(view: PoolView) -> dict[int, float]:
    """Until when the leases are guaranteed that draw on a reservation: to its end.

    Those granted first draw, one for each person, as many as are reserved; what is borrowed ends
    when it is set.
    """
    found: dict[int, float] = {}
    for one in in_force(view) if view.reservations else ():
        mine: dict[str, LeaseRow] = {}
        for lease in sorted(view.leases.values(), key=lambda lease: lease.id):
            if (lease.course, lease.shape) == one.key and lease.state != LeaseState.RELEASING:
                mine.setdefault(lease.user, lease)
        drawn = [lease for lease in mine.values() if lease.id not in found][: one.row.count]
        if one.is_reserved:
            found |= {lease.id: one.time.ends_at for lease in drawn if not lease.is_borrow}
    return found


# -- whose they are -----------------------------------------------------------------------------


@cached_on_instance
def _claimants(view: PoolView) -> dict[Key, list[TicketRow]]:
    """The tickets that may be served, by what they could draw on, oldest first.

    One person, one claim: who draws already, or waits twice, is not there again.
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


def claims(view: PoolView, one: InForce, but: Collection[int] = ()) -> list[TicketRow]:
    """The tickets that may draw on a reservation now, as many as it has left, oldest first.

    Args:
        view: the pool.
        one: the reservation.
        but: tickets that stand for another's slots.
    """
    mine = [ticket for ticket in _claimants(view).get(one.key, ()) if ticket.id not in but]
    return mine[: one.left]


@cached_on_instance
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


@cached_on_instance
def claimants_with_slot(view: PoolView) -> frozenset[int]:
    """The tickets for which a slot is reserved: they need no other hold."""
    return frozenset(ticket.id for _, mine in claimed_by(view) for ticket in mine)


def choose(view: PoolView, one: InForce) -> tuple[Choice, ...] | None:
    """Where its next lease goes: on one of its own slots, or beside what is reserved."""
    others, mine = _slots_beside(view, one)
    gpus = course_gpus_first(view.occupancies, one.row.course)
    wanted = profiles_of(one.row.shape)
    requests = sorted({slot.request for slot in mine}) or [NO_REQUEST]
    for later, request in product((_later(view, [one]), []), requests):
        shut = [*others, *later, *(slot for slot in mine if slot.request != request)]
        choices = place(wanted, without_reserved(gpus, places_by_gpu(shut)))
        if choices is not None:
            return choices
    return None


def _slots_beside(view: PoolView, one: InForce) -> tuple[list[Slot], tuple[Slot, ...]]:
    """The slots that this reservation's students may not use, and their own."""
    slots = slots_of(view)
    others = [slot for number, mine in slots.items() if number != one.row.id for slot in mine]
    return others, slots.get(one.row.id, ())


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

"""What reservations in force mean for the queue: who goes first, and which places are kept.

From the lead before its start to the end of its grace a reservation keeps a place for each lease
that its course has not yet drawn; nobody else gets a new lease there, and who runs there runs on.
From then to its end its students only go first.  A class that takes place goes before one that is
about to begin.  All of it follows from the ledger's rows and the clock, anew at every decision.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from miglab_pool.decisions import held_servers
from miglab_pool.decisions.reservations_in_force import InForce, in_force
from miglab_pool.gpu.geometry import Placed
from miglab_pool.model.gpu import Choice, Ground, Seat, own_first
from miglab_pool.model.memory import Kept, Memo
from miglab_pool.model.reservations import kept_until, profiles
from miglab_pool.model.rows import FULL, GpuRow, ReservationRow, TicketRow
from miglab_pool.rules.placement.placement import place
from miglab_pool.rules.reservation_seats import Spot, Wish, is_empty, keep_for, without
from miglab_pool.state.store import Store

NO_WISH = -1

# -- the places kept ----------------------------------------------------------------------------


def grounds(store: Store, at: float) -> list[Ground]:
    """Every GPU that can be cut, for those who draw on nothing: what is kept is closed to them."""
    return closed(store, at, store.grounds())


def closed(store: Store, at: float, found: list[Ground]) -> list[Ground]:
    """These GPUs without the places that are kept now."""
    seats = [seat for mine in _kept(store, _keeping(store, at)).values() for seat in mine]
    return _without(found, seats) if seats else found


def places_kept(store: Store, at: float) -> list[tuple[ReservationRow, Seat]]:
    """The places that are set aside now, each with the reservation it is for."""
    rows = store.state.reservations
    kept = _kept(store, _keeping(store, at))
    return [(rows[number], seat) for number, seats in kept.items() for seat in seats]


def kept_s(store: Store, at: float) -> float | None:
    """How long places are kept yet; None while none are."""
    ends = [kept_until(one.row, one.time) for one in _keeping(store, at)]
    return max(ends) - at if ends else None


def ready(store: Store, at: float, course: str, shape: str) -> int:
    """How many who ask now would find a place of their course's reservations empty."""
    mine = [
        (one, len(tickets))
        for one, tickets in seated_by(store, at)
        if (one.row.course, one.row.shape) == (course, shape)
    ]
    return sum(max(0, _count_ready(store, at, one) - claimed) for one, claimed in mine)


def _count_ready(store: Store, at: float, one: InForce) -> int:
    if one.row.shape == FULL:
        whole = len(free_whole(store, at, but=one)) - len(free_whole(store, at))
        return min(one.left, whole)
    _, mine = _seats_beside(store, at, one)
    states = {ground.state.gpu: ground.state for ground in store.grounds()}
    taken = {seat.wish for seat in mine if not is_empty(states[seat.gpu], seat.placed)}
    return len({seat.wish for seat in mine} - taken)


def _keeping(store: Store, at: float) -> list[InForce]:
    return [one for one in in_force(store, at) if one.is_kept and one.left]


def _kept(store: Store, keeping: Sequence[InForce]) -> Kept:
    """The seats of each reservation; a seat's wish is which of its leases it is for.

    Worked out anew when what is wanted or a GPU has changed (its ground is then another object).
    """
    if not keeping:
        return {}
    found = store.grounds()
    wanted = tuple((one.row.id, one.left) for one in keeping)
    before = store.kept
    if before is None or before.wanted != wanted or not _is_one(before.grounds, found):
        sliced = [one for one in keeping if one.row.shape != FULL]
        before = store.kept = Memo(wanted, found, _work_out(store, sliced, found))
    return before.kept


def _is_one(before: Sequence[Ground], now: Sequence[Ground]) -> bool:
    return len(before) == len(now) and all(
        one is other for one, other in zip(before, now, strict=True)
    )


def _work_out(store: Store, keeping: Sequence[InForce], found: Sequence[Ground]) -> Kept:
    rows = [one.row for one in keeping for _ in range(one.left)]
    wishes = [Wish(row.course, profiles(row.shape)) for row in rows]
    drawing = {(one.row.course, one.row.shape) for one in keeping}
    spots = [_spot(store, ground, drawing) for ground in found]
    kept: Kept = {one.row.id: () for one in keeping}
    for wish, seats in keep_for(wishes, spots).items():
        number = rows[wish].id
        kept[number] = (*kept[number], *seats)
    return kept


def _spot(store: Store, ground: Ground, drawing: Collection[tuple[str, str]]) -> Spot:
    leased: list[Placed] = []
    drawn: list[Placed] = []
    for row in store.state.on_gpu[ground.state.gpu].values():
        lease = store.state.leases.get(row.lease or 0)
        if lease is not None:
            kind = drawn if (lease.course, lease.shape) in drawing else leased
            kind.append(store.placed(row))
    return Spot(ground, tuple(leased), tuple(drawn))


def claims(store: Store, one: InForce, but: Collection[int] = ()) -> list[TicketRow]:
    """The tickets that may draw on a reservation now, as many as it has left, oldest first.

    Args:
        store: the pool.
        one: the reservation.
        but: tickets that stand for another's places.
    """
    held = held_servers.servers(store)
    found = [
        ticket
        for ticket in store.state.tickets.values()
        if ticket.is_queued
        and ticket.id not in but
        and (ticket.course, ticket.shape) == (one.row.course, one.row.shape)
        and (ticket.user, ticket.server) not in held
    ]
    return sorted(found, key=lambda ticket: (ticket.created_at, ticket.id))[: one.left]


def seated_by(store: Store, at: float) -> list[tuple[InForce, list[TicketRow]]]:
    """The reservations that keep places, each with the tickets for which it does: none twice."""
    found: list[tuple[InForce, list[TicketRow]]] = []
    seated: set[int] = set()
    for one in in_force(store, at):
        if one.is_kept:
            mine = claims(store, one, seated)
            seated.update(ticket.id for ticket in mine)
            found.append((one, mine))
    return found


def seated(store: Store, at: float) -> set[int]:
    """The tickets for whom a place is kept: no second one is set aside for them."""
    return {ticket.id for _, mine in seated_by(store, at) for ticket in mine}


def _choose(store: Store, at: float, one: InForce) -> tuple[Choice, ...] | None:
    """Where its next lease goes: on one of its own places, or beside what is kept."""
    others, mine = _seats_beside(store, at, one)
    found = own_first(store.grounds(), one.row.course)
    wanted = profiles(one.row.shape)
    for wish in sorted({seat.wish for seat in mine}) or [NO_WISH]:
        shut = [*others, *(seat for seat in mine if seat.wish != wish)]
        choices = place(wanted, [ground.state for ground in _without(found, shut)])
        if choices is not None:
            return choices
    return None


def _seats_beside(store: Store, at: float, one: InForce) -> tuple[list[Seat], tuple[Seat, ...]]:
    """What is kept from this reservation's students, and what for them."""
    keeping = _keeping(store, at)
    kept = _kept(store, keeping)
    others = [
        seat
        for other in keeping
        if other.row.id != one.row.id and (other.has_begun or not one.has_begun)
        for seat in kept.get(other.row.id, ())
    ]
    return others, kept.get(one.row.id, ())


def _without(grounds: Iterable[Ground], seats: Iterable[Seat]) -> list[Ground]:
    """The GPUs for those who may not use these seats."""
    shut: defaultdict[str, list[Placed]] = defaultdict(list)
    for seat in seats:
        shut[seat.gpu].append(seat.placed)
    return [without(ground, shut.get(ground.state.gpu, ())) for ground in grounds]


# -- whole GPUs ---------------------------------------------------------------------------------


def free_whole(
    store: Store, at: float, course: str = "", but: InForce | None = None
) -> list[GpuRow]:
    """The whole GPUs that a course may lease now, less those kept for others than ``but``.

    Its own come first: what is kept for others is kept among those for all.
    """
    free = [row for row in store.state.gpus.values() if store.whole_gpu(row)]
    keeping = _keeping(store, at) if free else []
    others = [
        one
        for one in keeping
        if one.row.shape == FULL and (but is None or one.row.id != but.row.id)
    ]
    own = [row for row in free if course and store.course_of(row) == course]
    for_all = [row for row in free if not store.course_of(row)]
    mine = sum(one.left for one in others if one.row.course == course)
    kept = _kept_for_all(store, free, others, course) + max(0, mine - len(own))
    return [*own[: max(0, len(own) - mine)], *for_all[: max(0, len(for_all) - kept)]]


def _kept_for_all(
    store: Store, free: Sequence[GpuRow], others: Sequence[InForce], course: str
) -> int:
    """How many whole GPUs other courses' reservations take beside those courses' own."""
    wanted = Counter[str]()
    for one in others:
        if one.row.course != course:
            wanted[one.row.course] += one.left
    owned = Counter(store.course_of(row) for row in free)
    return sum(max(0, number - owned[whose]) for whose, number in wanted.items())

"""What reservations in force mean for the queue: who goes first, and which places are kept.

From the lead before its start to the end of its grace a reservation keeps a place for each lease
that its course has not yet drawn; nobody else gets a new lease there, and who runs there runs on.
From then to its end its students only go first.  A class that takes place goes before one that is
about to begin.  All of it follows from the view.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from miglab_pool.gpu.geometry import Placed
from miglab_pool.model.gpu import Choice, GpuOccupancy, Seat, own_first
from miglab_pool.model.once import once
from miglab_pool.model.reservations import kept_until, profiles
from miglab_pool.model.rows import FULL, ReservationRow, TicketRow
from miglab_pool.rules.placement.placement import place
from miglab_pool.rules.reservation_seats import Spot, Wish, is_empty, keep_for, without
from miglab_pool.rules.reservations_in_force import InForce, Key
from miglab_pool.state.gpu_snapshot import GpuSnapshot
from miglab_pool.state.view import PoolView

Kept = dict[int, tuple[Seat, ...]]  # by reservation; a seat's wish is which of its leases it is for
NO_WISH = -1

# -- the places kept ----------------------------------------------------------------------------


@once
def open_gpus(view: PoolView) -> list[GpuOccupancy]:
    """Every GPU that can be cut, for those who draw on nothing: what is kept is closed to them."""
    return closed(view, view.occupancies)


def closed(view: PoolView, gpus: list[GpuOccupancy]) -> list[GpuOccupancy]:
    """These GPUs without the places that are kept now."""
    seats = [seat for mine in kept(view).values() for seat in mine]
    return _without(gpus, seats) if seats else gpus


def places_kept(view: PoolView) -> list[tuple[ReservationRow, Seat]]:
    """The places that are set aside now, each with the reservation it is for."""
    rows = view.reservations
    return [(rows[number], seat) for number, seats in kept(view).items() for seat in seats]


@once
def kept_s(view: PoolView) -> float | None:
    """How long places are kept yet; None while none are."""
    ends = [kept_until(one.row, one.time) for one in keeping(view)]
    return max(ends) - view.at if ends else None


def ready(view: PoolView, course: str, shape: str) -> int:
    """How many who ask now would find a place of their course's reservations empty."""
    mine = [(one, len(tickets)) for one, tickets in seated_by(view) if one.key == (course, shape)]
    return sum(max(0, _count_ready(view, one) - claimed) for one, claimed in mine)


def _count_ready(view: PoolView, one: InForce) -> int:
    if one.row.shape == FULL:
        return min(one.left, len(free_whole(view, but=one)) - len(free_whole(view)))
    _, mine = _seats_beside(view, one)
    gpus = {one.gpu: one for one in view.occupancies}
    taken = {seat.wish for seat in mine if not is_empty(gpus[seat.gpu], seat.placed)}
    return len({seat.wish for seat in mine} - taken)


@once
def keeping(view: PoolView) -> tuple[InForce, ...]:
    """The reservations that keep places now."""
    return tuple(one for one in view.reservations_in_force if one.is_kept and one.left)


@once
def kept(view: PoolView) -> Kept:
    """The seats of each reservation that keeps any."""
    wanted = keeping(view)
    if not wanted:
        return {}
    numbers = tuple((one.row.id, one.key, one.left) for one in wanted)
    return _seats_for(numbers, tuple(gpu for gpu in view.gpus.values() if gpu.occupancy))


@lru_cache(maxsize=4)
def _seats_for(wanted: tuple[tuple[int, Key, int], ...], gpus: tuple[GpuSnapshot, ...]) -> Kept:
    """Worked out anew when what is wanted or a GPU has changed: it is then another snapshot."""
    sliced = [one for one in wanted if one[1][1] != FULL]
    drawing = {key for _, key, _ in sliced}
    spots = [_spot(gpu, drawing) for gpu in gpus]
    leases = [(number, key) for number, key, left in sliced for _ in range(left)]
    wishes = [Wish(course, profiles(shape)) for _, (course, shape) in leases]
    seats: Kept = {number: () for number, _, _ in sliced}
    for wish, mine in keep_for(wishes, spots).items():
        number = leases[wish][0]
        seats[number] = (*seats[number], *mine)
    return seats


def _spot(gpu: GpuSnapshot, drawing: Collection[Key]) -> Spot:
    assert gpu.occupancy is not None
    leased: list[Placed] = []
    drawn: list[Placed] = []
    for row in gpu.slices:
        lease = gpu.facts.leases.get(row.lease or 0)
        if lease is not None:
            kind = drawn if (lease.course, lease.shape) in drawing else leased
            kind.append(gpu.facts.placed(row))
    return Spot(gpu.occupancy, tuple(leased), tuple(drawn))


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
        but: tickets that stand for another's places.
    """
    mine = [ticket for ticket in _claimants(view).get(one.key, ()) if ticket.id not in but]
    return mine[: one.left]


@once
def seated_by(view: PoolView) -> list[tuple[InForce, list[TicketRow]]]:
    """The reservations that keep places, each with the tickets for which it does: none twice."""
    reserved: list[tuple[InForce, list[TicketRow]]] = []
    seated: set[int] = set()
    for one in view.reservations_in_force:
        if one.is_kept:
            mine = claims(view, one, seated)
            seated.update(ticket.id for ticket in mine)
            reserved.append((one, mine))
    return reserved


@once
def seated(view: PoolView) -> frozenset[int]:
    """The tickets for whom a place is kept: no second one is set aside for them."""
    return frozenset(ticket.id for _, mine in seated_by(view) for ticket in mine)


def choose(view: PoolView, one: InForce) -> tuple[Choice, ...] | None:
    """Where its next lease goes: on one of its own places, or beside what is kept."""
    others, mine = _seats_beside(view, one)
    gpus = own_first(view.occupancies, one.row.course)
    wanted = profiles(one.row.shape)
    for wish in sorted({seat.wish for seat in mine}) or [NO_WISH]:
        shut = [*others, *(seat for seat in mine if seat.wish != wish)]
        choices = place(wanted, _without(gpus, shut))
        if choices is not None:
            return choices
    return None


def _seats_beside(view: PoolView, one: InForce) -> tuple[list[Seat], tuple[Seat, ...]]:
    """What is kept from this reservation's students, and what for them."""
    seats = kept(view)
    others = [
        seat
        for other in keeping(view)
        if other.row.id != one.row.id and (other.has_begun or not one.has_begun)
        for seat in seats.get(other.row.id, ())
    ]
    return others, seats.get(one.row.id, ())


def _without(gpus: Iterable[GpuOccupancy], seats: Iterable[Seat]) -> list[GpuOccupancy]:
    """The GPUs for those who may not use these seats."""
    shut: defaultdict[str, list[Placed]] = defaultdict(list)
    for seat in seats:
        shut[seat.gpu].append(seat.placed)
    return [without(one, shut.get(one.gpu, ())) for one in gpus]


# -- whole GPUs ---------------------------------------------------------------------------------


def free_whole(view: PoolView, course: str = "", but: InForce | None = None) -> list[GpuSnapshot]:
    """The whole GPUs that a course may lease now, less those kept for others than ``but``.

    Its own come first: what is kept for others is kept among those for all.
    """
    free = [gpu for gpu in view.gpus.values() if gpu.is_free_whole]
    others = [
        one
        for one in (keeping(view) if free else ())
        if one.row.shape == FULL and (but is None or one.row.id != but.row.id)
    ]
    own = [gpu for gpu in free if course and gpu.course == course]
    for_all = [gpu for gpu in free if not gpu.course]
    mine = sum(one.left for one in others if one.row.course == course)
    taken = _kept_for_all(free, others, course) + max(0, mine - len(own))
    return [*own[: max(0, len(own) - mine)], *for_all[: max(0, len(for_all) - taken)]]


def _kept_for_all(free: Sequence[GpuSnapshot], others: Sequence[InForce], course: str) -> int:
    """How many whole GPUs other courses' reservations take beside those courses' own."""
    wanted = Counter[str]()
    for one in others:
        if one.row.course != course:
            wanted[one.row.course] += one.left
    owned = Counter(gpu.course for gpu in free)
    return sum(max(0, number - owned[whose]) for whose, number in wanted.items())

"""Who waits for what a lease would free, and which open leases end because of it.  Reads only.

A ticket waits for a lease if one of its slices could lie where the lease's slices lie now, beside
everything else that is leased; and the first in the queue, if its hold lies there.  So does a class
whose reservation has a slot there: it counts as one more.  It is worked out once for all leases.

A need is the first ticket in the queue's order that nothing free serves and whose student is there
(`waste` says more), and a slot that is reserved now.  For one need the fewest open leases end that
make room: of equally few those that are idle longest, then those that are open longest.  What ends
anyway, and who is warned for a need already, costs nothing: so nobody else is warned until it is
served, and who is not named any more keeps the lease.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from miglab_api.leases import LeaseState, WarningKind
from miglab_api.wording import clock_time
from miglab_pool.gpu.geometry import occupied_mask
from miglab_pool.gpu.shapes import profiles
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow, SliceRow, TicketRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.waste import may_end_leases
from miglab_pool.reservations import slots
from miglab_pool.state.placement import Kept, by_gpu, own_first, place
from miglab_pool.state.view import GpuSnapshot, PoolView, once

LOST = (
    "Documents open in JupyterLab are saved; what is in memory and what still runs are lost. Your "
    "server goes on without a GPU."
)
TRIED = 32  # of the places of a shape's first slice; those of the others follow from it
WHOLE = {FULL: (1,)}

_Numbers = frozenset[int]
Rank = Callable[[_Numbers], tuple[int, int, list[int]]]


@dataclass(frozen=True)
class SliceNeed:
    """Slices that somebody is to have now.

    Attributes:
        course: whose.
        profiles: of each slice.
        reason: who needs them, in words for those whose leases end.
    """

    course: str
    profiles: Sequence[str]
    reason: str


@dataclass
class _Ground:
    """One GPU while room is looked for.

    Attributes:
        places: where each profile may lie, as `Placed.bits`.
        course: the only course that gets leases there; empty: every course.
        taken: what does not become free, as bits.
        open: the open leases that lie there, each with its bits.
    """

    places: Mapping[str, Sequence[int]]
    course: str
    taken: int = 0
    open: list[tuple[int, LeaseRow]] = field(default_factory=list)


_Option = tuple[_Numbers, _Ground, int]


def needs(view: PoolView) -> list[SliceNeed]:
    """Who needs slices now that are not free; nobody while nothing is granted."""
    if view.paused:
        return []
    found = [
        SliceNeed(one.row.course, (FULL,), _for_reservation(view, one.row, one.time.starts_at))
        for one in slots.reserving(view)
        if one.row.shape == FULL
        for _ in range(one.left - len(slots.free_whole(view, one.row.course, one)))
    ]
    ticket = next((t for t in _without_room(view) if may_end_leases(view, t)), None)
    if ticket is None:
        return found
    reason = f"The first in the queue needs room for {ticket.shape}, and nothing else is free."
    return [*found, SliceNeed(ticket.course, profiles(ticket.shape), reason)]


def _without_room(view: PoolView) -> Iterator[TicketRow]:
    """The tickets that nothing free serves, first in front."""
    has_slot = slots.claimants_with_slot(view)
    gpus = slots.open_gpus(view)
    for waiting in queue.served(view):
        ticket = view.tickets[waiting.ticket]
        is_free = (
            bool(slots.free_whole(view, ticket.course))
            if ticket.shape == FULL
            else place(waiting.profiles, own_first(gpus, ticket.course)) is not None
        )
        if ticket.id not in has_slot and not is_free:
            yield ticket


def is_made_room_for(view: PoolView, ticket: TicketRow) -> bool:
    """Whether slices are granted to a ticket, or an open lease is ending for it."""
    if ticket.lease is not None:
        return True
    is_ending = any(
        lease.state == LeaseState.RELEASING and lease.warn_kind == WarningKind.NEEDED
        for lease in view.leases.values()
    )
    first = next(_without_room(view), None) if is_ending else None
    return first is not None and first.id == ticket.id  # there or not by now


def ending(view: PoolView, idle_s: Mapping[int, float]) -> dict[int, str]:
    """The open leases that end for somebody, and why, in words for their holders.

    Args:
        view: the pool.
        idle_s: for how long each lease has been idle; one that is not named is not.
    """
    warning_s = view.settings.reclaim.warning_s
    if not any(_is_open(view, lease, warning_s) for lease in view.leases.values()):
        return {}
    on_slots = _on_slots(view)
    found, wanted = {number: f"{why} {LOST}" for number, why in on_slots.items()}, needs(view)
    grounds = list(_grounds(view)) if wanted else []
    rank = _rank(view, idle_s)
    gone = frozenset(found)
    for need in wanted:
        own = sorted(
            (one for one in grounds if one.course in ("", need.course)),
            key=lambda one: one.course != need.course,
        )
        room = _room(need.profiles, own, gone, rank)
        for number in (room or gone) - gone:
            found[number] = f"{need.reason} {LOST}"
        gone |= room or gone
    return found


def _on_slots(view: PoolView) -> dict[int, str]:
    """The leases on slots that are reserved now that are open before a warning is over.

    So whose guarantee ends just before the class is warned in time, and loses nothing of it.
    """
    found: dict[int, str] = {}
    starts = {one.row.id: one.time.starts_at for one in slots.reserving(view)}
    warning_s = view.settings.reclaim.warning_s
    for row, slot in () if view.paused else slots.slots_with_reservation(view):
        for item in view.gpus[slot.gpu].slices:
            lease = view.leases.get(item.lease or 0)
            lies_there = view.placed(item).bits & slot.placed.bits
            if lease and lies_there and _is_open(view, lease, warning_s):
                found[lease.id] = _for_reservation(view, row, starts[row.id])
    return found


def _for_reservation(view: PoolView, row: ReservationRow, starts_at: float) -> str:
    title = view.settings.courses[row.course].title if row.course in view.settings.courses else ""
    return f"It is reserved for {title or row.course} from {clock_time(starts_at, row.tz)} on."


# -- room -----------------------------------------------------------------------------------------


def _is_open(view: PoolView, lease: LeaseRow, ahead_s: float = 0.0) -> bool:
    """Whether it ends if somebody needs it so long from now; what is borrowed ends by itself."""
    is_used = lease.is_in_use and not lease.is_borrow
    return is_used and lease.is_open_at(view.at + ahead_s) and not _goes(view, lease)


def _goes(view: PoolView, lease: LeaseRow) -> bool:
    """Whether it ends no later than one that is warned now would."""
    if lease.state == LeaseState.RELEASING:
        return True
    by = view.at + view.settings.reclaim.warning_s
    is_warned = lease.reclaim_at is not None and lease.warn_kind != WarningKind.NEEDED
    return is_warned and (lease.reclaim_at or 0.0) <= by


def _grounds(view: PoolView) -> Iterator[_Ground]:
    shut: dict[str, int] = {}
    for _, slot in slots.slots_with_reservation(view):
        shut[slot.gpu] = shut.get(slot.gpu, 0) | slot.placed.bits
    for gpu in view.gpus.values():
        if not gpu.is_open or gpu.has_lost:
            continue
        if gpu.is_whole:
            yield _filled(view, gpu, _Ground(WHOLE, gpu.course))
        elif gpu.geometry is not None:
            of_profiles = gpu.geometry.placements.items()
            places = {name: [bits for bits, _ in found] for name, found in of_profiles}
            yield _filled(view, gpu, _Ground(places, gpu.course, shut.get(gpu.uuid, 0)))


def _filled(view: PoolView, gpu: GpuSnapshot, ground: _Ground) -> _Ground:
    """The ground with what lies on its GPU and does not end anyway."""
    is_promised = any(one.row.shape == FULL for one in slots.reserving(view)) and gpu.is_whole
    ahead_s = view.settings.reclaim.warning_s if is_promised else 0.0
    for row in gpu.slices:
        lease = view.leases.get(row.lease or 0)
        bits = 1 if row.profile == FULL else view.placed(row).bits
        if lease is not None and _is_open(view, lease, ahead_s) and not row.is_fixed:
            ground.open.append((bits, lease))
        elif row.is_fixed or (lease is not None and not _goes(view, lease)):
            ground.taken |= bits
    return ground


def _rank(view: PoolView, idle_s: Mapping[int, float]) -> Rank:
    """What ending leases costs: how many are warned anew, how many end, and which."""
    rows = sorted(
        view.leases.values(),
        key=lambda row: (-idle_s.get(row.id, 0.0), row.guaranteed_until, row.id),
    )
    turn = {row.id: number for number, row in enumerate(rows)}
    warned = {row.id for row in rows if row.warn_kind == WarningKind.NEEDED}
    return lambda leases: (len(leases - warned), len(leases), sorted(turn[one] for one in leases))


def _room(
    names: Sequence[str], grounds: Sequence[_Ground], gone: _Numbers, rank: Rank, tried: int = TRIED
) -> _Numbers | None:
    """The leases that end so that all of these profiles have room; None if they cannot.

    Each place of the first slice is tried, and those of the others are the best beside it.
    """
    if not names:
        return gone
    options = sorted(_options(names[0], grounds, gone), key=lambda option: rank(option[0]))
    rooms = []
    for leases, ground, bits in options[:tried]:
        ground.taken ^= bits
        room = _room(names[1:], grounds, leases, rank, 1)
        ground.taken ^= bits
        if room is not None:
            rooms.append(room)
        if len(names) == 1:
            break
    return min(rooms, key=rank, default=None)


def _options(name: str, grounds: Iterable[_Ground], gone: _Numbers) -> Iterator[_Option]:
    """Where a slice could lie, and which leases are gone then."""
    for ground in grounds:
        for bits in ground.places.get(name, ()):
            if not bits & ground.taken:
                on_it = {lease.id for held, lease in ground.open if held & bits}
                yield gone | on_it, ground, bits


# -- who waits for a lease ------------------------------------------------------------------------


class Demand(NamedTuple):
    """What is waited for.

    Attributes:
        wanted: who waits, how often, by profiles and course.
        names: the profiles that are waited for.
        first: who is the first in the queue.
        held: the memory slices of what is held for the first, by GPU, as bits.
        reserved: those of the reserved slots.
    """

    wanted: Mapping[tuple[tuple[str, ...], str], Counter[str]]
    names: frozenset[str]
    first: str
    held: Mapping[str, int]
    reserved: Mapping[str, int]


@once
def demand(view: PoolView) -> Demand:
    """What is waited for now."""
    served = () if view.paused else queue.served(view)
    wanted: defaultdict[tuple[tuple[str, ...], str], Counter[str]] = defaultdict(Counter)
    for one in served:
        wanted[one.profiles, one.course][one.user] += 1
    first = next((one for one in served if one.profiles != (FULL,)), None)
    reserved = (slot for _, slot in slots.slots_with_reservation(view))
    return Demand(
        wanted,
        frozenset(name for names, _ in wanted for name in names),
        first.user if first else "",
        _masks(queue.hold_for(first, view.occupancies)),
        _masks(by_gpu(reserved)),
    )


def _masks(kept: Kept) -> dict[str, int]:
    return {gpu: occupied_mask(tuple(places)) for gpu, places in kept.items()}


def others_waiting(view: PoolView, lease: LeaseRow) -> int:
    """How many tickets of other users wait for what this lease would free."""
    asked, rows = demand(view), view.slices_of(lease)
    if not lease.is_held or not (asked.wanted or asked.reserved):
        return 0
    rooms = [(view.gpus[row.gpu].course, _names_there(view, row, rows, asked)) for row in rows]
    count = sum(
        users.total() - users[lease.user]
        for (names, course), users in asked.wanted.items()
        if any(whose in ("", course) and not there.isdisjoint(names) for whose, there in rooms)
    )
    is_first = asked.first not in ("", lease.user) and _any(asked.held, rows)
    return max(count, int(is_first)) + int(_any(asked.reserved, rows))


def _names_there(
    view: PoolView, row: SliceRow, freed: Sequence[SliceRow], asked: Demand
) -> frozenset[str]:
    """The profiles waited for that could lie where a slice does, all of its lease freed."""
    occupancy = view.gpus[row.gpu].occupancy
    if row.profile == FULL or occupancy is None or not occupancy.usable:
        return frozenset({FULL} if row.profile == FULL else ())
    mine = {view.placed(one).bits for one in freed if one.gpu == row.gpu}
    taken = 0
    for bits in _live_bits(view.gpus[row.gpu]) - mine:
        taken |= bits
    places, mask = occupancy.geometry.placements, _mask(row)
    return frozenset(
        name
        for name in asked.names
        if any(bits & mask and not bits & taken for bits, _ in places.get(name, ()))
    )


@once
def _live_bits(gpu: GpuSnapshot) -> frozenset[int]:
    """What cannot be used of a GPU, as `Placed.bits`."""
    return frozenset(item.bits for item in gpu.occupancy.live) if gpu.occupancy else frozenset()


def _any(held: Mapping[str, int], rows: Iterable[SliceRow]) -> bool:
    """Whether anything of what is kept lies where these slices are."""
    return any(held.get(row.gpu, 0) & _mask(row) for row in rows)


def _mask(row: SliceRow) -> int:
    return ((1 << row.size) - 1) << row.start

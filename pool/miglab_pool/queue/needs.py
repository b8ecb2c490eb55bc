"""Needs: who waits for what a lease would free, and which open leases end for it.  Reads only.

A ticket waits for a lease if one of its slices could lie where the lease's slices lie now, beside
everything else that is leased.  The first in the queue also waits for it if its hold lies there,
and a class if its reservation has a slot there; the class counts as one.

A need is the first ticket in the queue's order that nothing free serves and whose student is there
(see `wasteful_students`), or a slot that is reserved now.  For a need, the fewest open leases end
that make room: of equally few those that are idle longest, then those that are open longest.
Leases that end anyway or are warned for a need already cost nothing.  So no further holder is
warned until the need is met, and a holder whose lease is no longer chosen keeps it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from miglab_api.leases import WITHDRAWABLE, LeaseState, WarningKind
from miglab_api.wording import clock_time
from miglab_pool.gpu.geometry import occupied_mask
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, LeaseRow, ReservationRow, SliceRow, TicketRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.wasteful_students import may_end_leases
from miglab_pool.reservations import slots
from miglab_pool.state.placement import PlacementsByGpu, course_gpus_first, place, places_by_gpu
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

LOST = (
    "Documents open in JupyterLab are saved; what is in memory and what still runs are lost. Your "
    "server goes on without a GPU."
)
MOST_TRIED = 32  # placements of a shape's first slice; those of the others follow from it
WHOLE = {FULL: (1,)}

_LeaseIds = frozenset[int]
EndingCost = Callable[[_LeaseIds], tuple[int, int, list[int]]]


@dataclass(frozen=True)
class SliceNeed:
    """Slices that a ticket or a reservation is to have now.

    Attributes:
        course: the course that gets them.
        profiles: the profile of each slice.
        reason: who needs them, in words for the holders of the leases that end.
    """

    course: str
    profiles: Sequence[str]
    reason: str


@dataclass
class _GpuRoom:
    """The room on one GPU while leases to end are chosen.

    Attributes:
        places: where each profile may lie, as `ProfilePlacement.bits`.
        course: the only course that gets leases there; empty: every course.
        occupied: what does not become free, as bits.
        open: the open leases on the GPU, each with its bits.
    """

    places: Mapping[str, Sequence[int]]
    course: str
    occupied: int = 0
    open: list[tuple[int, LeaseRow]] = field(default_factory=list)


_PlacementOption = tuple[_LeaseIds, _GpuRoom, int]


def slice_needs(view: PoolView) -> list[SliceNeed]:
    """Return the needs that no free slices meet now; none while grants are paused."""
    if view.paused:
        return []
    needs = _whole_gpu_needs(view)
    ticket = next((row for row in _tickets_without_room(view) if may_end_leases(view, row)), None)
    if ticket is None:
        return needs
    reason = f"The first in the queue needs room for {ticket.shape}, and nothing else is free."
    return [*needs, SliceNeed(ticket.course, profiles_of(ticket.shape), reason)]


def _tickets_without_room(view: PoolView) -> Iterator[TicketRow]:
    """Yield the tickets that no free slices serve, in queue order."""
    has_slot = slots.claimants_with_slot(view)
    gpus = slots.open_gpus(view)
    for waiting in queue.servable_tickets(view):
        ticket = view.tickets[waiting.id]
        is_free = (
            bool(slots.free_whole_gpus(view, ticket.course))
            if ticket.shape == FULL
            else place(waiting.profiles, course_gpus_first(gpus, ticket.course)) is not None
        )
        if ticket.id not in has_slot and not is_free:
            yield ticket


def is_made_room_for(view: PoolView, ticket: TicketRow) -> bool:
    """Return whether slices are granted to a ticket, or an open lease is ending for it."""
    if ticket.lease is not None:
        return True
    is_ending = any(
        lease.state == LeaseState.RELEASING and lease.warn_kind == WarningKind.NEEDED
        for lease in view.leases.values()
    )
    first = next(_tickets_without_room(view), None) if is_ending else None
    return first is not None and first.id == ticket.id  # there or not by now


def _whole_gpu_needs(view: PoolView) -> list[SliceNeed]:
    """Return a need for each whole GPU that a reservation in force still lacks."""
    return [
        SliceNeed(row.course, (FULL,), _reservation_reason(view, row, reservation.time.starts_at))
        for reservation in slots.reservations_with_slots(view)
        if (row := reservation.row).shape == FULL
        for _ in range(
            reservation.undrawn - len(slots.free_whole_gpus(view, row.course, reservation))
        )
    ]


def leases_to_end(view: PoolView, idle_s: Mapping[int, float]) -> dict[int, str]:
    """Choose the open leases that end for a need; return why each ends, for its holder.

    Args:
        view: the pool.
        idle_s: for how long each lease has been idle; one that is not named is not.
    """
    warning_s = view.settings.reclaim.warning_s
    if not any(_is_open(view, lease, warning_s) for lease in view.leases.values()):
        return {}
    on_slots = _leases_on_reserved_slots(view)
    reasons = {number: f"{reason} {LOST}" for number, reason in on_slots.items()}
    needs = slice_needs(view)
    gpu_rooms = list(_gpu_rooms(view)) if needs else []
    rank = _ending_cost(view, idle_s)
    ending = frozenset(reasons)
    for need in needs:
        rooms = sorted(
            (room for room in gpu_rooms if room.course in ("", need.course)),
            key=lambda room: room.course != need.course,
        )
        leases = _make_room(need.profiles, rooms, ending, rank)
        for number in (leases or ending) - ending:
            reasons[number] = f"{need.reason} {LOST}"
        ending |= leases or ending
    return reasons


def _leases_on_reserved_slots(view: PoolView) -> dict[int, str]:
    """Return the leases on reserved slots that are open when a warning given now is over.

    Holders whose guarantee ends just before the class are thus warned in time, and keep their
    lease to the end of the guarantee.
    """
    reasons: dict[int, str] = {}
    starts = {
        reservation.row.id: reservation.time.starts_at
        for reservation in slots.reservations_with_slots(view)
    }
    warning_s = view.settings.reclaim.warning_s
    for reservation, slot in () if view.paused else slots.slots_with_reservation(view):
        for row in view.gpus[slot.gpu].slices:
            lease = view.leases.get(row.lease or 0)
            lies_there = view.placement_of(row).bits & slot.placed_slice.bits
            if lease and lies_there and _is_open(view, lease, warning_s):
                starts_at = starts[reservation.id]
                reasons[lease.id] = _reservation_reason(view, reservation, starts_at)
    return reasons


def _reservation_reason(view: PoolView, row: ReservationRow, starts_at: float) -> str:
    title = view.settings.courses[row.course].title if row.course in view.settings.courses else ""
    return f"It is reserved for {title or row.course} from {clock_time(starts_at, row.tz)} on."


# -- room -----------------------------------------------------------------------------------------


def _is_open(view: PoolView, lease: LeaseRow, ahead_s: float = 0.0) -> bool:
    """Whether a lease will be open so long from now; a borrowed slice never counts as open."""
    is_used = lease.is_in_use and not lease.is_borrow
    return is_used and lease.is_open_at(view.at + ahead_s) and not _ends_anyway(view, lease)


def _ends_anyway(view: PoolView, lease: LeaseRow) -> bool:
    """Whether a lease ends no later than one that is warned now would."""
    if lease.state == LeaseState.RELEASING:
        return True
    warned_now_end_at = view.at + view.settings.reclaim.warning_s
    is_warned = lease.reclaim_at is not None and lease.warn_kind not in WITHDRAWABLE
    return is_warned and (lease.reclaim_at or 0.0) <= warned_now_end_at


def _gpu_rooms(view: PoolView) -> Iterator[_GpuRoom]:
    """Yield the room on each GPU that takes leases."""
    reserved_bits: dict[str, int] = {}
    for _, slot in slots.slots_with_reservation(view):
        reserved_bits[slot.gpu] = reserved_bits.get(slot.gpu, 0) | slot.placed_slice.bits
    for gpu in view.gpus.values():
        if not gpu.is_open or gpu.has_lost:
            continue
        if gpu.is_whole:
            yield _with_leases(view, gpu, _GpuRoom(WHOLE, gpu.course))
        elif gpu.geometry is not None:
            places = {
                name: [bits for bits, _ in placements]
                for name, placements in gpu.geometry.placements.items()
            }
            room = _GpuRoom(places, gpu.course, reserved_bits.get(gpu.uuid, 0))
            yield _with_leases(view, gpu, room)


def _with_leases(view: PoolView, gpu: GpuSnapshot, room: _GpuRoom) -> _GpuRoom:
    """Add the open leases on a GPU to its room, and the bits of what does not become free."""
    reserves_whole = any(
        reservation.row.shape == FULL for reservation in slots.reservations_with_slots(view)
    )
    is_promised = gpu.is_whole and reserves_whole
    ahead_s = view.settings.reclaim.warning_s if is_promised else 0.0
    for row in gpu.slices:
        lease = view.leases.get(row.lease or 0)
        bits = 1 if row.profile == FULL else view.placement_of(row).bits
        if lease is not None and _is_open(view, lease, ahead_s) and not row.is_fixed:
            room.open.append((bits, lease))
        elif row.is_fixed or (lease is not None and not _ends_anyway(view, lease)):
            room.occupied |= bits
    return room


def _ending_cost(view: PoolView, idle_s: Mapping[int, float]) -> EndingCost:
    """Return the cost of ending leases: how many are warned anew, how many end, and which."""
    rows = sorted(
        view.leases.values(),
        key=lambda row: (-idle_s.get(row.id, 0.0), row.guaranteed_until, row.id),
    )
    turn = {row.id: number for number, row in enumerate(rows)}
    warned = {row.id for row in rows if row.warn_kind == WarningKind.NEEDED}
    return lambda leases: (len(leases - warned), len(leases), sorted(turn[i] for i in leases))


def _make_room(
    names: Sequence[str],
    gpu_rooms: Sequence[_GpuRoom],
    ending: _LeaseIds,
    rank: EndingCost,
    most_tried: int = MOST_TRIED,
) -> _LeaseIds | None:
    """Choose the leases to end so that all of these profiles have room; None if none suffice.

    Each placement of the first slice is tried; the others take the best placement beside it.
    """
    if not names:
        return ending
    options = sorted(
        _placement_options(names[0], gpu_rooms, ending), key=lambda option: rank(option[0])
    )
    ways = []
    for leases, gpu_room, bits in options[:most_tried]:
        gpu_room.occupied ^= bits
        ending_then = _make_room(names[1:], gpu_rooms, leases, rank, 1)
        gpu_room.occupied ^= bits
        if ending_then is not None:
            ways.append(ending_then)
        if len(names) == 1:
            break
    return min(ways, key=rank, default=None)


def _placement_options(
    name: str, gpu_rooms: Iterable[_GpuRoom], ending: _LeaseIds
) -> Iterator[_PlacementOption]:
    """Yield where a slice could lie, and which leases have to end for it."""
    for gpu_room in gpu_rooms:
        for bits in gpu_room.places.get(name, ()):
            if not bits & gpu_room.occupied:
                ending_there = {
                    lease.id for lease_bits, lease in gpu_room.open if lease_bits & bits
                }
                yield ending | ending_there, gpu_room, bits


# -- who waits for a lease ------------------------------------------------------------------------


class Demand(NamedTuple):
    """What waiting tickets and reservations ask for.

    Attributes:
        requests: how many tickets each user has waiting, by profiles and course.
        names: the profiles that tickets wait for.
        first: the user whose ticket is first in the queue.
        hold_bits: the memory slices held for the first ticket, by GPU, as bits.
        reserved_bits: the memory slices of the reserved slots, by GPU, as bits.
    """

    requests: Mapping[tuple[tuple[str, ...], str], Counter[str]]
    names: frozenset[str]
    first: str
    hold_bits: Mapping[str, int]
    reserved_bits: Mapping[str, int]


@cached_on_instance
def demand(view: PoolView) -> Demand:
    """Return what waiting tickets and reservations ask for now."""
    tickets = () if view.paused else queue.servable_tickets(view)
    requests: defaultdict[tuple[tuple[str, ...], str], Counter[str]] = defaultdict(Counter)
    for ticket in tickets:
        requests[ticket.profiles, ticket.course][ticket.user] += 1
    first = next((ticket for ticket in tickets if ticket.profiles != (FULL,)), None)
    reserved_slots = (slot for _, slot in slots.slots_with_reservation(view))
    return Demand(
        requests,
        frozenset(name for names, _ in requests for name in names),
        first.user if first else "",
        {} if first is None else _masks(queue.hold_for(first, view.occupancies)),
        _masks(places_by_gpu(reserved_slots)),
    )


def _masks(placements: PlacementsByGpu) -> dict[str, int]:
    return {gpu: occupied_mask(tuple(places)) for gpu, places in placements.items()}


def others_waiting(view: PoolView, lease: LeaseRow) -> int:
    """Return how many tickets of other users wait for what this lease would free."""
    if not lease.is_held:
        return 0
    demanded, rows = demand(view), view.slices_of(lease)
    if not (demanded.requests or demanded.reserved_bits):
        return 0
    wanted_on_slices = [
        (view.gpus[row.gpu].course, _wanted_profiles_on(view, row, rows, demanded)) for row in rows
    ]
    count = sum(
        users.total() - users[lease.user]
        for (names, course), users in demanded.requests.items()
        if any(
            owner in ("", course) and not wanted_profiles.isdisjoint(names)
            for owner, wanted_profiles in wanted_on_slices
        )
    )
    is_first = demanded.first not in ("", lease.user) and _overlap(demanded.hold_bits, rows)
    return max(count, int(is_first)) + int(_overlap(demanded.reserved_bits, rows))


def _wanted_profiles_on(
    view: PoolView, row: SliceRow, freed: Sequence[SliceRow], demanded: Demand
) -> frozenset[str]:
    """Return the wanted profiles that could lie where a slice does, once its lease is over."""
    occupancy = view.gpus[row.gpu].occupancy
    if row.profile == FULL or occupancy is None or not occupancy.usable:
        return frozenset({FULL} if row.profile == FULL else ())
    freed_bits = {
        view.placement_of(slice_row).bits for slice_row in freed if slice_row.gpu == row.gpu
    }
    leased_bits = 0
    for bits in _live_bits(view.gpus[row.gpu]) - freed_bits:
        leased_bits |= bits
    places, mask = occupancy.geometry.placements, _mask(row)
    return frozenset(
        name
        for name in demanded.names
        if any(bits & mask and not bits & leased_bits for bits, _ in places.get(name, ()))
    )


@cached_on_instance
def _live_bits(gpu: GpuSnapshot) -> frozenset[int]:
    """Return what is in use on a GPU, as `ProfilePlacement.bits`."""
    return (
        frozenset(placement.bits for placement in gpu.occupancy.live)
        if gpu.occupancy
        else frozenset()
    )


def _overlap(kept_bits: Mapping[str, int], rows: Iterable[SliceRow]) -> bool:
    """Whether a hold or reserved slot lies where one of these slices is."""
    return any(kept_bits.get(row.gpu, 0) & _mask(row) for row in rows)


def _mask(row: SliceRow) -> int:
    return ((1 << row.size) - 1) << row.start

"""The queue as it stands: its order, why a ticket waits, and who is granted next.  Reads only.

When the first in the queue does not fit now, the room that is free soonest by the ends that are set
is held for it.  Those behind may start, in order, outside of it: a big shape is not starved, and no
slice idles that the first in the queue could not use anyway.

What a course's quota means for its waiting tickets is here too, and when a ticket expires or leaves
the queue for a while.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Geometry, ProfilePlacement
from miglab_pool.gpu.shapes import profiles_of
from miglab_pool.ledger.rows import FULL, TicketRow
from miglab_pool.queue.quotas import (
    Limit,
    Quotas,
    SliceClaim,
    applying_limits,
    blocking_limit,
    guarantee_from_grant_s,
    offer_s,
)
from miglab_pool.queue.rules import GRAIN_H, Grant, WaitingTicket, queue_order
from miglab_pool.queue.wasteful_students import WHY as WHY_WASTED
from miglab_pool.queue.wasteful_students import has_wasted_much
from miglab_pool.reservations import guarantees, slots
from miglab_pool.settings import PoolSettings
from miglab_pool.state.fair_share import FairShareUsage, LeaseUse
from miglab_pool.state.placement import (
    WITHIN_SECONDS,
    Choice,
    GpuOccupancy,
    PlacementsByGpu,
    clash,
    course_gpus_first,
    place,
    usable_by_course,
    without_reserved,
)
from miglab_pool.state.view import PoolView, cached_on_instance

_CourseAndKey = tuple[str, tuple[str, str] | None]
ANSWER_S = 600.0  # for the answer to whether one still waits
ASIDE_S = 12 * 3600.0


def within_quotas(view: PoolView, queued: Iterable[WaitingTicket]) -> Iterator[WaitingTicket]:
    """Yield the tickets that stay within their course's quota if they are served in this order.

    Each yielded ticket counts against its course's quota for those that follow.
    """
    if not _shared_quotas(view):
        yield from queued
        return
    uses = list(view.lease_uses.live)
    for ticket in queued:
        if _blocking_quota(view, ticket, uses) is None:
            uses.append(use_if_granted(view, ticket))
            yield ticket


def _blocking_quota(
    view: PoolView, ticket: WaitingTicket, uses: Iterable[LeaseUse]
) -> Limit | None:
    """Return the course's quota that keeps a ticket waiting; None if only room does."""
    if not (quotas := _shared_quotas(view)):
        return None
    claim = SliceClaim(ticket.user, ticket.course, view.tickets[ticket.id].server, ticket.size)
    return blocking_limit(applying_limits(quotas, claim, uses, view.at), claim)


def quota_wait_reason(view: PoolView, row: TicketRow) -> str:
    """Return the wait reason of a ticket that its course's quota blocks; empty if none does."""
    if not _shared_quotas(view):
        return ""
    limit = _blocking_quota(view, to_waiting_ticket(view, row), view.lease_uses.live)
    if limit is None:
        return ""
    return (
        f"Your course holds {limit.used:g} of the {limit.maximum:g} memory slices that it may hold "
        f"at a time (quota “{limit.name}”): you are served when one of its leases ends."
    )


@cached_on_instance
def _shared_quotas(view: PoolView) -> Quotas:
    """Return the quotas on the memory slices that a course as a whole may hold at a time."""
    return {
        name: quota.model_copy(update={"slice_hours_week": 0.0})
        for name, quota in view.settings.quotas.items()
        if quota.shared and quota.memory_slices
    }


def use_if_granted(view: PoolView, ticket: WaitingTicket) -> LeaseUse:
    """Return the lease use that a ticket would count as if it were granted now."""
    server = view.tickets[ticket.id].server
    return LeaseUse(0, ticket.user, ticket.course, server, ticket.size, None, None)


def expiry_time(settings: PoolSettings, started_at: float, ticket: TicketRow) -> float | None:
    """Return when a ticket expires or leaves the queue for a while; None if it never does.

    Args:
        settings: the site's limits.
        started_at: when every grace period began anew, because the pool was restarted or stood
            still, or the clock was set; seconds since the epoch.
        ticket: the ticket.
    """
    if ticket.state == TicketState.OFFERED and ticket.offered_at is not None:
        return max(ticket.offered_at, started_at) + offer_s(settings, ticket)
    if ticket.state == TicketState.ASIDE:
        return ticket.period_at + ASIDE_S
    if ticket.state != TicketState.WAITING:
        return None
    if ticket.lease is not None:  # its slices are being made: nobody need attend, yet it ends
        return ticket.period_at + settings.pool.longest_wait_s
    unattended = max(ticket.attended_at, started_at) + settings.pool.attend_grace_s
    return min(unattended, wait_deadline(settings, started_at, ticket))


def wait_deadline(settings: PoolSettings, started_at: float, ticket: TicketRow) -> float:
    """Return until when a ticket waits if its student does not confirm that they still wait.

    The student of a measurement is not asked to confirm.
    """
    question_at = ticket.period_at + settings.pool.longest_wait_s
    return question_at if ticket.is_borrow else max(question_at, started_at) + ANSWER_S


def answer_deadline(
    settings: PoolSettings, started_at: float, ticket: TicketRow, at: float
) -> float | None:
    """Return until when the student must confirm that they still wait; None if nobody asks now."""
    if not ticket.is_queued or ticket.is_borrow:
        return None
    is_asked = at >= ticket.period_at + settings.pool.longest_wait_s
    return wait_deadline(settings, started_at, ticket) if is_asked else None


@cached_on_instance
def fair_share_usage(view: PoolView) -> FairShareUsage:
    """Return recent use, course weights and the ageing time, which decide the queue's order."""
    weights = {name: rules.weight for name, rules in view.settings.courses.items()}
    return view.lease_uses.fair_share(view.at, weights, view.settings.pool.ageing_s)


@cached_on_instance
def ordered_queue(view: PoolView) -> tuple[WaitingTicket, ...]:
    """Return all waiting tickets in the order in which they are considered for a grant."""
    waiting = _waiting_tickets(view)
    if len(waiting) < 2:  # no order to work out: most of the day
        return tuple(waiting)
    return tuple(queue_order(waiting, fair_share_usage(view)))


def cannot_be_passed(view: PoolView, user: str, ticket: int | None = None) -> bool:
    """Whether no later ticket can be served before this one, unless staff put it in front.

    That holds where the lab has one course, for a user of no recent use without another ticket.

    Args:
        view: the pool.
        user: whose ticket it is.
        ticket: its number; None for one that the user would make now.
    """
    is_light = fair_share_usage(view).users.get(user, 0.0) < GRAIN_H
    has_another = any(
        row.user == user and row.id != ticket and row.state != TicketState.TAKEN
        for row in view.tickets.values()
    )
    return len(view.settings.courses) == 1 and is_light and not has_another


@cached_on_instance
def positions(view: PoolView) -> dict[int, int]:
    """Return the position of each waiting ticket, by its number."""
    return {ticket.id: position for position, ticket in enumerate(ordered_queue(view), 1)}


@cached_on_instance
def servable_tickets(view: PoolView) -> tuple[WaitingTicket, ...]:
    """Return the waiting tickets that may be granted now, in queue order.

    A server whose last lease is not over waits for its end, so it never holds two leases.  The
    tickets of a course that holds all its quota wait until it holds less.  Those of a student who
    wastes what is made free go last.
    """
    busy_servers, tickets = view.held_servers, view.tickets
    free = [
        ticket
        for ticket in ordered_queue(view)
        if (ticket.user, tickets[ticket.id].server) not in busy_servers
    ]
    if view.wasted:
        free.sort(key=lambda ticket: has_wasted_much(view, ticket.user))
    return tuple(within_quotas(view, free))


@cached_on_instance
def servable_without_slot(view: PoolView) -> tuple[WaitingTicket, ...]:
    """Return the `servable_tickets` for slices of a partitioned GPU that have no reserved slot."""
    claimants_with_slot = slots.claimants_with_slot(view)
    sliced = (ticket for ticket in servable_tickets(view) if ticket.profiles != (FULL,))
    return tuple(ticket for ticket in sliced if ticket.id not in claimants_with_slot)


def _waiting_tickets(view: PoolView) -> list[WaitingTicket]:
    """Return all waiting tickets by arrival, marked where a reservation in force is for them."""
    undrawn = Counter[tuple[str, str]]()
    for reservation in slots.reservations_in_force(view):
        undrawn[reservation.key] += reservation.undrawn
    waiting = []
    for ticket in view.queued:
        key = (ticket.course, ticket.shape)
        is_reserved = undrawn[key] > 0
        if is_reserved:
            undrawn[key] -= 1
        waiting_ticket = to_waiting_ticket(view, ticket)
        waiting.append(waiting_ticket._replace(reserved=True) if is_reserved else waiting_ticket)
    return waiting


def to_waiting_ticket(view: PoolView, ticket: TicketRow) -> WaitingTicket:
    """Return what the order of the queue needs to know of a ticket."""
    names = profiles_of(ticket.shape)
    return WaitingTicket(
        ticket.id,
        names,
        ticket.created_at,
        ticket.course,
        ticket.user,
        size=shape_size(view, names),
        front=ticket.next_at,
        is_borrow=ticket.is_borrow,
        shape=ticket.shape,
    )


@cached_on_instance
def shape_size(view: PoolView, names: tuple[str, ...]) -> int:
    """Return the memory slices of a shape, on the largest GPU where GPUs differ."""
    return sum(_slice_size(name, view.geometries) for name in names)


def _slice_size(name: str, geometries: list[Geometry]) -> int:
    if name == FULL:
        return max((geometry.memory_slices for geometry in geometries), default=1)
    sizes = [g.by_name[name].size for g in geometries if name in g.by_name]
    return max(sizes, default=1)


def wait_reason(view: PoolView, row: TicketRow) -> str:
    """Return why a ticket waits, in words for its student.

    Empty if the ticket only waits for its turn, or is over.
    """
    if row.state != TicketState.WAITING:
        return ""
    if row.lease is not None:
        return "Your slices are being made."
    if (row.user, row.server) in view.held_servers:
        return "Your previous server still holds its slices. The new one starts once it ends."
    if has_wasted_much(view, row.user):
        return WHY_WASTED
    reason = quota_wait_reason(view, row) or _reservation_wait_reason(view, row)
    if reason or row.next_at is None:
        return reason or _drain_wait_reason(view)
    return "Staff gave you the next slices that fit."


@cached_on_instance
def _drain_wait_reason(view: PoolView) -> str:
    """Return the wait reason while staff drain every GPU; empty otherwise."""
    drainings = {gpu.draining for gpu in view.gpu_rows}
    if not drainings or "" in drainings:
        return ""
    reasons = "; ".join(f"“{reason}”" for reason in sorted(drainings))
    return f"No GPU takes new leases for now ({reasons}); you keep your position."


def _reservation_wait_reason(view: PoolView, row: TicketRow) -> str:
    """Return the wait reason of a ticket that only a reservation keeps waiting; empty otherwise."""
    if not view.reservations or row.shape == FULL:
        return ""
    has_slot = row.id in slots.claimants_with_slot(view)
    lasts_s = guarantee_from_grant_s(view.settings, row)
    if has_slot or not _is_reserved(view, (row.course, row.shape), lasts_s):
        return ""
    left_s = guarantees.next_release_time(view) - view.at
    return (
        "What is free is kept for a class that has reserved it; what the class does not take "
        f"is free for all in at most {max(1, round(left_s / 60))} min."
    )


@cached_on_instance
def _is_reserved(view: PoolView, key: tuple[str, str], lasts_s: float) -> bool:
    """Whether the room for a shape is reserved now, or so soon that a lease would be too short."""
    course, names = key[0], profiles_of(key[1])
    if not place(names, usable_by_course(view.occupancies, course)):
        return False
    choices = place(names, course_gpus_first(slots.open_gpus(view), course))
    if choices is None:
        return True
    return not guarantees.grant_limit(view, "", key, choices, view.at + lasts_s).is_enough


# -- the decision ---------------------------------------------------------------------------------


def first_that_fits(
    queue: Iterable[WaitingTicket],
    gpus: Sequence[GpuOccupancy],
    view: PoolView | None = None,
) -> Grant | None:
    """Choose the first ticket that can be granted now, and its slices.

    Args:
        queue: the waiting tickets in their order.
        gpus: every GPU.
        view: the pool whose reservations no grant may break; None: there are none.

    Returns:
        The grant, or None if no ticket can be granted now.
    """
    queue_pass = _QueuePass(gpus, view if view and view.reservations else None)
    for ticket in queue:
        choices = queue_pass.place(ticket)
        if choices is not None:
            return Grant(ticket.id, choices)
    return None


def any_fits(requests: Iterable[tuple[tuple[str, ...], str]], gpus: Sequence[GpuOccupancy]) -> bool:
    """Whether any of these requests has room now, whoever's turn it is.

    Args:
        requests: the profiles and the course of each waiting ticket.
        gpus: every GPU.
    """
    queue_pass = _QueuePass(gpus)
    return any(queue_pass.fits(profiles, course) for profiles, course in requests)


class _QueuePass:
    """One pass over the queue.  Room only shrinks during it, so a refused request stays refused."""

    def __init__(self, gpus: Sequence[GpuOccupancy], view: PoolView | None = None) -> None:
        self._gpus, self._view = gpus, view
        self._owners = {occupancy.course for occupancy in gpus}
        self._hold: PlacementsByGpu | None = None  # for the first ticket that did not fit
        self._usable: dict[_CourseAndKey, list[GpuOccupancy]] = {}
        self._refused: set[tuple[tuple[str, ...], str, tuple[str, str] | None]] = set()

    def fits(self, profiles: tuple[str, ...], course: str) -> bool:
        """Whether a course finds room for a shape."""
        return self._find_room(profiles, course) is not None

    def place(self, ticket: WaitingTicket) -> tuple[Choice, ...] | None:
        """Return the slices for the next ticket in the queue; None if it must wait.

        For the first ticket that must wait, room is held.
        """
        choices = self._find_room(ticket.profiles, ticket.course)
        if choices is not None:
            return self._choose_unpromised(ticket, choices)
        if self._hold is None:
            self._hold = hold_for(ticket, self._gpus)
            self._usable.clear()
        return None

    def _choose_unpromised(
        self, ticket: WaitingTicket, choices: tuple[Choice, ...]
    ) -> tuple[Choice, ...] | None:
        """Return slices that break no reservation; None if these are guaranteed too shortly.

        Slices that no reservation needs come first, then the given choices, if a lease on them
        can be guaranteed for long enough before a reservation needs them.
        """
        view, key = self._view, (ticket.course, ticket.shape)
        if view is None:
            return choices
        claimable_key = guarantees.claimable_key(view, ticket.user, key)
        unpromised = self._find_room(ticket.profiles, ticket.course, claimable_key)
        if unpromised is not None:
            return unpromised
        until = view.at + guarantee_from_grant_s(view.settings, view.tickets[ticket.id])
        limit = guarantees.grant_limit(view, ticket.user, key, choices, until)
        return choices if limit.is_enough else None

    def _find_room(
        self,
        profiles: tuple[str, ...],
        course: str,
        key: tuple[str, str] | None = None,
    ) -> tuple[Choice, ...] | None:
        """Return slices for a shape; with ``key``, only those not promised to other claimants."""
        owner = course if course in self._owners else ""  # all others are alike
        request = (profiles, owner, key)
        if request in self._refused:
            return None
        choices = place(profiles, self._usable_gpus(owner, key))
        if choices is None:
            self._refused.add(request)
        return choices

    def _usable_gpus(self, course: str, key: tuple[str, str] | None) -> list[GpuOccupancy]:
        """Return the GPUs for a course; with ``key``, without what is promised to others."""
        course_and_key = (course, key)
        if course_and_key not in self._usable:
            gpus = self._gpus
            if key is not None and self._view is not None:
                gpus = guarantees.without_promised_slots(self._view, gpus, key)
            self._usable[course_and_key] = without_reserved(
                course_gpus_first(gpus, course), self._hold or {}
            )
        return self._usable[course_and_key]


# -- the hold -------------------------------------------------------------------------------------


def hold_for(first: WaitingTicket | None, gpus: Sequence[GpuOccupancy]) -> PlacementsByGpu:
    """Return the room that is kept free for the first in the queue; empty if nobody waits."""
    return choose_hold(first.profiles, course_gpus_first(gpus, first.course)) if first else {}


def choose_hold(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> PlacementsByGpu:
    """Choose the room to hold for a shape: large slices first, each where it is free soonest.

    Args:
        profiles: what the first in the queue asks for.
        gpus: every GPU.

    Returns:
        The hold, by GPU; profiles that no usable GPU can take are missing.
    """
    hold: dict[str, tuple[ProfilePlacement, ...]] = {}
    for name in sorted(profiles, key=lambda name: -_largest_size(name, gpus)):
        candidates = [
            (
                (best.frees_at, best.leases, occupancy.gpu not in hold, index),
                occupancy.gpu,
                best.placed_slice,
            )
            for index, occupancy in enumerate(gpus)
            if (best := _soonest_placement(occupancy, name, hold.get(occupancy.gpu, ())))
            is not None
        ]
        if not candidates:
            break
        _, gpu, placement = min(candidates, key=lambda candidate: candidate[0])
        hold[gpu] = (*hold.get(gpu, ()), placement)
    return hold


class _Candidate(NamedTuple):
    """The placement on one GPU that is free soonest, when, and after how many ends."""

    frees_at: float
    leases: int
    start: int
    placed_slice: ProfilePlacement


def _largest_size(name: str, gpus: Iterable[GpuOccupancy]) -> int:
    sizes = [g.geometry.by_name[name].size for g in gpus if _has_profile(g, name)]
    return max(sizes, default=0)


def _has_profile(occupancy: GpuOccupancy, name: str) -> bool:
    return name in occupancy.geometry.by_name


@cached_on_instance
def _soonest_placement(
    occupancy: GpuOccupancy, name: str, hold: tuple[ProfilePlacement, ...]
) -> _Candidate | None:
    """Return where a slice can be held soonest on a GPU, beside what is held there already."""
    if not occupancy.usable or not _has_profile(occupancy, name):
        return None
    profile, occupied = occupancy.geometry.by_name[name], (*occupancy.immovable, *hold)
    live = [(candidate.bits, candidate.placement.mask) for candidate in occupancy.live]
    candidates = []
    for candidate in (ProfilePlacement(profile, placement) for placement in profile.placements):
        if any(clash(candidate, other) for other in occupied):
            continue
        ends = [occupancy.frees_at.get(mask, inf) for bits, mask in live if bits & candidate.bits]
        key = (max(ends, default=WITHIN_SECONDS), len(ends), candidate.placement.start)
        candidates.append(_Candidate(*key, candidate))
    return min(candidates, default=None, key=lambda candidate: candidate[:3])

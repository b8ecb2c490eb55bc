"""The queue as it stands: who waits, in which order and why, and who may go now.  Reads only.

When the first in the queue does not fit now, the room that is free soonest by the ends that are set
is held for it.  Those behind may start, in order, outside of it: a big shape is not starved, and no
slice idles that the first in the queue could not use anyway.

What a course's quota means for those who wait is here too, and when a ticket ends or steps aside.
Asked for one ticket or for all who wait: what is the same for many is worked out once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Geometry, Placed
from miglab_pool.gpu.shapes import profiles
from miglab_pool.leases import rules as lease_rules
from miglab_pool.leases.rules import Asked, Limit, Quotas, offer_s
from miglab_pool.ledger.rows import FULL, TicketRow
from miglab_pool.queue.rules import FairShareUsage, Grant, Use, Waiting, in_order
from miglab_pool.queue.waste import WHY as WHY_WASTED
from miglab_pool.queue.waste import wastes
from miglab_pool.reservations import promises, slots
from miglab_pool.settings import PoolSettings
from miglab_pool.state.placement import (
    SOON,
    Choice,
    GpuOccupancy,
    Kept,
    beside,
    clash,
    open_to,
    own_first,
    place,
)
from miglab_pool.state.view import PoolView, once

_Opened = tuple[str, tuple[str, str] | None]
ANSWER_S = 600.0  # for the answer to whether one still waits
ASIDE_S = 12 * 3600.0


def let_by(view: PoolView, queued: Iterable[Waiting]) -> Iterator[Waiting]:
    """Those whom no course's quota holds back, if all of them are served in this order."""
    if not _totals(view):
        yield from queued
        return
    uses = list(view.usage.live)
    for one in queued:
        if _held_by(view, one, uses) is None:
            uses.append(as_use(view, one))
            yield one


def _held_by(view: PoolView, one: Waiting, uses: Iterable[Use]) -> Limit | None:
    """The course's quota that a ticket waits for; None if it waits for room."""
    if not (totals := _totals(view)):
        return None
    asked = Asked(one.user, one.course, view.tickets[one.ticket].server, one.size)
    return lease_rules.held_by(lease_rules.limits(totals, asked, uses, view.at), asked)


def why_held(view: PoolView, row: TicketRow) -> str:
    """What to tell somebody who waits for the course, not for room; empty if for room."""
    limit = _held_by(view, as_waiting(view, row), view.usage.live) if _totals(view) else None
    if limit is None:
        return ""
    return (
        f"Your course holds {limit.used:g} of the {limit.most:g} memory slices that it may hold at "
        f"a time (quota “{limit.name}”): you are served when one of its leases ends."
    )


@once
def _totals(view: PoolView) -> Quotas:
    """What whole courses may hold at a time."""
    return {
        name: quota.model_copy(update={"slice_hours_week": 0.0})
        for name, quota in view.settings.quotas.items()
        if quota.shared and quota.memory_slices
    }


def as_use(view: PoolView, one: Waiting) -> Use:
    """A ticket as if it held already what it asks for."""
    server = view.tickets[one.ticket].server
    return Use(0, one.user, one.course, server, one.size, None, None)


def expires_at(settings: PoolSettings, started_at: float, ticket: TicketRow) -> float | None:
    """When the ticket ends or steps aside; None if nothing makes it.

    Args:
        settings: the site's limits.
        started_at: when every grace began anew: the pool was restarted or stood still, or the
            clock was set.
        ticket: which.
    """
    if ticket.state == TicketState.OFFERED and ticket.offered_at is not None:
        return max(ticket.offered_at, started_at) + offer_s(settings, ticket)
    if ticket.state == TicketState.ASIDE:
        return ticket.period_at + ASIDE_S
    if ticket.state != TicketState.WAITING:
        return None
    if ticket.lease is not None:  # its slices are being made: no grace, yet not for ever
        return ticket.period_at + settings.pool.longest_wait_s
    unattended = max(ticket.attended_at, started_at) + settings.pool.attend_grace_s
    return min(unattended, waits_until(settings, started_at, ticket))


def waits_until(settings: PoolSettings, started_at: float, ticket: TicketRow) -> float:
    """Until when a ticket waits without another word: measurements are not asked for one."""
    asked_at = ticket.period_at + settings.pool.longest_wait_s
    return asked_at if ticket.is_borrow else max(asked_at, started_at) + ANSWER_S


def answer_by(
    settings: PoolSettings, started_at: float, ticket: TicketRow, at: float
) -> float | None:
    """Until when its student is to say whether they still wait; None unless that is asked now."""
    if not ticket.is_queued or ticket.is_borrow:
        return None
    is_asked = at >= ticket.period_at + settings.pool.longest_wait_s
    return waits_until(settings, started_at, ticket) if is_asked else None


@once
def fair_share_usage(view: PoolView) -> FairShareUsage:
    """What everybody has used lately, and what the rule needs besides."""
    weights = {name: rules.weight for name, rules in view.settings.courses.items()}
    return view.usage.fair_share(view.at, weights, view.settings.pool.ageing_s)


@once
def ordered(view: PoolView) -> tuple[Waiting, ...]:
    """Everyone who waits, first in front: the order in which it is decided who is next."""
    waiting = _everyone(view)
    if len(waiting) < 2:  # no order to work out: most of the day
        return tuple(waiting)
    return tuple(in_order(waiting, fair_share_usage(view)))


@once
def positions(view: PoolView) -> dict[int, int]:
    """The position of everyone who waits, by ticket."""
    return {one.ticket: position for position, one in enumerate(ordered(view), 1)}


@once
def served(view: PoolView) -> tuple[Waiting, ...]:
    """Those in the queue who may be served now, first in front.

    A server whose last lease is not over waits for that first: it never holds two.  A course that
    holds all it may waits until it holds less.  Who wastes what is made free goes last.
    """
    held, tickets = view.held_servers, view.tickets
    free = [one for one in ordered(view) if (one.user, tickets[one.ticket].server) not in held]
    if view.wasted:
        free.sort(key=lambda waiting: wastes(view, waiting.user))
    return tuple(let_by(view, free))


@once
def without_slot(view: PoolView) -> tuple[Waiting, ...]:
    """Those of `served` who want slices of a cut GPU, and have no reserved slot."""
    claimants_with_slot = slots.claimants_with_slot(view)
    sliced = (one for one in served(view) if one.profiles != (FULL,))
    return tuple(one for one in sliced if one.ticket not in claimants_with_slot)


def _everyone(view: PoolView) -> list[Waiting]:
    """Everyone who waits, in order of arrival, those for whom something is reserved marked."""
    left = Counter[tuple[str, str]]()
    for one in slots.in_force(view):
        left[one.key] += one.left
    waiting = []
    for ticket in view.queued:
        key = (ticket.course, ticket.shape)
        is_reserved = left[key] > 0
        if is_reserved:
            left[key] -= 1
        waits = as_waiting(view, ticket)
        waiting.append(waits._replace(reserved=True) if is_reserved else waits)
    return waiting


def as_waiting(view: PoolView, ticket: TicketRow) -> Waiting:
    """The ticket as the queue sees it."""
    names = profiles(ticket.shape)
    return Waiting(
        ticket.id,
        names,
        ticket.created_at,
        ticket.course,
        ticket.user,
        size=size_of(view, names),
        front=ticket.next_at,
        is_borrow=ticket.is_borrow,
        shape=ticket.shape,
    )


@once
def size_of(view: PoolView, names: tuple[str, ...]) -> int:
    """The memory slices of a shape: of the largest GPU where GPUs differ."""
    return sum(_slice_size(name, view.geometries) for name in names)


def _slice_size(name: str, geometries: list[Geometry]) -> int:
    if name == FULL:
        return max((geometry.memory_slices for geometry in geometries), default=1)
    known = [g.by_name[name].size for g in geometries if name in g.by_name]
    return max(known, default=1)


def why_waits(view: PoolView, row: TicketRow) -> str:
    """What to tell whose ticket it is; empty if it just is not their turn, or is over."""
    if row.state != TicketState.WAITING:
        return ""
    if row.lease is not None:
        return "Your slices are being made."
    if (row.user, row.server) in view.held_servers:
        return "Your previous server still holds its slices. The new one starts once it ends."
    if wastes(view, row.user):
        return WHY_WASTED
    held = why_held(view, row) or _why_reserved(view, row)
    if held or row.next_at is None:
        return held or _why_drained(view)
    return "Staff gave you the next slices that fit."


@once
def _why_drained(view: PoolView) -> str:
    """What to tell everybody while no GPU takes a lease, by acts of staff."""
    drainings = {gpu.draining for gpu in view.rows}
    if not drainings or "" in drainings:
        return ""
    said = "; ".join(f"“{reason}”" for reason in sorted(drainings))
    return f"No GPU takes new leases for now ({said}); you keep your position."


def _why_reserved(view: PoolView, row: TicketRow) -> str:
    """What to tell somebody who would be served but for a reservation."""
    if not view.reservations or row.shape == FULL:
        return ""
    has_slot = row.id in slots.claimants_with_slot(view)
    lasts_s = lease_rules.guaranteed_s(view.settings, row)
    if has_slot or not _is_kept(view, (row.course, row.shape), lasts_s):
        return ""
    left_s = promises.kept_until(view) - view.at
    return (
        "What is free is kept for a class that has reserved it; what the class does not take "
        f"is free for all in at most {max(1, round(left_s / 60))} min."
    )


@once
def _is_kept(view: PoolView, key: tuple[str, str], lasts_s: float) -> bool:
    """Whether a shape has room, which is reserved now, or too soon to be worth a lease."""
    course, names = key[0], profiles(key[1])
    if not place(names, open_to(view.occupancies, course)):
        return False
    choices = place(names, own_first(slots.open_gpus(view), course))
    if choices is None:
        return True
    return not promises.grant_limit(view, "", key, choices, view.at + lasts_s).is_enough


# -- the decision ---------------------------------------------------------------------------------


def first_that_fits(
    queue: Iterable[Waiting],
    gpus: Sequence[GpuOccupancy],
    view: PoolView | None = None,
) -> Grant | None:
    """Decide who gets slices now.

    Args:
        queue: who waits, first in front.
        gpus: every GPU.
        view: the pool whose reservations no grant may break; None: there are none.

    Returns:
        The grant, or None when nobody can go now.
    """
    decision = _Decision(gpus, view if view and view.reservations else None)
    for one in queue:
        choices = decision.place(one)
        if choices is not None:
            return Grant(one.ticket, choices)
    return None


def any_fits(wanted: Iterable[tuple[tuple[str, ...], str]], gpus: Sequence[GpuOccupancy]) -> bool:
    """Whether anything has room now, whoever's turn it is: if nothing has, nobody can go.

    Args:
        wanted: the profiles and the course of each who waits.
        gpus: every GPU.
    """
    decision = _Decision(gpus)
    return any(decision.fits(profiles, course) for profiles, course in wanted)


class _Decision:
    """One walk along the queue.  Room only shrinks meanwhile: what did not fit once never does."""

    def __init__(self, gpus: Sequence[GpuOccupancy], view: PoolView | None = None) -> None:
        self._gpus, self._view = gpus, view
        self._owners = {one.course for one in gpus}
        self._hold: Kept | None = None  # for the first that did not fit
        self._opened: dict[_Opened, list[GpuOccupancy]] = {}
        self._refused: set[tuple[tuple[str, ...], str, tuple[str, str] | None]] = set()

    def fits(self, profiles: tuple[str, ...], course: str) -> bool:
        """Whether a course finds room for a shape."""
        return self._try(profiles, course) is not None

    def place(self, one: Waiting) -> tuple[Choice, ...] | None:
        """Where the next in the queue may go now; for the first to go nowhere room is held."""
        choices = self._try(one.profiles, one.course)
        if choices is not None:
            return self._promised(one, choices)
        if self._hold is None:
            self._hold = hold_for(one, self._gpus)
            self._opened.clear()
        return None

    def _promised(self, one: Waiting, choices: tuple[Choice, ...]) -> tuple[Choice, ...] | None:
        """Where it breaks no reservation, or there for as long as it breaks none; else nowhere."""
        view, key = self._view, (one.course, one.shape)
        if view is None:
            return choices
        mine = promises.claimable(view, one.user, key)
        beside = self._try(one.profiles, one.course, mine)
        if beside is not None:
            return beside
        until = view.at + lease_rules.guaranteed_s(view.settings, view.tickets[one.ticket])
        found = promises.grant_limit(view, one.user, key, choices, until)
        return choices if found.is_enough else None

    def _try(
        self,
        profiles: tuple[str, ...],
        course: str,
        key: tuple[str, str] | None = None,
    ) -> tuple[Choice, ...] | None:
        """Where a shape fits; ``key``: beside what is promised to others."""
        whose = course if course in self._owners else ""  # all others are alike
        known = (profiles, whose, key)
        if known in self._refused:
            return None
        choices = place(profiles, self._open(whose, key))
        if choices is None:
            self._refused.add(known)
        return choices

    def _open(self, course: str, key: tuple[str, str] | None) -> list[GpuOccupancy]:
        """The GPUs as a course may use them; ``key``: without what is promised to others."""
        known = (course, key)
        if known not in self._opened:
            gpus = self._gpus
            if key is not None and self._view is not None:
                gpus = promises.without_promised(self._view, gpus, key)
            self._opened[known] = beside(own_first(gpus, course), self._hold or {})
        return self._opened[known]


# -- the hold -------------------------------------------------------------------------------------


def hold_for(first: Waiting | None, gpus: Sequence[GpuOccupancy]) -> Kept:
    """The room that is kept free for the first in the queue; nothing where nobody is."""
    return hold(first.profiles, own_first(gpus, first.course)) if first else {}


def hold(profiles: Sequence[str], gpus: Sequence[GpuOccupancy]) -> Kept:
    """Choose the room for a shape: large slices first, each where it is free soonest.

    Args:
        profiles: what the first in the queue wants.
        gpus: every GPU.

    Returns:
        The hold; nothing for what no usable GPU can hold.
    """
    held: dict[str, tuple[Placed, ...]] = {}
    for name in sorted(profiles, key=lambda name: -_size(name, gpus)):
        candidates = [
            ((best.frees_at, best.leases, one.gpu not in held, index), one.gpu, best.placed)
            for index, one in enumerate(gpus)
            if (best := _best_on(one, name, held.get(one.gpu, ()))) is not None
        ]
        if not candidates:
            break
        _, gpu, placed = min(candidates, key=lambda one: one[0])
        held[gpu] = (*held.get(gpu, ()), placed)
    return held


class _Candidate(NamedTuple):
    """The placement on one GPU that is free soonest, when, and after how many ends."""

    frees_at: float
    leases: int
    start: int
    placed: Placed


def _size(name: str, gpus: Iterable[GpuOccupancy]) -> int:
    sizes = [g.geometry.by_name[name].size for g in gpus if _has(g, name)]
    return max(sizes, default=0)


def _has(occupancy: GpuOccupancy, name: str) -> bool:
    return name in occupancy.geometry.by_name


@once
def _best_on(occupancy: GpuOccupancy, name: str, held: tuple[Placed, ...]) -> _Candidate | None:
    """Where on a GPU a slice might be held beside these; kept with the GPU, for every decision."""
    if not occupancy.usable or not _has(occupancy, name):
        return None
    profile, taken = occupancy.geometry.by_name[name], (*occupancy.fixed, *held)
    live = [(one.bits, one.placement.mask) for one in occupancy.live]
    found = []
    for placed in (Placed(profile, placement) for placement in profile.placements):
        if any(clash(placed, other) for other in taken):
            continue
        there = [occupancy.frees_at.get(mask, inf) for bits, mask in live if bits & placed.bits]
        key = (max(there, default=SOON), len(there), placed.placement.start)
        found.append(_Candidate(*key, placed))
    return min(found, default=None, key=lambda one: one[:3])

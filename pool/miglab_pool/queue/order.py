"""The queue as it stands: who may join, waits, in which order and why, is served.  Reads only.

What the quotas mean for the rows of the pool is here too, and when a ticket ends or steps aside.
Asked for one ticket or for all who wait: what is the same for many is worked out once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

from miglab_api.offers import QuotaLeft
from miglab_api.tickets import Purpose, TicketRequest, TicketState
from miglab_api.wording import duration
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.shapes import Shape, ShapeError, profiles, resolve
from miglab_pool.leases import rules as lease_rules
from miglab_pool.leases.rules import Asked, Limit, Quotas, offer_s
from miglab_pool.ledger.rows import FULL, LeaseRow, TicketRow
from miglab_pool.queue.rules import HOUR_S, FairShareUsage, Use, Waiting, in_order
from miglab_pool.refused import Refused
from miglab_pool.reservations import promises, slots
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.state.placement import GpuOccupancy, could_ever_fit, open_to, own_first, place
from miglab_pool.state.view import PoolView, once

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
            uses.append(_as_use(view, one))
            yield one


def _held_by(view: PoolView, one: Waiting, uses: Iterable[Use]) -> Limit | None:
    """The course's quota that a ticket waits for; None if it waits for room."""
    if not (totals := _totals(view)):
        return None
    asked = Asked(one.user, one.course, view.tickets[one.ticket].server, one.size)
    return lease_rules.held_by(lease_rules.limits(totals, asked, uses, view.at), asked)


def guaranteed_until(view: PoolView, lease: LeaseRow) -> float:
    """Until when a lease that is attached now is guaranteed, by settings and quotas."""
    longest_s = lease_rules.longest_s(view.settings, lease)
    left_s = _hours_left_s(view, lease)
    return view.at + (longest_s if left_s is None else min(longest_s, left_s))


def _hours_left_s(view: PoolView, lease: LeaseRow) -> float | None:
    """How long the slice-hours of a lease's student last, seconds; None: no limit."""
    size = sum(row.size for row in view.slices_of(lease))
    asked = Asked(lease.user, lease.course, lease.server, size)
    return lease_rules.hours_left_s(view.settings.quotas, asked, view.usage.all, view.at)


def check_guarantee(view: PoolView, lease: LeaseRow, until: float) -> None:
    """Refuse an extension that the student's slice-hours do not cover."""
    left_s = _hours_left_s(view, lease)
    if left_s is not None and until > view.at + left_s:
        raise Refused(
            "no-extension",
            f"Your slice-hours of these seven days last for {duration(left_s)} more, "
            "which is less than you ask for. Ask for less, or save your work in time.",
        )


def why_held(view: PoolView, row: TicketRow) -> str:
    """What to tell somebody who waits for the course, not for room; empty if for room."""
    limit = _held_by(view, as_waiting(view, row), view.usage.live) if _totals(view) else None
    if limit is None:
        return ""
    return (
        f"Your course holds {limit.used:g} of the {limit.most:g} memory slices that it may hold at "
        f"a time (quota “{limit.name}”): you are served when one of its leases ends."
    )


def left(view: PoolView, user: str, course: str) -> tuple[QuotaLeft, ...]:
    """What a student has left in a course, for the spawn page."""
    if not view.settings.quotas:
        return ()
    now = view.at
    uses = view.usage.all
    asked = Asked(user, course, None, 1)
    return tuple(
        QuotaLeft(
            quota=limit.name,
            limit=limit.kind,
            is_shared=limit.quota.shared,
            most=limit.most,
            used=limit.used,
            more_in_s=_more_in_s(limit, asked, uses, now),
        )
        for limit in lease_rules.limits(view.settings.quotas, asked, uses, now)
        if limit.kind != "lease_s"
    )


def guaranteed_s(view: PoolView, user: str, course: str) -> float:
    """For how long somebody's lease in a course would be guaranteed, for the spawn page."""
    asked, settings = Asked(user, course, None, 1), view.settings
    return lease_rules.longest_set_s(settings.quotas, asked, settings.pool.lease_s)


def _more_in_s(limit: Limit, asked: Asked, uses: list[Use], now: float) -> float | None:
    if limit.kind != "slice_hours_week" or limit.left >= lease_rules.LEAST_S / HOUR_S:
        return None
    return lease_rules.more_in_s(limit, asked, uses, now)


@once
def _totals(view: PoolView) -> Quotas:
    """What whole courses may hold at a time."""
    return {
        name: quota.model_copy(update={"slice_hours_week": 0.0})
        for name, quota in view.settings.quotas.items()
        if quota.shared and quota.memory_slices
    }


def _as_use(view: PoolView, one: Waiting) -> Use:
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
    holds all it may waits until it holds less.
    """
    held, tickets = view.held_servers, view.tickets
    free = [one for one in ordered(view) if (one.user, tickets[one.ticket].server) not in held]
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


# -- may it be asked for --------------------------------------------------------------------------


def judge(view: PoolView, asked: TicketRequest) -> tuple[str, Refused | None]:
    """The shape in profiles, and why nobody of that course may ask for it now."""
    rules = view.settings.courses.get(asked.course)
    if rules is None:
        names = ", ".join(sorted(view.settings.courses)) or "none"
        message = f"There is no course {asked.course!r} here. Courses: {names}."
        return asked.shape, Refused("not-in-course", message, 403)
    try:
        shape = resolve(asked.shape, view.geometries)
    except ShapeError as error:
        if not view.geometries:
            return asked.shape, _gpus_unknown()
        return asked.shape, Refused("bad-shape", str(error), 422)
    return str(shape), _judge_shape(view, asked, shape, rules)


def _judge_shape(
    view: PoolView, asked: TicketRequest, shape: Shape, rules: Course
) -> Refused | None:
    if shape.is_cpu:
        return Refused(
            "bad-shape", "'cpu' needs no slice: start the server without asking the pool.", 422
        )
    title = rules.title or asked.course
    lends = asked.purpose is Purpose.BORROW
    offered, verb = (rules.lends, "lend") if lends else (rules.shapes, "offer")
    asks = {str(shape), asked.shape}
    if not any(text in asks or in_profiles(view, text) in asks for text in offered):
        listed = ", ".join(offered) or "nothing"
        message = f"{title} does not {verb} {shape}; it {verb}s {listed}."
        return Refused("shape-not-offered", message, 403)
    if view.paused:
        return Refused("paused", f"New leases are paused: {view.paused}", 503)
    if not view.geometries:
        return _gpus_unknown()
    if _is_possible(view, shape, asked.course):
        return None
    message = f"No GPU that {title} may use can ever hold {shape}. Choose a smaller shape."
    return Refused("impossible-shape", message, 422)


@once
def offered_shapes(view: PoolView) -> list[Shape]:
    """The shapes that somebody could ask for, of whatever course; ``cpu`` is none."""
    found = set()
    for text in {text for rules in view.settings.courses.values() for text in rules.shapes}:
        with suppress(ShapeError):  # no GPU here has it
            found.add(resolve(text, view.geometries))
    return sorted((shape for shape in found if not shape.is_cpu), key=str)


def in_profiles(view: PoolView, text: str) -> str:
    """A shape of lab.toml as it is said to students: a need is the profile that serves it here."""
    try:
        return str(resolve(text, view.geometries))
    except ShapeError:
        return text


def _gpus_unknown() -> Refused:
    return Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)


@once
def _is_possible(view: PoolView, shape: Shape, course: str) -> bool:
    """Whether the GPUs that are not another course's can hold the shape."""
    mine = [one for one in view.facts.values() if one.course in ("", course)]
    if shape.is_full:
        return any(one.is_whole for one in mine)
    gpus = [
        GpuOccupancy(one.row.uuid, one.hardware)
        for one in mine
        if one.hardware is not None and not one.is_whole
    ]
    return could_ever_fit(shape.profiles, gpus)


def why_not_now(
    view: PoolView, asked: TicketRequest, shape: str, replaced: TicketRow | None
) -> Refused | None:
    """Why this user may not: the queue is full, or a quota is used up."""
    gives_way = replaced is not None and replaced.is_queued
    if len(view.queued) - gives_way >= view.settings.pool.queue_limit:
        return _queue_full(view)
    if not view.settings.quotas:
        return None
    wants = Asked(asked.user, asked.course, asked.server, size_of(view, profiles(shape)))
    mine = (as_waiting(view, ticket) for ticket in view.queued if ticket.user == asked.user)
    uses = [*view.usage.all, *(_as_use(view, one) for one in mine)]  # as good as held already
    said = lease_rules.why_not(view.settings.quotas, wants, uses, view.at)
    return None if said is None else Refused("over-quota", said, 403)


def _queue_full(view: PoolView) -> Refused:
    return Refused(
        "queue-full",
        f"{view.settings.pool.queue_limit} are waiting already, the maximum. "
        "Try again later, or start without a GPU.",
        429,
    )

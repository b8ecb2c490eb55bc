"""Tickets: judged, attended, offered, taken; and the ways they end.  Decisions only."""

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from miglab_spawner.gpu.geometry import Geometry
from miglab_spawner.gpu.shapes import Shape, ShapeError, parse_shape, resolve
from miglab_spawner.messages import LeaseState, SliceState, TicketRequest, TicketState
from miglab_spawner.pool import leases
from miglab_spawner.pool.core import Core
from miglab_spawner.pool.ledger.ledger import Transaction
from miglab_spawner.pool.ledger.rows import FULL, LeaseRow, TicketRow
from miglab_spawner.pool.placing.placement import GpuState, could_ever_place
from miglab_spawner.pool.refused import Refused
from miglab_spawner.pool.reserve import inforce, reserved

from . import allowance
from .ends import lasts_s
from .notyet import when_cut
from .queue import (
    Grant,
    Standing,
    Waiting,
    clash,
    first_that_fits,
    in_line,
)
from .quotas import Asked


def find(core: Core, number: int) -> TicketRow:
    """The ticket, live or over; Refused if there never was one."""
    row = core.ledger.find_ticket(number)
    if row is None:
        raise Refused("unknown-ticket", f"There is no ticket {number}.", 404)
    return row


# -- may it be asked for -------------------------------------------------------------------------


def judge(core: Core, asked: TicketRequest) -> tuple[str, Refused | None]:
    """The shape in profiles, and why nobody of that course may ask for it now."""
    rules = core.settings.courses.get(asked.course)
    if rules is None:
        names = ", ".join(sorted(core.settings.courses)) or "none"
        why = f"There is no course {asked.course!r} here. Courses: {names}."
        return asked.shape, Refused("not-in-course", why, 403)
    try:
        shape = resolve(asked.shape, [info.geometry for info in core.infos.values()])
    except ShapeError as error:
        if not core.infos:
            return asked.shape, _gpus_unknown()
        return asked.shape, Refused("bad-shape", str(error), 422)
    return str(shape), _judge_shape(core, asked, shape, rules.title, rules.shapes)


def _judge_shape(
    core: Core, asked: TicketRequest, shape: Shape, title: str, offered: tuple[str, ...]
) -> Refused | None:
    if shape.is_cpu:
        return Refused("bad-shape", "'cpu' needs no slice: start the server without asking.", 422)
    if not {str(shape), asked.shape} & {*offered, *(in_profiles(core, text) for text in offered)}:
        listed = ", ".join(offered) or "nothing"
        why = f"{title or asked.course} does not offer {shape}; it offers {listed}."
        return Refused("shape-not-offered", why, 403)
    if core.paused:
        return Refused("paused", f"New leases are paused: {core.paused}", 503)
    if not core.infos:
        return _gpus_unknown()
    key = (str(shape), asked.course)
    if key not in core.possible:
        core.possible[key] = _is_possible(core, shape, asked.course)
    return None if core.possible[key] else _impossible(core, shape, asked.course, title)


def _impossible(core: Core, shape: Shape, course: str, title: str) -> Refused:
    none = f"No GPU that {title or course} may use can"
    when = when_cut(core, shape, course)
    if when:
        why = f"{none} hold {shape} now. It can {when}: ask again then, or choose another shape."
        return Refused("not-yet", why)
    return Refused("impossible-shape", f"{none} ever hold {shape}. Choose a smaller shape.", 422)


def in_profiles(core: Core, text: str) -> str:
    """A shape of lab.toml as it is said to students: a need is the profile that serves it here."""
    try:
        return str(resolve(text, [info.geometry for info in core.infos.values()]))
    except ShapeError:
        return text


def _gpus_unknown() -> Refused:
    return Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)


def _is_possible(core: Core, shape: Shape, course: str) -> bool:
    """Whether the GPUs that are not another course's can hold the shape.

    Those that are another's but for the layout in force count as that layout cuts them.
    """
    whose = core.settings.assigned_course
    rows = {r.uuid: r for r in core.state.gpus.values() if whose(r.uuid, r.idx) in ("", course)}
    if shape.is_full:
        return any(core.is_whole(row) for row in rows.values())
    states = [
        GpuState(row.uuid, core.infos[row.uuid].geometry)
        for row in rows.values()
        if row.uuid in core.infos and not core.is_whole(row)
    ]
    lent = [one.state for one in core.grounds() if one.course == course]
    states += [state for state in lent if state.gpu not in rows]
    return could_ever_place(shape.profiles, states)


def of_server(core: Core, user: str, server: str) -> TicketRow | None:
    """The live ticket of a server; one that was taken counts until its holder is attached."""
    for ticket in core.state.tickets.values():
        if (ticket.user, ticket.server) != (user, server):
            continue
        if ticket.state != TicketState.TAKEN:
            return ticket
        lease = core.state.leases.get(ticket.lease or 0)
        if lease is not None and lease.state == LeaseState.GRANTED:
            return ticket
    return None


def why_not_now(
    core: Core, asked: TicketRequest, shape: str, replaced: TicketRow | None
) -> Refused | None:
    """Why this user may not: the line is full, or a quota is used up."""
    if _is_full(core, replaced):
        return _queue_full(core)
    size = size_of(core, profiles(shape))
    wants = Asked(asked.user, asked.course, asked.server, size)
    waiting = [as_waiting(core, ticket) for ticket in queued(core) if ticket.user == asked.user]
    said = allowance.why_not(core, wants, waiting)
    return None if said is None else Refused("over-quota", said, 403)


def _is_full(core: Core, replaced: TicketRow | None) -> bool:
    queued = sum(ticket.is_queued for ticket in core.state.tickets.values())
    gives_way = replaced is not None and replaced.is_queued
    return queued - gives_way >= core.settings.queue_limit


def _queue_full(core: Core) -> Refused:
    return Refused(
        "queue-full",
        f"{core.settings.queue_limit} are waiting already, which is as many as may. "
        "Try again later, or start without a GPU.",
        429,
    )


# -- attend, cancel, take -----------------------------------------------------------------------


def attend(core: Core, number: int) -> TicketRow:
    """Somebody still wants it.  In memory only: after a restart every grace begins anew."""
    with core.lock:
        ticket = find(core, number)
        if ticket.state in (TicketState.WAITING, TicketState.OFFERED):
            ticket = replace(ticket, attended_at=core.now())
            core.state.tickets[number] = ticket
        return ticket


def cancel(core: Core, number: int, by: str, reason: str) -> TicketRow:
    """Give up a place or an offer; what was over stays as it was."""
    with core.write() as tx:
        ticket = find(core, number)
        if ticket.state in (TicketState.WAITING, TicketState.OFFERED):
            message = reason or "The ticket was cancelled."
            ticket = end(core, tx, ticket, TicketState.CANCELLED, "cancelled", message, by)
    return ticket


def take(core: Core, number: int) -> LeaseRow:
    """Accept the offer; again and again gives the same lease while it lives."""
    with core.write(durable=True) as tx:
        ticket = find(core, number)
        lease = core.state.leases.get(ticket.lease or 0)
        if ticket.state == TicketState.OFFERED and lease is not None:
            tx.put(replace(ticket, state=TicketState.TAKEN), ticket.user, "taken")
            lease = replace(lease, taken_at=tx.at)
            tx.put(lease)
        elif ticket.state != TicketState.TAKEN or lease is None:
            raise Refused("not-offered", _why_not_taken(ticket))
    return lease


def _why_not_taken(ticket: TicketRow) -> str:
    if ticket.state == TicketState.WAITING:
        return f"Ticket {ticket.id} still waits; there is nothing to take yet."
    if ticket.state == TicketState.TAKEN:
        return f"Ticket {ticket.id} was taken and its lease is over. Start the server again."
    return f"Ticket {ticket.id} is {ticket.state}: {ticket.message}"


def end(
    core: Core,
    tx: Transaction,
    ticket: TicketRow,
    state: TicketState,
    reason: str,
    message: str,
    by: str = "pool",
) -> TicketRow:
    """End a ticket that was not taken up, and the lease it may have been granted."""
    tx.afterwards.append(lambda: core.unserved(state.value, reason))
    lease = core.state.leases.get(ticket.lease or 0)
    ticket = replace(ticket, state=state, reason=reason, message=message)
    tx.put(ticket, by, message)
    if lease is not None and lease.state == LeaseState.GRANTED:
        leases.withdraw(core, tx, lease, LeaseState.EXPIRED, by, reason)
    return ticket


def back_in_line(core: Core, tx: Transaction, lease: LeaseRow, reason: str) -> None:
    """The granted slices came to nothing: the ticket waits on, at its old place.

    One that was taken cannot: its spawner holds the lease's number and will be told by attach.
    """
    ticket = core.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        again = replace(ticket, state=TicketState.WAITING, lease=None, offered_at=None)
        tx.put(again, reason=reason)
    leases.withdraw(core, tx, lease, LeaseState.EXPIRED, "pool", reason)


def drop_grants(core: Core, tx: Transaction, gpu: str, why: str) -> None:
    """A GPU does not answer: whoever was to get a slice that is not made yet waits on."""
    for row in list(core.state.on_gpu[gpu].values()):
        lease = core.state.leases.get(row.lease or 0)
        if row.state == SliceState.MAKING and lease is not None:
            back_in_line(core, tx, lease, why)


def drop_blocked(core: Core, tx: Transaction, gpu: str) -> None:
    """Give up slices still to be made where nothing will make room: who wanted them waits on."""
    rows = list(core.state.on_gpu[gpu].values())
    fixed = [row for row in rows if row.state in (SliceState.FOREIGN, SliceState.QUARANTINED)]
    for row in rows:
        if row.state != SliceState.MAKING:
            continue
        is_blocked = any(clash(core.placed(row), core.placed(other)) for other in fixed)
        if not is_blocked and not core.has_lost(gpu):
            continue
        why = f"slice {row.id} cannot be made: something is in its way on {gpu}"
        lease = core.state.leases.get(row.lease or 0)
        if lease is not None:
            back_in_line(core, tx, lease, why)
        leases.scrub(tx, core.state.slices[row.id], why, remake=False)


# -- turn ---------------------------------------------------------------------------------------


def expire(core: Core, tx: Transaction) -> None:
    """End what has outlived its limit: places unattended, offers not taken, grants not attached."""
    for ticket in list(core.state.tickets.values()):
        verdict = _overdue(core, ticket, tx.at)
        if verdict is not None:
            state, reason, message = verdict
            end(core, tx, ticket, state, reason, message)
    for lease in list(core.state.leases.values()):
        limit_s = core.settings.attach_s
        if lease.taken_at is None or lease.state != LeaseState.GRANTED:
            continue
        if tx.at >= max(lease.taken_at, core.started_at) + limit_s:
            leases.withdraw(core, tx, lease, LeaseState.EXPIRED, "pool", "never-attached")


def expires_at(core: Core, ticket: TicketRow) -> float | None:
    """When the ticket ends unless somebody does something; a restart of the pool renews it."""
    if ticket.state == TicketState.OFFERED and ticket.offered_at is not None:
        return max(ticket.offered_at, core.started_at) + core.settings.offer_s
    if ticket.state != TicketState.WAITING:
        return None
    longest = ticket.created_at + core.settings.longest_wait_s
    if ticket.lease is not None:  # its slices are being made: no grace, yet not for ever
        return longest
    unattended = max(ticket.attended_at, core.started_at) + core.settings.attend_grace_s
    return min(unattended, longest)


def _overdue(core: Core, ticket: TicketRow, at: float) -> tuple[TicketState, str, str] | None:
    ends = expires_at(core, ticket)
    if ends is None or at < ends:
        return None
    if ticket.state == TicketState.OFFERED:
        message = "The slices were offered, and not taken in time. Ask again."
        return TicketState.EXPIRED, "offer-expired", message
    if at >= ticket.created_at + core.settings.longest_wait_s:
        minutes = core.settings.longest_wait_s / 60
        message = (
            f"Nothing became free within {minutes:.0f} minutes. "
            "Choose a smaller shape, start without a GPU, or try again later."
        )
        return TicketState.REFUSED, "waited-too-long", message
    message = "Nobody asked after this ticket any more, so its place was given up. Ask again."
    return TicketState.EXPIRED, "unattended", message


def match(core: Core, tx: Transaction) -> None:
    """Grant until nobody in line can be served."""
    if core.paused:
        return
    reserved.serve(core, tx)
    seated = reserved.seated(core, tx.at)
    line = unseated(core, tx.at)
    while line:
        grant = first_that_fits(line, reserved.grounds(core, tx.at), core.forecast.ahead(tx.at))
        if grant is None:
            break
        _grant(core, tx, grant)
        line = [one for one in line if one.ticket != grant.ticket]
    _match_whole(core, tx, seated)
    reserved.cut(core, tx)


def _grant(core: Core, tx: Transaction, grant: Grant) -> None:
    leases.grant(core, tx, core.state.tickets[grant.ticket], grant.choices)


def _match_whole(core: Core, tx: Transaction, seated: Collection[int]) -> None:
    is_free = any(core.whole_gpu(row) for row in core.state.gpus.values())
    line = served(core, tx.at) if is_free else []
    wanting = [one for one in line if one.profiles == (FULL,) and one.ticket not in seated]
    for one in wanting:
        gpu = next(iter(reserved.free_whole(core, tx.at, one.course)), None)
        if gpu is not None:
            leases.grant_whole(core, tx, core.state.tickets[one.ticket], gpu)


# -- the line -----------------------------------------------------------------------------------


def standing(core: Core, at: float) -> Standing:
    """What everybody has used lately, and what the rule needs besides."""
    weights = {name: rules.weight for name, rules in core.settings.courses.items()}
    return core.uses.standing(at, weights, core.settings.ageing_s)


def line(core: Core, at: float | None = None) -> list[Waiting]:
    """Everyone who waits, first in front: the order in which it is decided who is next."""
    at = core.now() if at is None else at
    return in_line(_everyone(core, at), standing(core, at))


def served(core: Core, at: float | None = None) -> list[Waiting]:
    """Those in line who may be served now, first in front.

    A server whose last lease is not over waits for that first: it never holds two.  A course that
    holds all it may waits until it holds less.
    """
    held = leases.servers(core)
    found = [
        one
        for one in line(core, at)
        if (one.user, core.state.tickets[one.ticket].server) not in held
    ]
    return list(allowance.let_by(core, found))


def waiting(core: Core, at: float | None = None) -> list[Waiting]:
    """Those of `served` who want slices of a cut GPU."""
    return [one for one in served(core, at) if one.profiles != (FULL,)]


def unseated(core: Core, at: float) -> list[Waiting]:
    """Those of `waiting` for whom no reservation keeps a place already."""
    seated = reserved.seated(core, at)
    return [one for one in waiting(core, at) if one.ticket not in seated]


def queued(core: Core) -> list[TicketRow]:
    """Everyone who waits, in no order."""
    return [ticket for ticket in core.state.tickets.values() if ticket.is_queued]


def _everyone(core: Core, at: float) -> list[Waiting]:
    """Everyone who waits, in order of arrival, those for whom something is reserved marked."""
    left = inforce.left(core, at)
    found = []
    for ticket in sorted(queued(core), key=lambda ticket: (ticket.created_at, ticket.id)):
        key = (ticket.course, ticket.shape)
        is_reserved = left[key] > 0
        if is_reserved:
            left[key] -= 1
        found.append(replace(as_waiting(core, ticket), reserved=is_reserved))
    return found


def as_waiting(core: Core, ticket: TicketRow) -> Waiting:
    """The ticket as the line sees it."""
    names = profiles(ticket.shape)
    return Waiting(
        ticket.id,
        names,
        ticket.created_at,
        ticket.course,
        ticket.user,
        size=size_of(core, names),
        lasts_s=lasts_s(core.settings, ticket.user, ticket.course),
        front=ticket.next_at,
    )


def size_of(core: Core, names: tuple[str, ...]) -> int:
    """The memory slices of a shape: of the largest GPU where GPUs differ."""
    if names not in core.sizes:
        geometries = [info.geometry for info in core.infos.values()]
        core.sizes[names] = sum(_slice_size(name, geometries) for name in names)
    return core.sizes[names]


def _slice_size(name: str, geometries: list[Geometry]) -> int:
    if name == FULL:
        return max((geometry.memory_slices for geometry in geometries), default=1)
    known = [g.by_name[name].size for g in geometries if name in g.by_name]
    return max(known, default=1)


def places(core: Core) -> dict[int, int]:
    """The place of everyone who waits, by ticket; worked out once per version.

    Not for use inside a transaction, which changes the line before it changes the version.
    """
    if core.places[0] != core.version:
        found = {one.ticket: place for place, one in enumerate(line(core), 1)}
        core.places = (core.version, found)
    return core.places[1]


def note_moves(core: Core) -> None:
    """Time alone moves people in line: when it has, that is a change like any other."""
    version, told = core.places
    if version == core.version and list(told) != [one.ticket for one in line(core)]:
        core.version += 1


@lru_cache(maxsize=1024)
def profiles(shape: str) -> tuple[str, ...]:
    """The profiles of a shape that was resolved when it was asked for."""
    parsed = parse_shape(shape)
    assert isinstance(parsed, Shape)
    return parsed.profiles

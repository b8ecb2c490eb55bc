"""Tickets: judged, attended, offered, taken; and the ways they end.  Decisions only."""

from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.gpu import clash
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import LeaseRow, TicketRow
from miglab_pool.state.store import Core
from miglab_pool.transactions import leases, slices


def find(core: Core, number: int) -> TicketRow:
    """The ticket, live or over; Refused if there never was one."""
    row = core.ledger.find_ticket(number)
    if row is None:
        raise Refused("unknown-ticket", f"There is no ticket {number}.", 404)
    return row


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
        slices.scrub(tx, core.state.slices[row.id], why, remake=False)


# -- turn ---------------------------------------------------------------------------------------


def expire(core: Core, tx: Transaction) -> None:
    """End what has outlived its limit: places unattended, offers not taken, grants not attached."""
    for ticket in list(core.state.tickets.values()):
        verdict = _overdue(core, ticket, tx.at)
        if verdict is not None:
            state, reason, message = verdict
            end(core, tx, ticket, state, reason, message)
    for lease in list(core.state.leases.values()):
        limit_s = core.settings.pool.attach_s
        if lease.taken_at is None or lease.state != LeaseState.GRANTED:
            continue
        if tx.at >= max(lease.taken_at, core.started_at) + limit_s:
            leases.withdraw(core, tx, lease, LeaseState.EXPIRED, "pool", "never-attached")


def expires_at(core: Core, ticket: TicketRow) -> float | None:
    """When the ticket ends unless somebody does something; a restart of the pool renews it."""
    if ticket.state == TicketState.OFFERED and ticket.offered_at is not None:
        return max(ticket.offered_at, core.started_at) + core.settings.pool.offer_s
    if ticket.state != TicketState.WAITING:
        return None
    longest = ticket.created_at + core.settings.pool.longest_wait_s
    if ticket.lease is not None:  # its slices are being made: no grace, yet not for ever
        return longest
    unattended = max(ticket.attended_at, core.started_at) + core.settings.pool.attend_grace_s
    return min(unattended, longest)


def _overdue(core: Core, ticket: TicketRow, at: float) -> tuple[TicketState, str, str] | None:
    ends = expires_at(core, ticket)
    if ends is None or at < ends:
        return None
    if ticket.state == TicketState.OFFERED:
        message = "The slices were offered, and not taken in time. Ask again."
        return TicketState.EXPIRED, "offer-expired", message
    if at >= ticket.created_at + core.settings.pool.longest_wait_s:
        minutes = core.settings.pool.longest_wait_s / 60
        message = (
            f"Nothing became free within {minutes:.0f} minutes. "
            "Choose a smaller shape, start without a GPU, or try again later."
        )
        return TicketState.REFUSED, "waited-too-long", message
    message = "Nobody asked after this ticket any more, so its place was given up. Ask again."
    return TicketState.EXPIRED, "unattended", message

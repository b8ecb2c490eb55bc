"""Makes the line of one person from their leases and tickets; pure, the same for every backend."""

from collections.abc import Sequence

from miglab_api.leases import ENDED_STATES, LeaseState, LeaseView, ServerStatus, WarningKind
from miglab_api.line import Line, LineAct, Standing, StandingState
from miglab_api.tickets import TicketState, TicketView

_QUEUED = frozenset({TicketState.WAITING, TicketState.ASIDE, TicketState.OFFERED})
_URGENCY = (
    StandingState.WARNED,
    StandingState.OFFERED,
    StandingState.ASKED,
    StandingState.ASIDE,
    StandingState.STARTING,
    StandingState.HOLDING,
    StandingState.WAITING,
    StandingState.RELEASING,
)


def line_of(leases: Sequence[LeaseView], tickets: Sequence[TicketView], now: float) -> Line:
    """Return the line of the person whose leases and tickets these are.

    Args:
        leases: those of the person; ended ones are left out.
        tickets: those of the person; only those in the queue and offers count.
        now: the service's moment, seconds since the epoch.
    """
    queued = [ticket for ticket in tickets if ticket.state in _QUEUED]
    offered_leases = {ticket.lease for ticket in queued if ticket.lease is not None}
    # A ticket waits until all slices of its lease are made: that is one place in line.
    waiting_tickets = {ticket.id for ticket in queued if ticket.state is TicketState.WAITING}
    standings = [
        *(_queued_standing(ticket) for ticket in queued),
        *(
            _lease_standing(lease)
            for lease in leases
            if lease.state not in ENDED_STATES
            and lease.id not in offered_leases
            and lease.ticket not in waiting_tickets
        ),
    ]
    by_urgency = sorted(standings, key=lambda standing: _URGENCY.index(standing.state))
    return Line(now=now, standings=tuple(by_urgency))


def line_of_server(status: ServerStatus, now: float) -> Line:
    """Return the line of one server, from what it holds and waits for."""
    leases = [lease for lease in (status.lease,) if lease is not None]
    tickets = [ticket for ticket in (status.ticket,) if ticket is not None]
    return line_of(leases, tickets, now)


def _queued_standing(ticket: TicketView) -> Standing:
    state = StandingState(ticket.state.value)
    if state is StandingState.WAITING and ticket.answer_by is not None:
        state = StandingState.ASKED
    acts = {
        StandingState.WAITING: (LineAct.RESUME, LineAct.LEAVE),
        StandingState.ASKED: (LineAct.STAY, LineAct.LEAVE),
        StandingState.ASIDE: (LineAct.RETURN, LineAct.LEAVE),
        StandingState.OFFERED: (LineAct.TAKE, LineAct.DECLINE),
    }
    ends_at = {
        StandingState.ASKED: ticket.answer_by,
        StandingState.ASIDE: ticket.expires_at,
        StandingState.OFFERED: ticket.expires_at,
    }
    return Standing(
        state=state,
        server=ticket.server or "",
        course=ticket.course,
        shape=ticket.shape,
        ticket=ticket.id,
        lease=ticket.lease,
        position=ticket.position,
        waiting=ticket.waiting,
        estimate=ticket.estimate,
        message=ticket.message,
        since=ticket.offered_at if state is StandingState.OFFERED else None,
        until=ends_at.get(state),
        acts=acts[state],
    )


def _lease_standing(lease: LeaseView) -> Standing:
    state = _STATE_OF_LEASE[lease.state]
    warning = lease.warning if state is StandingState.WARNED else None
    return Standing(
        state=state,
        server=lease.server,
        course=lease.course,
        shape=lease.shape,
        lease=lease.id,
        message=warning.reason if warning else "",
        since=warning.at if warning else lease.attached_at,
        until=warning.reclaim_at if warning else lease.ends_at,
        guaranteed_until=lease.guaranteed_until,
        others_wait=lease.others_wait,
        extension_s=lease.extension_s if lease.extensions_left else 0,
        acts=_acts_on_lease(state, lease),
    )


_STATE_OF_LEASE = {
    LeaseState.GRANTED: StandingState.STARTING,
    LeaseState.ATTACHED: StandingState.STARTING,
    LeaseState.RUNNING: StandingState.HOLDING,
    LeaseState.WARNED: StandingState.WARNED,
    LeaseState.RELEASING: StandingState.RELEASING,
}


_ENDED_BY_EXTENSION = (None, WarningKind.IDLE, WarningKind.TIME)


def _acts_on_lease(state: StandingState, lease: LeaseView) -> tuple[LineAct, ...]:
    if state is StandingState.RELEASING:
        return ()
    if state is StandingState.STARTING:
        return (LineAct.RESUME,)
    kind = lease.warning.kind if lease.warning else None
    keepalives_left = lease.warning.keepalives_left if lease.warning else 0
    keepalive = (LineAct.KEEPALIVE,) if kind is WarningKind.IDLE and keepalives_left else ()
    can_extend = lease.extensions_left and kind in _ENDED_BY_EXTENSION
    extend = (LineAct.EXTEND,) if can_extend else ()
    return (*keepalive, *extend, LineAct.OPEN, LineAct.RELEASE)

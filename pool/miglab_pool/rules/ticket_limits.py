"""When a ticket ends, or steps aside, unless somebody does something.  Pure."""

from miglab_api.tickets import TicketState
from miglab_pool.model.rows import TicketRow
from miglab_pool.rules.lease_length import offer_s
from miglab_pool.settings import PoolSettings

ANSWER_S = 600.0  # for the answer to whether one still waits
ASIDE_S = 12 * 3600.0


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

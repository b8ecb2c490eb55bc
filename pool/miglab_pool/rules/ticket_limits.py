"""When a ticket ends unless somebody does something.  Pure."""

from miglab_api.tickets import TicketState
from miglab_pool.model.rows import TicketRow
from miglab_pool.rules.lease_length import offer_s
from miglab_pool.settings import PoolSettings


def expires_at(settings: PoolSettings, started_at: float, ticket: TicketRow) -> float | None:
    """When the ticket ends; None if nothing ends it.

    Args:
        settings: the site's limits.
        started_at: when every grace began anew: the pool was restarted or stood still, or the
            clock was set.
        ticket: which.
    """
    if ticket.state == TicketState.OFFERED and ticket.offered_at is not None:
        return max(ticket.offered_at, started_at) + offer_s(settings, ticket)
    if ticket.state != TicketState.WAITING:
        return None
    longest = ticket.created_at + settings.pool.longest_wait_s
    if ticket.lease is not None:  # its slices are being made: no grace, yet not for ever
        return longest
    unattended = max(ticket.attended_at, started_at) + settings.pool.attend_grace_s
    return min(unattended, longest)

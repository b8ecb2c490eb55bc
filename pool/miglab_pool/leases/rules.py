"""When leases end, by what is set: for who waits behind them.  Pure: settings and rows in."""

from math import inf

from miglab_api.leases import LeaseState
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.queue.quotas import Asked, longest_set_s
from miglab_pool.settings import PoolSettings
from miglab_pool.state.placement import SOON

BORROW_OFFER_S = 30.0  # the hub takes it in the moment it hears of it


def longest_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float | None:
    """The longest lease somebody may have, without extensions, seconds; None for no limit.

    Slice-hours that are used up may end it sooner.
    """
    asked = Asked(row.user, row.course, None, 0)
    longest = longest_set_s(settings.quotas, asked, settings.pool.longest_lease_s)
    return bounded(settings, row, longest)


def bounded(
    settings: PoolSettings, row: TicketRow | LeaseRow, longest: float | None
) -> float | None:
    """A longest lease, and for measurements no longer than they may borrow."""
    if not row.is_borrow:
        return longest
    return min(settings.pool.borrow_s, inf if longest is None else longest)


def lasts_s(settings: PoolSettings, row: TicketRow) -> float:
    """How long slices granted now are away at most, seconds; infinite for no limit.

    Until the lease is taken and its server attached, the longest lease, every extension, and then
    the time for a reclaim that comes late and a container that has to be removed.  What is borrowed
    is neither extended nor warned about.
    """
    longest = longest_s(settings, row)
    if longest is None:
        return inf
    if row.is_borrow:
        return handover_s(settings, row) + longest + settings.tuning.remove_after_s
    extended_s = settings.pool.extensions * settings.pool.extension_s
    return handover_s(settings, row) + longest + extended_s + clearing_s(settings)


def handover_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """From the grant to the attach, at most."""
    return offer_s(settings, row) + settings.pool.attach_s


def offer_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """How long an offer is held; no person has to press a button for a measurement."""
    longest = settings.pool.offer_s
    return min(longest, BORROW_OFFER_S) if row.is_borrow else longest


def clearing_s(settings: PoolSettings) -> float:
    """From a lease's end until its placement is empty, unless something is stuck."""
    return settings.reclaim.warning_s + settings.tuning.remove_after_s


def extensions_s(settings: PoolSettings, lease: LeaseRow) -> float:
    """By how much the holder may still put the end off, seconds."""
    return extensions_left(settings, lease) * settings.pool.extension_s


def extensions_left(settings: PoolSettings, lease: LeaseRow) -> int:
    """How often the holder may still put the end off; what is borrowed ends when it is set."""
    return 0 if lease.is_borrow else max(0, settings.pool.extensions - lease.extensions)


def set_end(settings: PoolSettings, lease: LeaseRow) -> float:
    """The end of a lease as it is set now, whether or not it was warned; infinite for none."""
    if lease.state == LeaseState.GRANTED:
        longest = longest_s(settings, lease)
        return inf if longest is None else lease.granted_at + handover_s(settings, lease) + longest
    return inf if lease.ends_at is None else lease.ends_at


def frees_at(settings: PoolSettings, lease: LeaseRow) -> float:
    """When a lease's slices are free by what is set: its end, or its reclaim if that is sooner."""
    if lease.state == LeaseState.RELEASING:
        return SOON
    reclaim_at = inf if lease.reclaim_at is None else lease.reclaim_at
    return min(reclaim_at, set_end(settings, lease))


def keepalives_left(settings: PoolSettings, lease: LeaseRow) -> int:
    """How often "I am still here" still counts."""
    return max(0, settings.reclaim.keepalives - lease.keepalives)

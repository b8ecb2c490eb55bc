"""When a lease ends that is attached now, and by how much it may be extended.  Reads only."""

from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.queue import quota_checks
from miglab_pool.reservations import ahead as reservations_ahead
from miglab_pool.reservations.ahead import Outlook
from miglab_pool.state.once import once
from miglab_pool.state.view import PoolView

LEAST_S = 60.0  # an extension by less is not worth a click


def ends_at(view: PoolView, lease: LeaseRow) -> float | None:
    """Its end, by what is set; None for no limit.

    What is borrowed is back before a slot is kept that it overlaps: a class never finds a
    measurement on a reserved slot, nor is a measurement warned.
    """
    end = quota_checks.ends_at(view, lease)
    if end is None or not lease.is_borrow:
        return end
    time = reservations_ahead.first_blocked(view, lease, end)
    return end if time is None else max(view.at, time.begins)


@once
def extension_limit_s(view: PoolView, lease: LeaseRow) -> float:
    """The most that one extension adds to a lease now, seconds; 0 for none.

    What is reserved may leave less than an extension's length, or nothing.
    """
    longest_s = view.settings.pool.extension_s
    if lease.ends_at is None or not view.reservations:
        return longest_s
    begins = max(lease.ends_at, view.at)
    time = _outlook(view).first_blocked(lease, begins + longest_s)
    most_s = longest_s if time is None else time.begins - begins
    return most_s if most_s >= LEAST_S else 0.0


@once
def _outlook(view: PoolView) -> Outlook:
    """The time ahead, as far as any lease may be extended: the same for all of them."""
    ends = (lease.ends_at or view.at for lease in view.leases.values())
    furthest = max([view.at, *ends]) + view.settings.pool.extension_s
    return Outlook(view, furthest)

"""When a lease ends that is attached now.  Pure: the view in, a time out."""

from miglab_pool.decisions import quota_checks, reservations_ahead
from miglab_pool.model.rows import LeaseRow
from miglab_pool.state.view import PoolView


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

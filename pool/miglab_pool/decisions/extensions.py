"""How much longer a lease may be made at a time, for its holder to see before asking.

What is reserved may leave less than an extension's length, or nothing.
"""

from miglab_pool.decisions.reservations_ahead import Outlook
from miglab_pool.model.once import once
from miglab_pool.model.rows import LeaseRow
from miglab_pool.state.view import PoolView

LEAST_S = 60.0  # less is not worth a click


@once
def extension_limit_s(view: PoolView, lease: LeaseRow) -> float:
    """The most that one extension adds to a lease now, seconds; 0 for none."""
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
    ends = (lease.ends_at or 0.0 for lease in view.leases.values())
    furthest = max(view.at, *ends, view.at) + view.settings.pool.extension_s
    return Outlook(view, furthest)

"""How a lease leaves the pool, live or over."""

from miglab_api.leases import LeaseView
from miglab_pool.model.rows import LeaseRow
from miglab_pool.state.store import Store
from miglab_pool.views import pool_views


def lease_answer(store: Store, row: LeaseRow) -> LeaseView:
    """A lease with its slices, those that are gone among them.  The caller holds the lock."""
    slices = (store.ledger.find_slice(number) for number in row.slices)
    rows = [item for item in slices if item is not None]
    return pool_views.full_lease_view(store.current, row, rows)

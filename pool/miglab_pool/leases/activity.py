"""How much of each lease was work: what the reclaimer saw, added up by lease and day.

The reclaimer's verdicts are of the moment; what is kept here is what a report of usage needs of
them.  Time that could not be told is kept as such: unknown is never idle.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy.dialects.sqlite import insert

from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.state.store import Store

DAY_S = 24 * 3600
_FIGURES = ("active_s", "idle_s", "unknown_s")


@dataclass(frozen=True, slots=True)
class Spent:
    """What was seen of a lease since it was told last, seconds."""

    lease: int
    active_s: float = 0.0
    idle_s: float = 0.0
    unknown_s: float = 0.0


def add(store: Store, spent: Iterable[Spent]) -> None:
    """Add to what the ledger knows of these leases' day (UTC)."""
    with store.write() as tx:
        day = int(tx.at // DAY_S)
        rows = [
            {"lease": one.lease, "day": day} | {name: getattr(one, name) for name in _FIGURES}
            for one in spent
            if store.ledger.find(LeaseRow, one.lease) is not None
        ]
        if rows:
            tx.add(_ADD, rows)


_NEW = insert(tables.activity)
_ADD = _NEW.on_conflict_do_update(
    index_elements=["lease", "day"],
    set_={name: tables.activity.c[name] + _NEW.excluded[name] for name in _FIGURES},
)

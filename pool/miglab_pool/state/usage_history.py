"""How much each course and user has used lately: slice-hours, exponentially decayed.

A lease counts from attach to its end, weighted by its memory slices; use of one half-life ago
counts half (as in Slurm's multifactor priority, PriorityDecayHalfLife).  The ledger is read once;
afterwards each lease that ends is added to a sum, and a sum decays as a whole.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from sqlalchemy import func, select

from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.queue.rules import FORGOTTEN_AFTER, WEEK_S, UsageTotals, Use, add, decayed, over_by

CLOCK_S = 60.0  # by which a moment may be before the one at which the ledger was read


class Uses:
    """The leases of the last weeks, live and over, and the sums of those that are over.

    Args:
        ledger: read once; then its state tells which leases began and ended.
        half_life_s: after which time use counts half, seconds.
    """

    def __init__(self, ledger: Ledger, half_life_s: float) -> None:
        self._ledger = ledger
        self._half_life_s = half_life_s
        self._horizon_s = max(WEEK_S, FORGOTTEN_AFTER * half_life_s)
        self._live: dict[int, Use] = {}
        self._over: dict[int, Use] = {}
        self._sums: dict[tuple[str, str], float] = defaultdict(float)  # as they count at _at
        self._at: float | None = None
        self._totals: UsageTotals | None = None

    def totals(self, now: float) -> UsageTotals:
        """What leases have used lately, by the rows as they are; the same until these change."""
        if self._is_outdated(now) or self._follow():
            self._totals = None
        if self._totals is None:
            self._totals = self._sum_up(now)
        return self._totals

    def _sum_up(self, now: float) -> UsageTotals:
        if self._is_outdated(now):
            self._read(now)
            self._follow()
        assert self._at is not None
        over, live = tuple(self._over.values()), tuple(self._live.values())
        return UsageTotals(self._half_life_s, self._at, dict(self._sums), over, live)

    def _is_outdated(self, now: float) -> bool:
        state = self._ledger.state
        is_undone = any(number in self._over for number in chain(state.leases, state.ended))
        at = self._at
        return at is None or is_undone or not -CLOCK_S <= now - at <= self._horizon_s / 2

    def _follow(self) -> bool:
        """Take in what began and ended; returns whether anything did."""
        state = self._ledger.state
        ended = self._live.keys() - state.leases.keys()
        for number in ended:
            self._end(self._live.pop(number), self._ended(number))
        state.ended.clear()
        changed = [lease for lease in state.leases.values() if self._is_news(lease)]
        for lease in changed:
            self._live[lease.id] = self._use_of(lease)
        return bool(ended or changed)

    def _is_news(self, lease: LeaseRow) -> bool:
        known = self._live.get(lease.id)
        return known is None or known.began != lease.attached_at

    def _read(self, now: float) -> None:
        self._at = now
        self._live.clear()
        self._sums.clear()
        self._over = {
            use.lease: over_by(use, now)
            for use in read_over(self._ledger, since=now - self._horizon_s)
        }
        for use in self._over.values():
            add(self._sums, use, decayed(use, now, self._half_life_s))

    def _ended(self, number: int) -> LeaseRow | None:
        """How a lease ended: from memory, or from the file if that was read anew since."""
        return self._ledger.state.ended.get(number) or self._ledger.find_lease(number)

    def _end(self, use: Use, row: LeaseRow | None) -> None:
        if self._at is None or row is None or row.attached_at is None or row.ended_at is None:
            return
        use = replace(use, began=row.attached_at, ended=row.ended_at)
        self._over[use.lease] = use
        add(self._sums, use, decayed(use, self._at, self._half_life_s))

    def _use_of(self, lease: LeaseRow) -> Use:
        slices = (self._ledger.find_slice(number) for number in lease.slices)
        size = sum(row.size for row in slices if row is not None)
        return Use(
            lease.id,
            lease.user,
            lease.course,
            lease.server,
            size,
            lease.attached_at,
            None,
            lease.shape,
        )


def read_over(ledger: Ledger, since: float) -> Iterable[Use]:
    """The leases that a server held and that ended after a moment; one query."""
    leases, held, slices = tables.leases.c, tables.lease_slices.c, tables.slices.c
    query = (
        select(
            leases.id.label("lease"),
            leases.user,
            leases.course,
            leases.server,
            leases.shape,
            func.sum(slices.size).label("size"),
            leases.attached_at.label("began"),
            leases.ended_at.label("ended"),
        )
        .join(tables.lease_slices, held.lease == leases.id)
        .join(tables.slices, slices.id == held.slice)
        .where(leases.attached_at.is_not(None), leases.ended_at > since)
        .group_by(leases.id)
        .order_by(leases.ended_at)
    )
    return [Use(**row) for row in ledger.read(query)]

"""Warned before it is reclaimed: the ledger's part.  Decisions only, each one transaction.

    running → warned → running      activity, "I am still here", an extension, nobody waits any more
                     → releasing    `reclaim_at` has come

Whether to warn, and whether to take back, is the reclaimer's to decide; only the rules of the
states are here.  The reclaimer never shortens its own warnings: one may be put off, or end.  One by
staff comes sooner where an end that nothing puts off does.
"""

from dataclasses import replace

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.rules import keepalives_left
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.refused import Refused
from miglab_pool.state.store import Store, Subject, locked

USED = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING})


class LeaseWarnings(Subject):
    """See the module."""

    @locked
    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder.  An idle warning gives way to one of another kind, and to nothing else.

        Args:
            number: the lease.
            kind: what it is about.
            reason: why, in words for the holder; in the ledger too.
            reclaim_at: when it is to be reclaimed.

        Raises:
            Refused: the lease is not in use, or warned already.
        """
        with self.store.write(durable=True) as tx:
            lease = find(self.store, number)
            gives_way = lease.warn_kind == WarningKind.IDLE and kind is not WarningKind.IDLE
            if lease.state not in USED and not gives_way:
                raise Refused(
                    "stale-lease", f"Lease {number} is {lease.state}: there is nobody to warn."
                )
            warned = replace(
                lease,
                state=LeaseState.WARNED,
                warned_at=tx.at,
                reclaim_at=max(reclaim_at, tx.at),
                warn_kind=kind.value,
                warn_reason=reason,
            )
            tx.put(warned, "reclaimer", reason)
            if gives_way:
                tx.record(warned, "reclaimer", f"warned anew: {reason}")
        return lease_answer(self.store, warned)

    @locked
    def end_warning(self, number: int, by: str, reason: str) -> LeaseView:
        """The holder keeps the lease; without a warning nothing happens."""
        with self.store.write() as tx:
            lease = find(self.store, number)
            if lease.state == LeaseState.WARNED:
                lease = lease.without_warning()
                tx.put(lease, by, reason)
        return lease_answer(self.store, lease)

    @locked
    def put_off(self, number: int, reclaim_at: float, reason: str) -> LeaseView:
        """Give the holder until then: the warning could not be answered, or a clock jumped."""
        with self.store.write(durable=True) as tx:
            lease = find(self.store, number)
            if lease.state == LeaseState.WARNED and lease.reclaim_at != reclaim_at:
                lease = replace(lease, reclaim_at=reclaim_at)
                tx.put(lease)
                tx.record(lease, "reclaimer", reason)
        return lease_answer(self.store, lease)

    @locked
    def bring_forward(self, number: int, reclaim_at: float, reason: str) -> LeaseView:
        """An end that nothing puts off comes before the one that staff set: the sooner one counts.

        It stays a warning by staff: only they may let the holder keep the lease.

        Args:
            number: the lease; without a warning by staff nothing happens.
            reclaim_at: when that end comes.
            reason: which it is, in words for the holder, who reads what staff said after it.
        """
        with self.store.write(durable=True) as tx:
            lease = find(self.store, number)
            is_staffs = lease.state == LeaseState.WARNED and lease.warn_kind == WarningKind.STAFF
            until = lease.reclaim_at if is_staffs else None
            if until is not None and reclaim_at < until:
                said = f"Sooner than said before: {reason} {lease.warn_reason}"
                lease = replace(lease, reclaim_at=max(reclaim_at, tx.at), warn_reason=said)
                tx.put(lease)
                tx.record(lease, "reclaimer", f"ends sooner: {reason}")
        return lease_answer(self.store, lease)

    @locked
    def keepalive(self, number: int, by: str) -> LeaseView:
        """The holder is still there: ends an idle warning, and counts for a while, so many times.

        Raises:
            Refused: ``no-keepalive``: said too often without work, or it is not about being idle.
        """
        with self.store.write(durable=True) as tx:
            lease = find(self.store, number)
            refusal = _why_no_stay(self.store, lease)
            if refusal is not None:
                tx.record(lease, by, f"still here: {refusal.message}", "refused")
            elif lease.state == LeaseState.WARNED:
                until = tx.at + self.store.settings.reclaim.still_here_s
                lease = replace(
                    lease.without_warning(), keepalives=lease.keepalives + 1, keepalive_until=until
                )
                tx.put(lease, by, "I am still here", action="keepalive")
        if refusal is not None:
            raise refusal
        return lease_answer(self.store, lease)

    @locked
    def worked(self, number: int) -> None:
        """Work was seen: "I am still here" counts anew."""
        with self.store.write() as tx:
            lease = self.store.state.leases.get(number)
            if lease is not None and (lease.keepalives or lease.keepalive_until is not None):
                tx.put(replace(lease, keepalives=0, keepalive_until=None))


def _why_no_stay(store: Store, lease: LeaseRow) -> Refused | None:
    if lease.state != LeaseState.WARNED:
        return None
    if lease.warn_kind != WarningKind.IDLE:
        message = (
            f"An extension does not change this end: {lease.warn_reason} Save your work in time."
        )
        return Refused("no-keepalive", message)
    if keepalives_left(store.settings, lease):
        return None
    return Refused(
        "no-keepalive",
        f"You have already said so {lease.keepalives} times, and nothing has run since. "
        "Run something on the slice, or save your work: somebody else may need it.",
    )


def find(store: Store, number: int) -> LeaseRow:
    """The lease, live or over; Refused if there never was one."""
    row = store.ledger.find_lease(number)
    if row is None:
        raise Refused("unknown-lease", f"There is no lease {number}.", 404)
    return row


def lease_answer(store: Store, row: LeaseRow) -> LeaseView:
    """A lease with its slices, those that are gone among them.  The caller holds the lock."""
    slices = (store.ledger.find_slice(number) for number in row.slices)
    rows = [item for item in slices if item is not None]
    return pool_views.full_lease_view(store.current, row, rows)

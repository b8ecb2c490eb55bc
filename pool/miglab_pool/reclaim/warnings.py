"""Warned before it is reclaimed: the ledger's part.  Decisions only, each one transaction.

    running → warned → running      activity, "I am still here", an extension, nobody waits any more
                     → releasing    `reclaim_at` has come

Whether to warn, and whether to take back, is the reclaimer's to decide; only the rules of the
states are here.  The reclaimer never shortens its own warnings: one may be put off, or end.  One by
staff comes sooner where an end that nothing puts off does.

The leases as the reclaimer looks at them: all that are in use.  Reads only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_pool.leases import transactions as leases
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.rules import keepalives_left
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.queue.demand import others_waiting
from miglab_pool.refused import Refused
from miglab_pool.reservations import class_ends
from miglab_pool.reservations.rules import MakesWay
from miglab_pool.state.store import Store
from miglab_pool.state.view import PoolView

USED = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING})


def warn(store: Store, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseRow:
    """Warn the holder.  An idle warning gives way to one of another kind, and to nothing else.

    Args:
        store: the pool.
        number: the lease.
        kind: what it is about.
        reason: why, in words for the holder; in the ledger too.
        reclaim_at: when it is to be reclaimed.

    Raises:
        Refused: the lease is not in use, or warned already.
    """
    with store.write(durable=True) as tx:
        lease = leases.find(store, number)
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
    return warned


def end_warning(store: Store, number: int, by: str, reason: str) -> LeaseRow:
    """The holder keeps the lease; without a warning nothing happens."""
    with store.write() as tx:
        lease = leases.find(store, number)
        if lease.state == LeaseState.WARNED:
            lease = lease.without_warning()
            tx.put(lease, by, reason)
    return lease


def put_off(store: Store, number: int, reclaim_at: float, reason: str) -> LeaseRow:
    """Give the holder until then: the warning could not be answered, or a clock jumped."""
    with store.write(durable=True) as tx:
        lease = leases.find(store, number)
        if lease.state == LeaseState.WARNED and lease.reclaim_at != reclaim_at:
            lease = replace(lease, reclaim_at=reclaim_at)
            tx.put(lease)
            tx.record(lease, "reclaimer", reason)
    return lease


def bring_forward(store: Store, number: int, reclaim_at: float, reason: str) -> LeaseRow:
    """An end that nothing puts off comes before the one that staff set: it counts, never a later.

    It stays a warning by staff: only they may let the holder keep the lease.

    Args:
        store: the pool.
        number: the lease; without a warning by staff nothing happens.
        reclaim_at: when that end comes.
        reason: which it is, in words for the holder, who reads what staff said after it.
    """
    with store.write(durable=True) as tx:
        lease = leases.find(store, number)
        is_staffs = lease.state == LeaseState.WARNED and lease.warn_kind == WarningKind.STAFF
        until = lease.reclaim_at if is_staffs else None
        if until is not None and reclaim_at < until:
            said = f"Sooner than said before: {reason} {lease.warn_reason}"
            lease = replace(lease, reclaim_at=max(reclaim_at, tx.at), warn_reason=said)
            tx.put(lease)
            tx.record(lease, "reclaimer", f"ends sooner: {reason}")
    return lease


def stay(store: Store, number: int, by: str) -> LeaseRow:
    """The holder is still there: ends an idle warning, and counts for a while, so many times.

    Raises:
        Refused: ``no-keepalive``: said too often without work, or the end is not about being idle.
    """
    with store.write(durable=True) as tx:
        lease = leases.find(store, number)
        refusal = _why_no_stay(store, lease)
        if refusal is not None:
            tx.record(lease, by, f"still here: {refusal.message}", "refused")
        elif lease.state == LeaseState.WARNED:
            until = tx.at + store.settings.reclaim.keepalive_s
            lease = replace(
                lease.without_warning(), keepalives=lease.keepalives + 1, keepalive_until=until
            )
            tx.put(lease, by, "I am still here", action="keepalive")
    if refusal is not None:
        raise refusal
    return lease


def worked(store: Store, number: int) -> None:
    """Work was seen: "I am still here" counts anew."""
    with store.write() as tx:
        lease = store.state.leases.get(number)
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


AHEAD_S = 3600.0  # longer than anybody is warned before an end
IN_USE = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED})


@dataclass(frozen=True, slots=True)
class Case:
    """A lease in use.

    Attributes:
        lease: with its slices, their memory and processes as last read.
        held_since: when its server was attached, seconds since the epoch.
        keepalives: how often "I am still here" was said since work was last seen.
        keepalive_until: until when the last of these counts.
        end_reason: why it ends at its own end, where that is not its length.
        makes_way: its end, if the class it was drawn for is over and others need its slot.
    """

    lease: LeaseView
    held_since: float
    keepalives: int
    keepalive_until: float | None
    makes_way: MakesWay | None = None
    end_reason: str = ""

    @property
    def processes(self) -> int | None:
        """How many processes are on its slices; None if one cannot be read."""
        return _sum(item.processes for item in self.lease.slices)

    @property
    def memory_used_mib(self) -> int | None:
        """Memory in use on its slices; None if one cannot be read."""
        return _sum(item.memory_used_mib for item in self.lease.slices)

    @property
    def activity_pct(self) -> float | None:
        """How busy the busiest of its slices is, percent; None if none tells."""
        told = (item.activity_pct for item in self.lease.slices)
        return max((share for share in told if share is not None), default=None)


def _sum(figures: Iterable[int | None]) -> int | None:
    """Their sum if there are any and all are known."""
    found = list(figures)
    known = [figure for figure in found if figure is not None]
    return sum(known) if found and len(known) == len(found) else None


def cases(view: PoolView) -> list[Case]:
    """All leases in use."""
    ends = class_ends.ends(view, AHEAD_S)
    return [
        Case(
            pool_views.lease_view(view, row, others_wait=others_waiting(view, row)),
            row.attached_at or row.granted_at,
            row.keepalives,
            row.keepalive_until,
            makes_way=ends.get(row.id),
        )
        for row in view.leases.values()
        if row.state in IN_USE and row.holder
    ]

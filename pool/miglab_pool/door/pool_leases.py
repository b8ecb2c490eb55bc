"""Leases: attached, extended, warned, released."""

from collections.abc import Iterable

from miglab_api.leases import Fence, LeaseState, LeaseView, WarningKind
from miglab_pool.leases import activity
from miglab_pool.leases import transactions as leases
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.activity import Spent
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.reclaim import warnings
from miglab_pool.reclaim import warnings as lease_cases
from miglab_pool.reclaim.warnings import Case
from miglab_pool.state.store import Store
from miglab_pool.worker.worker import Worker


def lease_answer(store: Store, row: LeaseRow) -> LeaseView:
    """A lease with its slices, those that are gone among them.  The caller holds the lock."""
    slices = (store.ledger.find_slice(number) for number in row.slices)
    rows = [item for item in slices if item is not None]
    return pool_views.full_lease_view(store.current, row, rows)


class PoolLeases:
    """See the module."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store, self._worker = store, worker

    def _answer(self, row: LeaseRow) -> LeaseView:
        return lease_answer(self._store, row)

    # -- reading ------------------------------------------------------------------------------

    def find(self, number: int) -> LeaseView:
        """One lease, live or over.

        Raises:
            Refused: there is none.
        """
        with self._store.lock:
            return self._answer(leases.find(self._store, number))

    def of_server(self, user: str, server: str) -> LeaseView | None:
        """The live lease of one server."""
        view = self._store.current
        mine = [row for row in view.leases.values() if (row.user, row.server) == (user, server)]
        return pool_views.full_lease_view(view, mine[-1]) if mine else None

    def live(self, user: str | None = None) -> list[LeaseView]:
        """The live leases, of one user or of all."""
        view = self._store.current
        mine = (row for row in view.leases.values() if user is None or row.user == user)
        return [pool_views.full_lease_view(view, row) for row in mine]

    def brief(self) -> list[LeaseView]:
        """The live leases, without who waits for them and by how much each may be extended."""
        view = self._store.current
        return [pool_views.lease_view(view, row) for row in view.leases.values()]

    def warned(self) -> frozenset[int]:
        """The leases whose holders are warned, by id."""
        rows = self._store.current.leases.values()
        return frozenset(row.id for row in rows if row.state == LeaseState.WARNED)

    def due(self) -> list[LeaseView]:
        """The leases whose server should be stopped now: past their end, or their slice is lost.

        The pool frees nothing by this: it waits until the holder is gone.
        """
        view = self._store.current
        return [pool_views.lease_view(view, row) for row in leases.due(view)]

    def cases(self) -> list[Case]:
        """The leases in use, as the reclaimer looks at them."""
        return lease_cases.cases(self._store.current)

    # -- by the holder's side -----------------------------------------------------------------

    def attach(
        self, number: int, generation: int, holder: str, ledger: str = "", server_started: str = ""
    ) -> LeaseView:
        """The fence: only the holder that the pool accepts here may be started.

        Raises:
            Refused: ``stale-lease`` or ``bad-holder``; the holder must not be started.
        """
        with self._store.lock:
            return self._answer(
                leases.attach(self._store, number, generation, holder, ledger, server_started)
            )

    def running(self, number: int, fence: Fence | None = None) -> LeaseView:
        """The attached holder was started.

        Raises:
            Refused: ``stale-lease``; another lease has that number now, or it is over.
        """
        with self._store.lock:
            return self._answer(leases.running(self._store, number, fence))

    def release(self, number: int, by: str, reason: str, fence: Fence | None = None) -> LeaseView:
        """Ask for a lease back.  Its slices are free once the holder is confirmed gone.

        Raises:
            Refused: ``stale-lease``; another lease has that number now.
        """
        with self._store.lock:
            return self._answer(leases.release(self._store, number, by, reason, fence))

    def abandon(self, numbers: frozenset[int]) -> None:
        """These releasing leases' servers are not the hub's any more: end their holders."""
        with self._store.lock:
            self._worker.abandoned = numbers

    def extend(self, number: int, by_s: float, by: str) -> LeaseView:
        """Put off the end.

        Raises:
            Refused: ``no-extension``, with why.
        """
        with self._store.lock:
            return self._answer(leases.extend(self._store, number, by_s, by))

    def keepalive(self, number: int, by: str) -> LeaseView:
        """The holder is still there: ends an idle warning; without one nothing happens.

        Raises:
            Refused: ``no-keepalive``, with why.
        """
        with self._store.lock:
            return self._answer(warnings.stay(self._store, number, by))

    # -- by the reclaimer ---------------------------------------------------------------------

    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder that the lease is reclaimed at ``reclaim_at``.

        Raises:
            Refused: the lease is not in use, or warned already.
        """
        with self._store.lock:
            return self._answer(warnings.warn(self._store, number, kind, reason, reclaim_at))

    def end_warning(self, number: int, by: str, reason: str) -> LeaseView:
        """The holder keeps the lease; without a warning nothing happens."""
        with self._store.lock:
            return self._answer(warnings.end_warning(self._store, number, by, reason))

    def put_off(self, number: int, reclaim_at: float, reason: str) -> LeaseView:
        """Give a warned holder until ``reclaim_at``."""
        with self._store.lock:
            return self._answer(warnings.put_off(self._store, number, reclaim_at, reason))

    def bring_forward(self, number: int, reclaim_at: float, reason: str) -> LeaseView:
        """Let a warning by staff end at ``reclaim_at`` already, if that is sooner."""
        with self._store.lock:
            return self._answer(warnings.bring_forward(self._store, number, reclaim_at, reason))

    def worked(self, number: int) -> None:
        """Work was seen on the lease: "I am still here" counts anew."""
        with self._store.lock:
            warnings.worked(self._store, number)

    def note_activity(self, spent: Iterable[Spent]) -> None:
        """Keep what was seen of leases, for reports of usage."""
        activity.add(self._store, spent)

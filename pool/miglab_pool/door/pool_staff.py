"""What staff do to the pool: each method is one transaction, answered with a wire model.

``by`` is how the ledger names who does it; ``reason`` is in the ledger too; ``expected`` is what
that person saw of the thing, and if it stands otherwise by now nothing is done.
"""

from collections.abc import Collection

from miglab_api.gpus import GpuView, SliceView
from miglab_api.leases import LeaseView
from miglab_api.staff import AuditEntry, MessageRequest, SentMessage, StaffMessage
from miglab_api.tickets import TicketView
from miglab_pool.door.pool_leases import lease_answer
from miglab_pool.leases import views as pool_views
from miglab_pool.ledger.audit_wording import called
from miglab_pool.ledger.rows import LeaseRow, MessageRow, PauseKind
from miglab_pool.staff import actions as staff_gpus
from miglab_pool.staff import actions as staff_leases
from miglab_pool.staff import log as audit
from miglab_pool.staff import messages
from miglab_pool.staff import rules as staff_actions
from miglab_pool.staff.actions import find_gpu, find_slice, told_of
from miglab_pool.state.store import Store


class PoolStaff:
    """See the module.  Every method may raise `Refused`.

    Args:
        store: the pool's shared state.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def _lease_view(self, row: LeaseRow) -> LeaseView:
        return lease_answer(self._store, row)

    # -- places -------------------------------------------------------------------------------

    def gpu(self, uuid: str) -> GpuView:
        """One GPU."""
        with self._store.lock:
            return self._gpu(find_gpu(self._store, uuid).uuid)

    def _gpu(self, uuid: str) -> GpuView:
        return pool_views.gpu_view(self._store.current.gpus[uuid])

    def slice(self, number: int) -> SliceView:
        """One slice that is not gone."""
        with self._store.lock:
            return pool_views.slice_view(self._store.current, find_slice(self._store, number))

    def gpu_under(self, number: int) -> GpuView:
        """The GPU on which a slice is or was."""
        with self._store.lock:
            row = self._store.ledger.find_slice(number) or find_slice(self._store, number)
            return self.gpu(row.gpu)

    def drain_gpu(self, uuid: str, reason: str, by: str, expected: str | None = None) -> GpuView:
        """No new lease on this GPU; who runs there runs on."""
        with self._store.lock:
            return self._gpu(staff_gpus.drain_gpu(self._store, uuid, reason, by, expected).uuid)

    def undrain_gpu(self, uuid: str, reason: str, by: str, expected: str | None = None) -> GpuView:
        """The GPU takes leases again."""
        with self._store.lock:
            return self._gpu(staff_gpus.undrain_gpu(self._store, uuid, reason, by, expected).uuid)

    def drain_slice(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> SliceView:
        """No new lease at this slice's placement; a running lease goes on."""
        with self._store.lock:
            row = staff_gpus.drain_slice(self._store, number, reason, by, expected)
            return pool_views.slice_view(self._store.current, row)

    def undrain_slice(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> SliceView:
        """The slice's placement takes leases again."""
        with self._store.lock:
            row = staff_gpus.undrain_slice(self._store, number, reason, by, expected)
            return pool_views.slice_view(self._store.current, row)

    def quarantine(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> SliceView:
        """Set a slice aside that nobody holds: it stays as it is until `clear`."""
        with self._store.lock:
            row = staff_gpus.quarantine(self._store, number, reason, by, expected)
            return pool_views.slice_view(self._store.current, row)

    def clear(
        self, number: int, by: str, reason: str = "", expected: str | None = None
    ) -> SliceView:
        """Try again to destroy a slice that is quarantined."""
        with self._store.lock:
            row = staff_gpus.clear(self._store, number, reason, by, expected)
            return pool_views.slice_view(self._store.current, row)

    def adopt(
        self, number: int, by: str, reason: str = "", expected: str | None = None
    ) -> SliceView:
        """Take over a foreign slice: it is destroyed, and its placement is the pool's."""
        with self._store.lock:
            row = staff_gpus.adopt(self._store, number, reason, by, expected)
            return pool_views.slice_view(self._store.current, row)

    def pause(self, reason: str, by: str, kind: PauseKind = PauseKind.STAFF) -> None:
        """No new leases until `resume`, also after a restart; what runs, runs on."""
        self._set_pause(reason, by, kind)

    def resume(self, by: str) -> None:
        """Grant again."""
        self._set_pause("", by, None)

    def close_for_maintenance(self, reason: str, by: str) -> None:
        """Grant nothing for this reason, empty: grant again; what a person paused stays paused."""
        was, kind = self._store.state.paused, self._store.state.pause_kind
        if reason and not was:
            self.pause(reason, by, PauseKind.MAINTENANCE)
        elif kind is PauseKind.MAINTENANCE and was != reason:
            self.resume(by)
            if reason:  # of two windows that overlap the other one is still open
                self.pause(reason, by, PauseKind.MAINTENANCE)

    def _set_pause(self, reason: str, by: str, kind: PauseKind | None) -> None:
        with self._store.write(durable=True) as tx:
            staff_actions.check_pause(
                self._store.state.paused, reason, told_of(self._store, "pool", "")
            )
            tx.pause(reason, by, kind)

    # -- leases and tickets -------------------------------------------------------------------

    def reclaim(
        self, number: int, reason: str, by: str, warning_s: float, expected: str | None = None
    ) -> LeaseView:
        """Take a lease back, after a warning of so many seconds; with 0 at once."""
        with self._store.lock:
            row = staff_leases.reclaim(self._store, number, reason, by, warning_s, expected)
            return self._lease_view(row)

    def release_reclaimed(self) -> list[LeaseView]:
        """Release the leases whose warning by staff is over; for the service's timer."""
        with self._store.lock:
            return [self._lease_view(row) for row in staff_leases.release_reclaimed(self._store)]

    def extend(
        self, number: int, by_s: float, by: str, reason: str = "", expected: str | None = None
    ) -> LeaseView:
        """Give a lease more time than its holder may take; ends a warning by staff, too."""
        with self._store.lock:
            return self._lease_view(
                staff_leases.extend(self._store, number, by_s, reason, by, expected)
            )

    def put_in_front(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> TicketView:
        """Give a ticket the next slices that fit."""
        with self._store.lock:
            staff_leases.put_in_front(self._store, number, reason, by, expected)
            return self._ticket(number)

    def put_back(
        self, number: int, by: str, reason: str = "", expected: str | None = None
    ) -> TicketView:
        """Give a ticket its own position in the queue again."""
        with self._store.lock:
            staff_leases.put_back(self._store, number, reason, by, expected)
            return self._ticket(number)

    def _ticket(self, number: int) -> TicketView:
        return pool_views.ticket_view(self._store.current, self._store.state.tickets[number])

    # -- messages -----------------------------------------------------------------------------

    def send(self, asked: MessageRequest, by: str) -> SentMessage:
        """Show a message from now on."""
        with self._store.lock:
            return _sent(messages.send(self._store, asked, by))

    def message(self, number: int) -> SentMessage:
        """A message that is shown."""
        with self._store.lock:
            return _sent(messages.find(self._store, number))

    def end_message(self, number: int, by: str, reason: str = "") -> SentMessage:
        """Show a message no longer."""
        with self._store.lock:
            return _sent(messages.end(self._store, number, by, reason))

    def messages(self) -> list[SentMessage]:
        """The messages that are shown, the newest first."""
        with self._store.lock:
            return [_sent(row) for row in messages.shown(self._store)]

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """What is to be shown to whoever is at this server, the newest first."""
        with self._store.lock:
            rows = messages.shown(self._store)
            return tuple(_shown(row) for row in rows if messages.is_for(row, user, server, courses))

    # -- audit --------------------------------------------------------------------------------

    def audit(self, asked: audit.Question) -> list[AuditEntry]:
        """Log, the newest entry first.

        Reads the ledger's file and nothing else: may be called from any thread, holds up nobody.
        """
        return audit.read(self._store.ledger.path, asked)


def _sent(row: MessageRow) -> SentMessage:
    return SentMessage(
        id=row.id,
        at=row.at,
        by=row.by,
        to_user=row.to_user,
        to_server=row.to_server,
        to_course=row.to_course,
        text=row.text,
        until=row.until,
    )


def _shown(row: MessageRow) -> StaffMessage:
    return StaffMessage(id=row.id, at=row.at, by=called(row.by), text=row.text, until=row.until)

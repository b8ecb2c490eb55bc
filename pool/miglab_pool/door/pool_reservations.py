"""Reservations: made, changed, cancelled."""

from miglab_api.reservations import ReservationRequest, ReservationView
from miglab_pool.leases import views as pool_views
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.reservations import transactions as reservations
from miglab_pool.state.store import Store


class PoolReservations:
    """See the module."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _view(self, row: ReservationRow) -> ReservationView:
        return pool_views.reservation_view(self._store.current, row)

    def all(self) -> list[ReservationView]:
        """Those in force or planned, the next first."""
        return pool_views.reservations(self._store.current)

    def make(self, asked: ReservationRequest, by: str) -> ReservationView:
        """Reserve slices for a course.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self._store.lock:
            return self._view(reservations.make(self._store, asked, by))

    def change(self, number: int, asked: ReservationRequest, by: str) -> ReservationView:
        """Reserve otherwise under the same number; if that is refused, it stays as it was.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self._store.lock:
            return self._view(reservations.change(self._store, number, asked, by))

    def cancel(self, number: int, by: str, reason: str = "") -> ReservationView:
        """Cancel a reservation; leases drawn from it live on.

        Raises:
            Refused: there is none, or it is over.
        """
        with self._store.lock:
            return self._view(reservations.cancel(self._store, number, by, reason))

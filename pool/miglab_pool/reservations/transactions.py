"""Reservations are made, refused, changed and cancelled here, and their phases recorded.

The phase of a reservation follows from its row and the clock alone (`rules.phase`); the state in
the row is the phase that was recorded last, for the ledger's history.
"""

from dataclasses import replace

from miglab_api.leases import LeaseState
from miglab_api.reservations import ReservationRequest, ReservationState, ReservationView
from miglab_pool import schedule
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LIVE_RESERVATIONS, ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.certainty import Certainty, outlook
from miglab_pool.reservations.checks import (
    check_ahead,
    check_open,
    check_room,
    check_times,
    count_refusal,
    resolve_shape,
)
from miglab_pool.reservations.guarantees import extension_limit
from miglab_pool.reservations.rules import describe, phase, reserved_until
from miglab_pool.reservations.slots import drawn_until, reservations_in_force
from miglab_pool.schedule import Occurrence, local_day, weekday_mask
from miglab_pool.state.reservation_times import schedule_of
from miglab_pool.state.store import Store, Subject, locked
from miglab_pool.state.view import PoolView


class Reservations(Subject):
    """See the module."""

    def all(self) -> list[ReservationView]:
        """Return the reservations that are planned or in force, the next first."""
        view = self.store.current
        views = [reservation_view(view, row) for row in view.reservations.values()]
        return sorted(views, key=lambda reservation: (reservation.starts_at or 0.0, reservation.id))

    def between(self, since: float, until: float) -> list[ReservationView]:
        """Return the reservations that take place between two moments, the next first."""
        view = self.store.current
        views = [reservation_view(view, row) for row in view.reservations.between(since, until)]
        return sorted(views, key=lambda reservation: (reservation.starts_at or 0.0, reservation.id))

    def find(self, number: int) -> ReservationView | None:
        """Return a reservation that is planned or in force; None if there is none."""
        view = self.store.current
        row = view.reservations.get(number)
        return None if row is None else reservation_view(view, row)

    def preview(self, request: ReservationRequest, number: int = 0) -> ReservationView:
        """Return what would be reserved, and how much of it is certain; nothing is written.

        Args:
            request: what to reserve.
            number: the reservation that would be changed; 0: a new one.

        Raises:
            Refused: as `make` would.
        """
        view = self.store.current
        row, refusal = _check_request(view, _new_row(number, view.at, request, ""), request)
        if refusal is not None:
            raise refusal
        return reservation_view(view, row)

    @locked
    def make(self, request: ReservationRequest, actor: str) -> ReservationView:
        """Reserve slices for a course.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.write(durable=True) as tx:
            row = _new_row(self.store.ledger.new_id("reservation"), tx.at, request, actor)
            row, refusal = _check_request(self.store.view(tx.at), row, request)
            refusal = refusal or count_refusal(self.store.view(tx.at), row)
            if refusal is not None:
                row = replace(
                    row,
                    state=ReservationState.REFUSED,
                    reason=refusal.reason,
                    message=refusal.message,
                )
            tx.put(row, actor, row.message or describe(row))
        if refusal is not None:
            raise refusal
        return reservation_view(self.store.current, row)

    @locked
    def change(
        self,
        number: int,
        request: ReservationRequest,
        actor: str,
    ) -> ReservationView:
        """Change a reservation under its number; if that is refused, it stays as it was.

        Leases drawn from it live on.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.write(durable=True) as tx:
            before = self.store.find(ReservationRow, number)
            if before.state not in LIVE_RESERVATIONS:
                raise Refused(
                    "reservation-over", f"Reservation {number} is {before.state} already."
                )
            row = replace(_new_row(number, before.made_at, request, actor), state=before.state)
            row, refusal = _check_request(self.store.view(tx.at), row, request)
            if refusal is None:
                tx.put(row, actor)
                tx.record(row, actor, row.message or describe(row), "change")
            else:
                tx.record(before, actor, f"not changed: {refusal.message}", "refused")
        if refusal is not None:
            raise refusal
        return reservation_view(self.store.current, row)

    @locked
    def cancel(self, number: int, actor: str, reason: str = "") -> ReservationView:
        """Cancel a reservation: its slots are free for all at once; leases drawn from it live on.

        Raises:
            Refused: there is no such reservation, or it is over.
        """
        with self.store.write(durable=True) as tx:
            row = self.store.find(ReservationRow, number)
            if row.state not in LIVE_RESERVATIONS:
                raise Refused("reservation-over", f"Reservation {number} is {row.state} already.")
            message = reason or f"{actor} cancelled it."
            row = replace(
                row, state=ReservationState.CANCELLED, reason="cancelled", message=message
            )
            tx.put(row, actor, message)
        return reservation_view(self.store.current, row)


def _check_request(
    view: PoolView, row: ReservationRow, request: ReservationRequest
) -> tuple[ReservationRow, Refused | None]:
    """Return the row with its shape and first day worked out, and why it is refused, if it is."""
    try:
        row = replace(row, shape=resolve_shape(view, request))
        check_times(request, view.at)
        row = replace(row, first_date=(request.date or local_day(view.at, request.tz)).isoformat())
        check_ahead(row, view.at)
        check_open(view, row)
        check_room(view, row)
    except Refused as error:
        return row, error
    return row, None


def _new_row(
    number: int, made_at: float, request: ReservationRequest, actor: str
) -> ReservationRow:
    return ReservationRow(
        id=number,
        course=request.course,
        shape=request.shape,
        count=request.count,
        weekdays=weekday_mask(request.weekdays),
        first_date=request.date.isoformat() if request.date else "",
        last_date=request.until.isoformat() if request.until else "",
        from_time=request.from_time,
        to_time=request.to_time,
        tz=request.tz,
        grace_s=request.grace_s,
        made_by=actor,
        made_at=made_at,
        state=ReservationState.PLANNED,
        message=request.reason,
    )


def record_phases(store: Store, tx: Transaction) -> None:
    """Record in the ledger each reservation's phase by the clock; a change wakes those who wait."""
    lead_s, reservations = store.settings.pool.reserve_lead_s, store.view(tx.at).reservations
    near_rows = reservations.between(tx.at, tx.at + lead_s)
    rows = {row.id: row for row in (*near_rows, *reservations.in_progress)}
    rows |= {row.id: row for row in reservations.over_by(tx.at)}
    for row in rows.values():
        state, occurrence = phase(row, tx.at, lead_s)
        if state != row.state:
            tx.put(replace(row, state=state), reason=_describe_phase(row, state, occurrence))


def extend_drawn_guarantees(store: Store, tx: Transaction) -> None:
    """Extend the guarantee of leases that draw on a reservation to its end, if no other breaks."""
    view = store.view(tx.at)
    for number, until in drawn_until(view).items():
        row = view.leases[number]
        if row.state != LeaseState.GRANTED and row.guaranteed_until < until:
            latest_end = extension_limit(view, row, until).until
            if latest_end > row.guaranteed_until:
                tx.put(
                    replace(row, guaranteed_until=latest_end), reason="it draws on a reservation"
                )


def _describe_phase(
    row: ReservationRow, state: ReservationState, occurrence: Occurrence | None
) -> str:
    if state is ReservationState.RESERVED:
        return f"its slots are kept from now on: {describe(row)}"
    if state is ReservationState.OPEN:
        return "the grace is over: unused slots are free for everybody"
    if occurrence is None:
        return "it does not take place again"
    return f"it is over for this time; the next begins at {occurrence.starts_at:.0f}"


def reservation_view(view: PoolView, row: ReservationRow) -> ReservationView:
    """Return a reservation with its current or next occurrence."""
    at, lead_s = view.at, view.settings.pool.reserve_lead_s
    rule = schedule_of(row)
    state, occurrence = phase(row, at, lead_s) if row.is_live else (row.state, None)
    in_force = (r for r in reservations_in_force(view) if r.row.id == row.id)
    drawn_count = next((row.count - r.undrawn for r in in_force), 0)
    expected = outlook(view, row, occurrence, row.tz) if occurrence else Certainty(row.count)
    return ReservationView.of(
        row,
        weekdays=schedule.weekday_names(row.weekdays),
        date=rule.first,
        until=rule.last,
        state=ReservationState(state),
        starts_at=occurrence.starts_at if occurrence else None,
        ends_at=occurrence.ends_at if occurrence else None,
        reserved_from=occurrence.starts_at - lead_s if occurrence else None,
        reserved_until=reserved_until(row, occurrence) if occurrence else None,
        in_use=drawn_count,
        certain=expected.certain,
        all_from=expected.all_from,
        outlook=expected.message,
    )

"""Reservations: made, refused, cancelled, and when each is in force.

Decisions only.  What a reservation is doing at a moment follows from its row and the clock alone
(`phase`); the state in the row is what was noted last, for the ledger's history.  What is kept for
those in force is rules.py's concern.
"""

from dataclasses import replace

from miglab_api.leases import LeaseState
from miglab_api.reservations import ReservationRequest, ReservationState, ReservationView
from miglab_pool import schedule
from miglab_pool.ledger.rows import LIVE_RESERVATIONS, ReservationRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.refused import Refused
from miglab_pool.reservations.promises import (
    Certainty,
    check_ahead,
    check_open,
    check_room,
    check_times,
    extension_limit,
    outlook,
    shape_of,
)
from miglab_pool.reservations.rules import in_words, phase, reserved_until, schedule_of
from miglab_pool.reservations.slots import drawn_until, in_force
from miglab_pool.schedule import Occurrence, local_day, weekday_mask
from miglab_pool.state.store import Store, Subject, locked
from miglab_pool.state.view import PoolView


class Reservations(Subject):
    """See the module."""

    def all(self) -> list[ReservationView]:
        """Those in force or planned, the next first."""
        view = self.store.current
        views = [reservation_view(view, row) for row in view.reservations.values()]
        return sorted(views, key=lambda one: (one.starts_at or 0.0, one.id))

    @locked
    def preview(self, asked: ReservationRequest, number: int = 0) -> ReservationView:
        """What would be reserved, and how much of it is certain; nothing is written.

        Args:
            asked: what for.
            number: of the reservation that would be changed; 0: a new one.

        Raises:
            Refused: as `make` would.
        """
        view = self.store.current
        row, refusal = _judged(view, _row(number, view.at, asked, ""), asked)
        if refusal is not None:
            raise refusal
        return reservation_view(view, row)

    @locked
    def make(self, asked: ReservationRequest, by: str) -> ReservationView:
        """Reserve slices for a course.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.write(durable=True) as tx:
            row = _row(self.store.ledger.new_id("reservation"), tx.at, asked, by)
            row, refusal = _judged(self.store.view(tx.at), row, asked)
            if refusal is not None:
                row = replace(
                    row,
                    state=ReservationState.REFUSED,
                    reason=refusal.reason,
                    message=refusal.message,
                )
            tx.put(row, by, row.message or in_words(row))
        if refusal is not None:
            raise refusal
        return reservation_view(self.store.current, row)

    @locked
    def change(
        self,
        number: int,
        asked: ReservationRequest,
        by: str,
    ) -> ReservationView:
        """Reserve otherwise under the same number; if that is refused, it stays as it was.

        What it keeps from now on follows from what it is now; leases drawn from it live on.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.write(durable=True) as tx:
            before = self.store.find(ReservationRow, number)
            if before.state not in LIVE_RESERVATIONS:
                raise Refused(
                    "reservation-over", f"Reservation {number} is {before.state} already."
                )
            row = replace(_row(number, before.made_at, asked, by), state=before.state)
            row, refusal = _judged(self.store.view(tx.at), row, asked)
            if refusal is None:
                tx.put(row, by)
                tx.record(row, by, row.message or in_words(row), "change")
            else:
                tx.record(before, by, f"not changed: {refusal.message}", "refused")
        if refusal is not None:
            raise refusal
        return reservation_view(self.store.current, row)

    @locked
    def cancel(self, number: int, by: str, reason: str = "") -> ReservationView:
        """End a reservation: what it keeps is free for all at once; leases drawn from it live on.

        Raises:
            Refused: there is none, or it is over.
        """
        with self.store.write(durable=True) as tx:
            row = self.store.find(ReservationRow, number)
            if row.state not in LIVE_RESERVATIONS:
                raise Refused("reservation-over", f"Reservation {number} is {row.state} already.")
            message = reason or f"{by} cancelled it."
            row = replace(
                row, state=ReservationState.CANCELLED, reason="cancelled", message=message
            )
            tx.put(row, by, message)
        return reservation_view(self.store.current, row)


def _judged(
    view: PoolView, row: ReservationRow, asked: ReservationRequest
) -> tuple[ReservationRow, Refused | None]:
    """The row with its shape and first day worked out, and why it cannot be."""
    try:
        row = replace(row, shape=shape_of(view, asked))
        check_times(asked, view.at)
        row = replace(row, first_date=(asked.date or local_day(view.at, asked.tz)).isoformat())
        check_ahead(row, view.at)
        check_open(view, row)
        check_room(view, row)
    except Refused as error:
        return row, error
    return row, None


def _row(number: int, made_at: float, asked: ReservationRequest, by: str) -> ReservationRow:
    return ReservationRow(
        id=number,
        course=asked.course,
        shape=asked.shape,
        count=asked.count,
        weekdays=weekday_mask(asked.weekdays),
        first_date=asked.date.isoformat() if asked.date else "",
        last_date=asked.until.isoformat() if asked.until else "",
        from_time=asked.from_time,
        to_time=asked.to_time,
        tz=asked.tz,
        grace_s=asked.grace_s,
        made_by=by,
        made_at=made_at,
        state=ReservationState.PLANNED,
        message=asked.reason,
    )


def note_phases(store: Store, tx: Transaction) -> None:
    """Put into the ledger what the clock has made of each; a change wakes who waits for news."""
    for row in list(store.state.reservations.values()):
        state, found = phase(row, tx.at, store.settings.pool.reserve_lead_s)
        if state != row.state:
            tx.put(replace(row, state=state), reason=_what_now(row, state, found))


def guarantee_drawn(store: Store, tx: Transaction) -> None:
    """Leases that draw on a reservation are guaranteed to its end, where that breaks no other."""
    view = store.view(tx.at)
    for number, until in drawn_until(view).items():
        row = view.leases[number]
        if row.state != LeaseState.GRANTED and row.guaranteed_until < until:
            most = extension_limit(view, row, until).until
            if most > row.guaranteed_until:
                tx.put(replace(row, guaranteed_until=most), reason="it draws on a reservation")


def _what_now(row: ReservationRow, state: ReservationState, found: Occurrence | None) -> str:
    if state is ReservationState.RESERVED:
        return f"its slots are kept from now on: {in_words(row)}"
    if state is ReservationState.OPEN:
        return "the grace is over: unused slots are free for everybody"
    if found is None:
        return "it does not take place again"
    return f"it is over for this time; the next begins at {found.starts_at:.0f}"


def reservation_view(view: PoolView, row: ReservationRow) -> ReservationView:
    """A reservation, with its time in force or next."""
    at, lead_s = view.at, view.settings.pool.reserve_lead_s
    rule = schedule_of(row)
    state, found = phase(row, at, lead_s) if row.is_live else (row.state, None)
    mine = (one for one in in_force(view) if one.row.id == row.id)
    drawn = next((row.count - one.left for one in mine), 0)
    expected = outlook(view, row, found) if found else Certainty(row.count)
    return ReservationView.of(
        row,
        weekdays=schedule.weekday_names(row.weekdays),
        date=rule.first,
        until=rule.last,
        state=ReservationState(state),
        starts_at=found.starts_at if found else None,
        ends_at=found.ends_at if found else None,
        reserved_from=found.starts_at - lead_s if found else None,
        reserved_until=reserved_until(row, found) if found else None,
        drawn=drawn,
        certain=expected.certain,
        all_from=expected.all_from,
        outlook=expected.words,
    )

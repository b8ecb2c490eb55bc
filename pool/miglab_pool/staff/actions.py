"""The actions of staff on the pool, each one transaction that returns a wire model.

``actor`` is how the ledger names the person who acts, and ``reason`` is in the ledger too.
``expected`` is the state that this person saw: if the row has another by now, nothing is done.

A drained placement takes no new lease, and a running lease goes on.  When the lease of a drained
slice ends, the slice is scrubbed and made anew, still drained, until somebody ends the drain.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from miglab_api.gpus import GpuView, SliceState, SliceView
from miglab_api.leases import LeaseView
from miglab_api.staff import AuditEntry, MessageRequest, SentMessage, StaffMessage, display_name
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.leases import requests
from miglab_pool.leases import transactions as leases
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.transactions import full_view
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import (
    GpuRow,
    LeaseRow,
    MessageRow,
    PauseKind,
    Row,
    SliceRow,
    TicketRow,
)
from miglab_pool.queue.quotas import guarantee_from_grant_s
from miglab_pool.refused import Refused
from miglab_pool.reservations import feasible, guarantees
from miglab_pool.staff import log, rules
from miglab_pool.staff.rules import changed_refusal, is_as_expected
from miglab_pool.state.slices import scrub
from miglab_pool.state.store import Store, Subject, locked

MESSAGES_MAX = 200
MESSAGE_OVER = "over"
AnyRow = TypeVar("AnyRow", bound=Row)
GpuOrSliceView = GpuView | SliceView


def is_for(row: MessageRow, user: str, server: str, courses: Collection[str]) -> bool:
    """Whether a message is for the user of this server.  Pure."""
    if row.to_user is not None:
        return row.to_user == user and row.to_server in (None, server)
    return row.to_course is None or row.to_course in courses


class StaffMessages(Subject):
    """The messages of staff, kept in the ledger and shown until they expire or are ended."""

    @locked
    def send(self, request: MessageRequest, actor: str) -> SentMessage:
        """Send a message, which is shown from now on."""
        with self.store.write(durable=True) as tx:
            if self._room_for_messages(tx) < 1:
                raise Refused(
                    "too-many-messages",
                    f"{MESSAGES_MAX} messages are on display already, the maximum. "
                    "End some that are not needed any more.",
                    429,
                )
            row = self._put_message(tx, request, actor)
        return SentMessage.of(row)

    @locked
    def send_each(self, messages: Sequence[MessageRequest], actor: str) -> list[SentMessage]:
        """Send each of some students a message of their own, in one step: all of them, or none.

        Raises:
            Refused: so many more messages cannot be displayed at once.
        """
        with self.store.write(durable=True) as tx:
            room = self._room_for_messages(tx)
            if len(messages) > room:
                raise Refused(
                    "too-many-messages",
                    f"{len(messages)} students are selected, and each gets a message of their own, "
                    f"but only {room} more can be on display now ({MESSAGES_MAX} in all). Nothing "
                    "was sent. Clear the selection and send to all of the class, which is one "
                    "message; or select fewer, or withdraw some messages on the page “Log”.",
                    429,
                )
            rows = [self._put_message(tx, message, actor) for message in messages]
        return [SentMessage.of(row) for row in rows]

    def _room_for_messages(self, tx: Transaction) -> int:
        """Return how many more messages can be on display, once those that expired have ended."""
        end_expired_messages(self.store, tx)
        return MESSAGES_MAX - len(self.store.state.messages)

    def _put_message(self, tx: Transaction, request: MessageRequest, actor: str) -> MessageRow:
        if request.to_course is not None and request.to_course not in self.store.settings.courses:
            raise Refused("not-in-course", f"There is no course {request.to_course!r} here.", 404)
        row = MessageRow(
            id=self.store.ledger.new_id("message"),
            at=tx.at,
            by=actor,
            to_user=request.to_user,
            to_server=request.to_server,
            to_course=request.to_course,
            text=request.text,
            until=tx.at + 60 * request.minutes,
        )
        tx.put(row, actor, request.text, "message")
        return row

    @locked
    def message(self, number: int) -> SentMessage:
        """Return a message on display.

        Raises:
            Refused: there is no message of this number, or it is over.
        """
        return SentMessage.of(_find_message(self.store, number))

    @locked
    def end_message(self, number: int, actor: str, reason: str = "") -> SentMessage:
        """End a message, which is then shown no longer."""
        with self.store.write(durable=True) as tx:
            row = replace(_find_message(self.store, number), state=MESSAGE_OVER)
            tx.put(row, actor, reason, "end")
        return SentMessage.of(row)

    @locked
    def messages(self) -> list[SentMessage]:
        """Return the messages on display, the newest first."""
        return [SentMessage.of(row) for row in _shown_messages(self.store)]

    @locked
    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """Return the messages for the user of this server, the newest first."""
        return tuple(
            StaffMessage(
                id=row.id, at=row.at, by=display_name(row.by), text=row.text, until=row.until
            )
            for row in _shown_messages(self.store)
            if is_for(row, user, server, courses)
        )


def end_expired_messages(store: Store, tx: Transaction) -> None:
    """Record the end of messages whose time is over."""
    for row in list(store.state.messages.values()):
        if row.until <= tx.at:
            tx.put(replace(row, state=MESSAGE_OVER), reason="its time is over")


def _find_message(store: Store, number: int) -> MessageRow:
    row = store.state.messages.get(number)
    if row is None:
        raise Refused("unknown-message", f"No message {number} is on display.", 404)
    return row


def _shown_messages(store: Store) -> list[MessageRow]:
    now = store.now()
    rows = [row for row in store.state.messages.values() if row.until > now]
    return sorted(rows, key=lambda row: (-row.at, -row.id))


def describe_last_change(store: Store, row: Row) -> str:
    """Return who changed a row last, and how, as a clause."""
    return describe_last_change_of(store, row.kind, str(row.key))


def describe_last_change_of(store: Store, kind: str, target: str) -> str:
    """Return who changed last what the ledger knows by kind and target, and how, as a clause."""
    history = store.ledger.history(kind, target, limit=1)
    return log.describe_change(AuditEntry(**history[0]), store.now()) if history else ""


def check_expected(store: Store, row: Row, expected: str | None) -> None:
    """Refuse if a row changed since a person saw it; the refusal names the last change."""
    if not is_as_expected(row, expected):
        raise changed_refusal(row, expected, describe_last_change(store, row))


def record(
    store: Store, tx: Transaction, before: Row, after: AnyRow, actor: str, reason: str, action: str
) -> AnyRow:
    """Write a row and record the action in the audit, whether or not the state changed."""
    tx.put(after, actor, reason, action)
    if after.state == before.state:
        tx.record(after, actor, reason, action, _audit_course(store, after))
    return after


def _audit_course(store: Store, row: Row) -> str:
    """Return the course whose staff find the row in the audit.

    For a GPU or a slice, that is the course to which it is assigned.
    """
    if isinstance(row, GpuRow):
        return store.settings.assigned_course(row.uuid, row.idx) or row.course
    if isinstance(row, SliceRow) and not row.course:
        return _audit_course(store, store.state.gpus[row.gpu])
    return row.course


def find_gpu(store: Store, uuid: str) -> GpuRow:
    """Return the row of a GPU; Refused if the lab has none of that UUID."""
    row = store.state.gpus.get(uuid)
    if row is None:
        raise Refused("unknown-gpu", f"This lab has no GPU {uuid[:80]!r}.", 404)
    return row


def find_slice(
    store: Store, number: int, expected: str | None = None, reason: str = "already-done"
) -> SliceRow:
    """Return the row of a slice, if it has the expected state.

    Args:
        store: the pool.
        number: the number of the slice.
        expected: the state that a person saw; None for any.
        reason: the reason of the refusal for a destroyed slice, if no state is expected.

    Raises:
        Refused: there is no such slice, it is destroyed, or its state is not as expected.
    """
    row = store.state.slices.get(number)
    if row is not None:
        check_expected(store, row, expected)
        return row
    destroyed = store.ledger.find(SliceRow, number)
    if destroyed is None:
        raise Refused("unknown-slice", f"There is no slice {number}.", 404)
    raise Refused(
        reason if expected is None else "changed-meanwhile",
        f"Slice {number} is gone: {describe_last_change(store, destroyed)}. "
        "Nothing was done. Look again.",
    )


# -- the kinds of actions -------------------------------------------------------------------------


def _check_reservations(
    store: Store, tx: Transaction, after: GpuRow | SliceRow, reason: str, anyway: str
) -> str:
    """Return the reason for the ledger; refuse an action that breaks a reservation.

    With ``anyway``, the person's reason to break it, the action goes on.

    Raises:
        Refused: ``breaks-reservation``, naming the reservations.
    """
    view = store.view(tx.at)
    gpu = view.unpaused_gpus[after.gpu if isinstance(after, SliceRow) else after.uuid]
    if isinstance(after, SliceRow):
        rows = tuple(after if row.id == after.id else row for row in gpu.slices)
        gpu = replace(gpu, slices=rows)
    else:
        gpu = replace(gpu, row=after)
    broken = feasible.broken_promises(view, {**view.gpus, gpu.uuid: gpu.now(view.at)})
    if broken and not anyway:
        breaks = " ".join(promise.message for promise in broken)
        remedy = "Say why it is to be done anyway, or wait."
        raise Refused("breaks-reservation", f"{breaks} {remedy}")
    return f"{reason} (anyway: {anyway})" if broken else reason


def _room_action(
    key: str, rule: Callable[[Any, str, str], GpuRow | SliceRow]
) -> Callable[..., GpuOrSliceView]:
    """Return a method that changes a GPU, by its UUID, or a slice, by its number.

    Args:
        key: the word for the action in the audit.
        rule: makes the new row from the row, the reason, and who changed it last.
    """

    @locked
    def act(
        self: "Staff",
        target: str | int,
        reason: str,
        actor: str,
        expected: str | None = None,
        anyway: str = "",
    ) -> GpuOrSliceView:
        with self.store.write(durable=True) as tx:
            row = self._find(target, expected)
            after = rule(row, reason, describe_last_change(self.store, row))
            reason = _check_reservations(self.store, tx, after, reason, anyway)
            record(self.store, tx, row, after, actor, reason, key)
        return self.gpu(target) if isinstance(target, str) else self.slice(target)

    return act


def _destroying_action(key: str, state: SliceState, code: str) -> Callable[..., SliceView]:
    """Return a method that destroys a slice.

    Args:
        key: the word for the action in the audit.
        state: the state that the slice must have.
        code: the reason of the refusal if it has another.
    """

    @locked
    def act(
        self: "Staff", number: int, actor: str, reason: str = "", expected: str | None = None
    ) -> SliceView:
        with self.store.write(durable=True) as tx:
            row = find_slice(self.store, number, expected, code)
            rules.check_state(row, state, code)
            ledger_reason = reason or f"by hand, by {actor}"
            scrub(tx, row, ledger_reason, remake=False, cause=actor, action=key)
        return self.slice(number)

    return act


class Staff(StaffMessages):
    """See the module."""

    drain = _room_action("drain", rules.drain)
    undrain = _room_action("undrain", lambda row, _, last_change: rules.undrain(row, last_change))
    quarantine = _room_action("quarantine", rules.quarantine)
    clear = _destroying_action("clear", SliceState.QUARANTINED, "not-quarantined")
    adopt = _destroying_action("adopt", SliceState.FOREIGN, "not-foreign")

    # -- views -------------------------------------------------------------------------------

    @locked
    def gpu(self, uuid: str) -> GpuView:
        """Return a GPU."""
        return pool_views.gpu_view(self.store.current.gpus[find_gpu(self.store, uuid).uuid])

    @locked
    def slice(self, number: int) -> SliceView:
        """Return a slice that exists."""
        return pool_views.slice_view(self.store.current, find_slice(self.store, number))

    @locked
    def gpu_of(self, target: str | int) -> GpuView:
        """Return the GPU of a UUID, or the GPU on which a slice is or was."""
        if isinstance(target, str):
            return self.gpu(target)
        return self.gpu(
            (self.store.ledger.find(SliceRow, target) or find_slice(self.store, target)).gpu
        )

    def _find(self, target: str | int, expected: str | None) -> GpuRow | SliceRow:
        """Return the row of a GPU or slice, if it has the expected state."""
        if isinstance(target, int):
            return find_slice(self.store, target, expected)
        row = find_gpu(self.store, target)
        check_expected(self.store, row, expected)
        return row

    def audit(self, query: log.AuditQuery) -> list[AuditEntry]:
        """Return the entries of the audit that a query selects, the newest first.

        This reads the ledger's file alone, so any thread may call it, and it holds no lock.
        """
        return log.read_entries(self.store.ledger.path, query)

    # -- the pool -----------------------------------------------------------------------------

    def pause(self, reason: str, actor: str) -> None:
        """Grant no new leases until `resume`, also after a restart; running leases go on."""
        with self.store.write(durable=True) as tx:
            rules.check_pause(
                self.store.state.paused, reason, describe_last_change_of(self.store, "pool", "")
            )
            tx.pause(reason, actor, PauseKind.STAFF if reason else None)

    def resume(self, actor: str) -> None:
        """Grant leases again."""
        self.pause("", actor)

    # -- leases and tickets -------------------------------------------------------------------

    @locked
    def reclaim(
        self, number: int, reason: str, actor: str, warning_s: float, expected: str | None = None
    ) -> LeaseView:
        """Reclaim a lease, after a warning of so many seconds; with 0 at once."""
        with self.store.write(durable=True) as tx:
            row = self.store.find(LeaseRow, number)
            check_expected(self.store, row, expected)
            warned = rules.warn_for_reclaim(row, actor, reason, warning_s, tx.at)
            if warned is not None:
                row = record(self.store, tx, row, warned, actor, reason, "reclaim")
            else:
                ledger_reason = rules.reclaim_message(actor, reason)
                row = leases.release_lease(self.store, tx, row, actor, ledger_reason, "reclaim")
        return full_view(self.store, row)

    @locked
    def release_reclaimed(self) -> list[LeaseView]:
        """Release the leases whose warning by staff is over, in the name of who warned."""
        now = self.store.now()
        due = [row for row in self.store.state.leases.values() if rules.is_reclaim_due(row, now)]
        released = []
        for row in due:
            with self.store.write(durable=True) as tx:
                actor, reason = row.warn_by or "pool", row.warn_reason
                released.append(leases.release_lease(self.store, tx, row, actor, reason))
        return [full_view(self.store, row) for row in released]

    @locked
    def extend(
        self, number: int, by_s: float, actor: str, reason: str = "", expected: str | None = None
    ) -> LeaseView:
        """Extend a lease beyond what its holder may take; this ends a warning by staff, too."""
        with self.store.write() as tx:
            row = self.store.find(LeaseRow, number)
            check_expected(self.store, row, expected)
            after = rules.extend_guarantee(
                row, by_s, tx.at, self.store.settings.reclaim.still_here_s
            )
            guarantees.check_extension(self.store.view(tx.at), row, after.guaranteed_until)
            ledger_reason = reason or f"extended by {by_s:.0f} s"
            row = record(self.store, tx, row, after, actor, ledger_reason, "extend")
        return full_view(self.store, row)

    @locked
    def put_in_front(
        self, number: int, reason: str, actor: str, expected: str | None = None
    ) -> TicketView:
        """Give a ticket the next slices that fit, behind reservations in force only."""
        return self._move(number, reason, actor, "next", expected)

    @locked
    def put_back(self, number: int, actor: str) -> TicketView:
        """Return a ticket to its own position in the queue."""
        return self._move(number, "", actor, "back", None)

    @locked
    def call_again(
        self, number: int, reason: str, actor: str, expected: str | None = None
    ) -> TicketView:
        """Hold an offer in full again, and tell its student that staff call.

        The guarantee begins anew, too, as far as reservations leave room: nobody loses of it by
        being called.
        """
        with self.store.write(durable=True) as tx:
            row = self.store.find(TicketRow, number)
            check_expected(self.store, row, expected)
            message = f"{display_name(actor)} calls you: {reason}"
            offer = rules.renew_offer(row, message, tx.at)
            record(self.store, tx, row, offer, actor, reason, "call")
            lease = self.store.find(LeaseRow, row.lease or 0)
            until = tx.at + guarantee_from_grant_s(self.store.settings, lease)
            limit = guarantees.extension_limit(self.store.view(tx.at), lease, until)
            if limit.until > lease.guaranteed_until:
                tx.put(replace(lease, guaranteed_until=limit.until), reason="called again")
        return pool_views.ticket_view(self.store.current, self.store.state.tickets[number])

    @locked
    def pass_on(
        self, number: int, reason: str, actor: str, expected: str | None = None
    ) -> TicketView:
        """Give what is offered to a ticket to the next; the ticket steps aside and keeps its age.

        Nothing is counted as wasted: it is staff who end the offer.
        """
        with self.store.write(durable=True) as tx:
            row = self.store.find(TicketRow, number)
            check_expected(self.store, row, expected)
            rules.check_offered(row)
            message = (
                f"Your {row.shape} was offered to you and not taken yet; "
                f"{display_name(actor)} gave it to the next student (“{reason}”). "
                f"{requests.POSITION_KEPT}"
            )
            state = TicketState.ASIDE
            requests.end_ticket(self.store, tx, row, state, "passed-on", message, actor, "pass")
        return pool_views.ticket_view(self.store.current, self.store.state.tickets[number])

    def _move(
        self, number: int, reason: str, actor: str, key: str, expected: str | None
    ) -> TicketView:
        with self.store.write(durable=True) as tx:
            row = self.store.find(TicketRow, number)
            check_expected(self.store, row, expected)
            last_change = describe_last_change(self.store, row)
            is_next = key == "next"
            after = (
                rules.put_in_front(row, tx.at, last_change)
                if is_next
                else rules.restore_position(row, last_change)
            )
            record(self.store, tx, row, after, actor, reason, key)
        return pool_views.ticket_view(self.store.current, self.store.state.tickets[number])

"""What staff do to the pool: each is one transaction, answered with a wire model.

``by`` is how the ledger names who does it; ``reason`` is in the ledger too; ``expected`` is what
that person saw of the thing, and if it stands otherwise by now nothing is done.

A drained placement takes no new lease; a running lease goes on.  When a drained slice's lease ends
it is scrubbed and made anew, still drained, until somebody ends that.

Messages of staff: kept in the ledger, shown until their time is over or somebody ends them.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

from miglab_api.gpus import GpuView, SliceState, SliceView
from miglab_api.leases import LeaseView
from miglab_api.staff import AuditEntry, MessageRequest, SentMessage, StaffMessage, display_name
from miglab_api.tickets import TicketView
from miglab_pool.leases import transactions as leases
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.transactions import lease_answer
from miglab_pool.ledger.rows import (
    GpuRow,
    LeaseRow,
    MessageRow,
    PauseKind,
    Row,
    SliceRow,
    TicketRow,
)
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.refused import Refused
from miglab_pool.reservations import feasible, promises
from miglab_pool.staff import log, rules
from miglab_pool.staff.rules import changed, is_as_expected
from miglab_pool.state.slices import scrub
from miglab_pool.state.store import Store, Subject, locked

MESSAGES_MAX = 200
OVER = "over"
AnyRow = TypeVar("AnyRow", bound=Row)
Place = GpuView | SliceView


def is_for(row: MessageRow, user: str, server: str, courses: Collection[str]) -> bool:
    """Whether a message is for whoever is at this server.  Pure."""
    if row.to_user is not None:
        return row.to_user == user and row.to_server in (None, server)
    return row.to_course is None or row.to_course in courses


class StaffMessages(Subject):
    """Messages of staff: kept, and shown until their time is over or somebody ends them."""

    @locked
    def send(self, asked: MessageRequest, by: str) -> SentMessage:
        """Show a message from now on."""
        with self.store.write(durable=True) as tx:
            end_old(self.store, tx)
            if asked.to_course is not None and asked.to_course not in self.store.settings.courses:
                raise Refused("not-in-course", f"There is no course {asked.to_course!r} here.", 404)
            if len(self.store.state.messages) >= MESSAGES_MAX:
                raise Refused(
                    "too-many-messages",
                    f"{MESSAGES_MAX} messages are on display already, the maximum. "
                    "End some that are not needed any more.",
                    429,
                )
            row = MessageRow(
                id=self.store.ledger.new_id("message"),
                at=tx.at,
                by=by,
                to_user=asked.to_user,
                to_server=asked.to_server,
                to_course=asked.to_course,
                text=asked.text,
                until=tx.at + 60 * asked.minutes,
            )
            tx.put(row, by, asked.text, "message")
        return SentMessage.of(row)

    @locked
    def message(self, number: int) -> SentMessage:
        """A message that is shown.

        Raises:
            Refused: there is none of this number, or it is over.
        """
        return SentMessage.of(_find(self.store, number))

    @locked
    def end_message(self, number: int, by: str, reason: str = "") -> SentMessage:
        """Show a message no longer."""
        with self.store.write(durable=True) as tx:
            row = replace(_find(self.store, number), state=OVER)
            tx.put(row, by, reason, "end")
        return SentMessage.of(row)

    @locked
    def messages(self) -> list[SentMessage]:
        """The messages that are shown, the newest first."""
        return [SentMessage.of(row) for row in _shown(self.store)]

    @locked
    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """What is to be shown to whoever is at this server, the newest first."""
        return tuple(
            StaffMessage(
                id=row.id, at=row.at, by=display_name(row.by), text=row.text, until=row.until
            )
            for row in _shown(self.store)
            if is_for(row, user, server, courses)
        )


def end_old(store: Store, tx: Transaction) -> None:
    """Note as over what is shown no longer."""
    for row in list(store.state.messages.values()):
        if row.until <= tx.at:
            tx.put(replace(row, state=OVER), reason="its time is over")


def _find(store: Store, number: int) -> MessageRow:
    row = store.state.messages.get(number)
    if row is None:
        raise Refused("unknown-message", f"No message {number} is on display.", 404)
    return row


def _shown(store: Store) -> list[MessageRow]:
    now = store.now()
    rows = [row for row in store.state.messages.values() if row.until > now]
    return sorted(rows, key=lambda row: (-row.at, -row.id))


def last_told(store: Store, row: Row) -> str:
    """Who did what to it last, as a clause."""
    return told_of(store, row.kind, str(row.key))


def told_of(store: Store, kind: str, target: str) -> str:
    """The same, of anything that the ledger names."""
    found = store.ledger.history(kind, target, limit=1)
    return log.told(AuditEntry(**found[0]), store.now()) if found else ""


def check_expected(store: Store, row: Row, expected: str | None) -> None:
    """Refuse if it does not stand as somebody saw it, saying who did what."""
    if not is_as_expected(row, expected):
        raise changed(row, expected, last_told(store, row))


def record(
    store: Store, tx: Transaction, before: Row, after: AnyRow, by: str, reason: str, action: str
) -> AnyRow:
    """Put the row, and write down whose act it was, whether or not it changed a state."""
    tx.put(after, by, reason, action)
    if after.state == before.state:
        tx.record(after, by, reason, action, _course(store, after))
    return after


def _course(store: Store, row: Row) -> str:
    """Whose staff are to find it in the audit: the course's that a place is assigned to."""
    if isinstance(row, GpuRow):
        return store.settings.assigned_course(row.uuid, row.idx) or row.course
    if isinstance(row, SliceRow) and not row.course:
        return _course(store, store.state.gpus[row.gpu])
    return row.course


def find_gpu(store: Store, uuid: str) -> GpuRow:
    """The GPU; Refused if the lab has none of that UUID."""
    row = store.state.gpus.get(uuid)
    if row is None:
        raise Refused("unknown-gpu", f"This lab has no GPU {uuid[:80]!r}.", 404)
    return row


def find_slice(
    store: Store, number: int, expected: str | None = None, reason: str = "already-done"
) -> SliceRow:
    """The slice as somebody saw it.

    Args:
        store: the pool.
        number: the slice's.
        expected: how it stood when somebody looked.
        reason: the word of the refusal of one that is gone, if nobody said how it stood.

    Raises:
        Refused: there is none, or none any more, or it stands otherwise.
    """
    row = store.state.slices.get(number)
    if row is not None:
        check_expected(store, row, expected)
        return row
    gone = store.ledger.find(SliceRow, number)
    if gone is None:
        raise Refused("unknown-slice", f"There is no slice {number}.", 404)
    raise Refused(
        reason if expected is None else "changed-meanwhile",
        f"Slice {number} is gone: {last_told(store, gone)}. Nothing was done. Look again.",
    )


# -- what is done to a row ------------------------------------------------------------------------


def _promised(
    store: Store, tx: Transaction, after: GpuRow | SliceRow, reason: str, anyway: str
) -> str:
    """The reason for the ledger, if it breaks no reservation or is done all the same.

    Raises:
        Refused: ``breaks-reservation``, with which.
    """
    view = store.view(tx.at)
    facts = view.facts[after.gpu if isinstance(after, SliceRow) else after.uuid]
    if isinstance(after, SliceRow):
        rows = tuple(after if one.id == after.id else one for one in facts.slices)
        facts = replace(facts, slices=rows)
    else:
        facts = replace(facts, row=after)
    broken = feasible.broken_by(view, {**view.gpus, facts.row.uuid: facts.now(view.at)})
    if broken and not anyway:
        said = " ".join(one.words for one in broken)
        how = "To do it anyway, give a reason (--anyway on the command line); or wait."
        raise Refused("breaks-reservation", f"{said} {how}")
    return f"{reason} (anyway: {anyway})" if broken else reason


def _action(key: str, rule: Callable[[Any, str, str], GpuRow | SliceRow]) -> Callable[..., Place]:
    """A method that does it to a GPU, by its UUID, or to a slice that stays, by its number.

    Args:
        key: the word for it in the audit.
        rule: what it makes of the row, the reason, and who did what to it last.
    """

    @locked
    def act(
        self: "Staff",
        target: str | int,
        reason: str,
        by: str,
        expected: str | None = None,
        anyway: str = "",
    ) -> Place:
        with self.store.write(durable=True) as tx:
            row = self._seen(target, expected)
            after = rule(row, reason, last_told(self.store, row))
            reason = _promised(self.store, tx, after, reason, anyway)
            record(self.store, tx, row, after, by, reason, key)
        return self.gpu(target) if isinstance(target, str) else self.slice(target)

    return act


def _destruction(key: str, of: SliceState, code: str) -> Callable[..., SliceView]:
    """The same to a slice that goes: only its destruction is announced here."""

    @locked
    def act(
        self: "Staff", number: int, by: str, reason: str = "", expected: str | None = None
    ) -> SliceView:
        with self.store.write(durable=True) as tx:
            row = find_slice(self.store, number, expected, code)
            rules.check_is(row, of, code)
            said = reason or f"by hand, by {by}"
            scrub(tx, row, said, remake=False, cause=by, action=key)
        return self.slice(number)

    return act


class Staff(StaffMessages):
    """See the module."""

    drain = _action("drain", rules.drained)
    undrain = _action("undrain", lambda row, _, told: rules.undrained(row, told))
    quarantine = _action("quarantine", rules.quarantine)
    clear = _destruction("clear", SliceState.QUARANTINED, "not-quarantined")
    adopt = _destruction("adopt", SliceState.FOREIGN, "not-foreign")

    # -- what there is ------------------------------------------------------------------------

    @locked
    def gpu(self, uuid: str) -> GpuView:
        """One GPU."""
        return pool_views.gpu_view(self.store.current.gpus[find_gpu(self.store, uuid).uuid])

    @locked
    def slice(self, number: int) -> SliceView:
        """One slice that is not gone."""
        return pool_views.slice_view(self.store.current, find_slice(self.store, number))

    @locked
    def gpu_of(self, target: str | int) -> GpuView:
        """The GPU of that UUID, or on which the slice of that number is or was."""
        if isinstance(target, str):
            return self.gpu(target)
        return self.gpu(
            (self.store.ledger.find(SliceRow, target) or find_slice(self.store, target)).gpu
        )

    def _seen(self, target: str | int, expected: str | None) -> GpuRow | SliceRow:
        """The GPU or slice as somebody saw it."""
        if isinstance(target, int):
            return find_slice(self.store, target, expected)
        row = find_gpu(self.store, target)
        check_expected(self.store, row, expected)
        return row

    def audit(self, asked: log.Question) -> list[AuditEntry]:
        """Log, the newest entry first.

        Reads the ledger's file and nothing else: may be called from any thread, holds up nobody.
        """
        return log.read(self.store.ledger.path, asked)

    # -- all of it ----------------------------------------------------------------------------

    def pause(self, reason: str, by: str) -> None:
        """No new leases until `resume`, also after a restart; what runs, runs on."""
        with self.store.write(durable=True) as tx:
            rules.check_pause(self.store.state.paused, reason, told_of(self.store, "pool", ""))
            tx.pause(reason, by, PauseKind.STAFF if reason else None)

    def resume(self, by: str) -> None:
        """Grant again."""
        self.pause("", by)

    # -- leases and tickets -------------------------------------------------------------------

    @locked
    def reclaim(
        self, number: int, reason: str, by: str, warning_s: float, expected: str | None = None
    ) -> LeaseView:
        """Take a lease back, after a warning of so many seconds; with 0 at once."""
        with self.store.write(durable=True) as tx:
            row = self.store.find(LeaseRow, number)
            check_expected(self.store, row, expected)
            warned = rules.reclaimed(row, by, reason, warning_s, tx.at)
            if warned is not None:
                row = record(self.store, tx, row, warned, by, reason, "reclaim")
            else:
                said = rules.asked_back(by, reason)
                row = leases.release_in(self.store, tx, row, by, said, "reclaim")
        return lease_answer(self.store, row)

    @locked
    def release_reclaimed(self) -> list[LeaseView]:
        """Release the leases whose warning by staff is over, in the name of whoever gave it."""
        now = self.store.now()
        due = [row for row in self.store.state.leases.values() if rules.is_due(row, now)]
        released = []
        for row in due:
            with self.store.write(durable=True) as tx:
                by, why = row.warn_by or "pool", row.warn_reason
                released.append(leases.release_in(self.store, tx, row, by, why))
        return [lease_answer(self.store, row) for row in released]

    @locked
    def extend(
        self, number: int, by_s: float, by: str, reason: str = "", expected: str | None = None
    ) -> LeaseView:
        """Give a lease more time than its holder may take; ends a warning by staff, too."""
        with self.store.write() as tx:
            row = self.store.find(LeaseRow, number)
            check_expected(self.store, row, expected)
            after = rules.given_time(row, by_s, tx.at, self.store.settings.reclaim.still_here_s)
            promises.check_end(self.store.view(tx.at), row, after.guaranteed_until)
            said = reason or f"extended by {by_s:.0f} s"
            row = record(self.store, tx, row, after, by, said, "extend")
        return lease_answer(self.store, row)

    @locked
    def put_in_front(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> TicketView:
        """Give a ticket the next slices that fit, behind reservations in force only."""
        return self._move(number, reason, by, "next", expected)

    @locked
    def put_back(self, number: int, by: str) -> TicketView:
        """Give a ticket its own position in the queue again."""
        return self._move(number, "", by, "back", None)

    def _move(
        self, number: int, reason: str, by: str, key: str, expected: str | None
    ) -> TicketView:
        with self.store.write(durable=True) as tx:
            row = self.store.find(TicketRow, number)
            check_expected(self.store, row, expected)
            told = last_told(self.store, row)
            is_next = key == "next"
            after = rules.put_in_front(row, tx.at, told) if is_next else rules.put_back(row, told)
            record(self.store, tx, row, after, by, reason, key)
        return pool_views.ticket_view(self.store.current, self.store.state.tickets[number])

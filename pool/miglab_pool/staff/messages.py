"""Messages of staff: kept in the ledger, shown until their time is over or somebody ends them."""

from collections.abc import Collection
from dataclasses import replace

from miglab_api.staff import MessageRequest, SentMessage, StaffMessage
from miglab_pool.ledger.audit_wording import called
from miglab_pool.ledger.rows import MessageRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.refused import Refused
from miglab_pool.state.store import Store, Subject, locked

MESSAGES_MAX = 200
OVER = "over"


def is_for(row: MessageRow, user: str, server: str, courses: Collection[str]) -> bool:
    """Whether a message is for whoever is at this server.  Pure."""
    if row.to_user is not None:
        return row.to_user == user and row.to_server in (None, server)
    return row.to_course is None or row.to_course in courses


class StaffMessages(Subject):
    """See the module."""

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
            StaffMessage(id=row.id, at=row.at, by=called(row.by), text=row.text, until=row.until)
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

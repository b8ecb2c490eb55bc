"""Messages of staff: kept in the ledger, shown until their time is over or somebody ends them."""

from collections.abc import Collection
from dataclasses import replace

from miglab_api.staff import MessageRequest
from miglab_pool.ledger.rows import MessageRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.refused import Refused
from miglab_pool.state.store import Store

MESSAGES_MAX = 200
OVER = "over"


def is_for(row: MessageRow, user: str, server: str, courses: Collection[str]) -> bool:
    """Whether a message is for whoever is at this server.  Pure."""
    if row.to_user is not None:
        return row.to_user == user and row.to_server in (None, server)
    return row.to_course is None or row.to_course in courses


def send(store: Store, asked: MessageRequest, by: str) -> MessageRow:
    """Show a message from now on."""
    with store.write(durable=True) as tx:
        end_old(store, tx)
        if asked.to_course is not None and asked.to_course not in store.settings.courses:
            raise Refused("not-in-course", f"There is no course {asked.to_course!r} here.", 404)
        if len(store.state.messages) >= MESSAGES_MAX:
            raise Refused(
                "too-many-messages",
                f"{MESSAGES_MAX} messages are on display already, the maximum. "
                "End some that are not needed any more.",
                429,
            )
        row = MessageRow(
            id=store.ledger.new_id("message"),
            at=tx.at,
            by=by,
            to_user=asked.to_user,
            to_server=asked.to_server,
            to_course=asked.to_course,
            text=asked.text,
            until=tx.at + 60 * asked.minutes,
        )
        tx.put(row, by, asked.text, "message")
    return row


def find(store: Store, number: int) -> MessageRow:
    """A message that is shown; Refused if there is none of this number, or it is over."""
    row = store.state.messages.get(number)
    if row is None:
        raise Refused("unknown-message", f"No message {number} is on display.", 404)
    return row


def end(store: Store, number: int, by: str, reason: str) -> MessageRow:
    """Show it no longer."""
    with store.write(durable=True) as tx:
        row = replace(find(store, number), state=OVER)
        tx.put(row, by, reason, "end")
    return row


def end_old(store: Store, tx: Transaction) -> None:
    """Note as over what is shown no longer."""
    for row in list(store.state.messages.values()):
        if row.until <= tx.at:
            tx.put(replace(row, state=OVER), reason="its time is over")


def shown(store: Store) -> list[MessageRow]:
    """What is shown now, the newest first."""
    now = store.now()
    rows = [row for row in store.state.messages.values() if row.until > now]
    return sorted(rows, key=lambda row: (-row.at, -row.id))

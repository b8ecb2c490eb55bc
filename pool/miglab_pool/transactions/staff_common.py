"""What the transactions of the desk share: find a thing, look at what was seen, write it down."""

from typing import TypeVar

from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import GpuRow, Row, SliceRow
from miglab_pool.rules.audit_wording import Step, told
from miglab_pool.rules.staff_actions import changed, is_as_seen
from miglab_pool.state.store import Store

AnyRow = TypeVar("AnyRow", bound=Row)


def last_told(store: Store, row: Row) -> str:
    """Who did what to it last, as a clause."""
    return told_of(store, row.what, str(row.key))


def told_of(store: Store, what: str, thing: str) -> str:
    """The same, of anything that the ledger names."""
    found = store.ledger.history(what, thing, limit=1)
    return told(Step.of(found[0]), store.now()) if found else ""


def check_seen(store: Store, row: Row, seen: str | None) -> None:
    """Refuse if it does not stand as somebody saw it, saying who did what."""
    if not is_as_seen(row, seen):
        raise changed(row, seen, last_told(store, row))


def record(
    store: Store, tx: Transaction, before: Row, after: AnyRow, by: str, reason: str, act: str
) -> AnyRow:
    """Put the row, and write down whose act it was, whether or not it changed a state."""
    tx.put(after, by, reason, act)
    if after.state == before.state:
        tx.note(after, by, reason, act, _course(store, after))
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
    store: Store, number: int, seen: str | None = None, reason: str = "already-done"
) -> SliceRow:
    """The slice as somebody saw it.

    Args:
        store: the pool.
        number: the slice's.
        seen: how it stood when it was seen.
        reason: the word of the refusal of one that is gone, if nobody says to have seen it.

    Raises:
        Refused: there is none, or none any more, or it stands otherwise.
    """
    row = store.state.slices.get(number)
    if row is not None:
        check_seen(store, row, seen)
        return row
    gone = store.ledger.find_slice(number)
    if gone is None:
        raise Refused("unknown-slice", f"There is no slice {number}.", 404)
    raise Refused(
        reason if seen is None else "changed-meanwhile",
        f"Slice {number} is gone: {last_told(store, gone)}. Nothing was done: look again.",
    )

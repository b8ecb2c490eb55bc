"""What the transactions of staff share: find the object, compare it with what was seen, record."""

from typing import TypeVar

from miglab_pool.ledger.transaction import Transaction
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import GpuRow, Row, SliceRow
from miglab_pool.rules.audit_wording import Step, told
from miglab_pool.rules.staff_actions import changed, is_as_expected
from miglab_pool.state.store import Store

AnyRow = TypeVar("AnyRow", bound=Row)


def last_told(store: Store, row: Row) -> str:
    """Who did what to it last, as a clause."""
    return told_of(store, row.kind, str(row.key))


def told_of(store: Store, kind: str, target: str) -> str:
    """The same, of anything that the ledger names."""
    found = store.ledger.history(kind, target, limit=1)
    return told(Step.of(found[0]), store.now()) if found else ""


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
    gone = store.ledger.find_slice(number)
    if gone is None:
        raise Refused("unknown-slice", f"There is no slice {number}.", 404)
    raise Refused(
        reason if expected is None else "changed-meanwhile",
        f"Slice {number} is gone: {last_told(store, gone)}. Nothing was done. Look again.",
    )

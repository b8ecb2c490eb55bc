"""Records the faults that a driver reports, and tells the students whom they concern.

An Xid in the ledger names the slice and the lease that it came from, as long as that slice is
there.  A student whose own program failed is told so, and nothing else happens.  A fault of the
card itself stops new leases on it until it was reset: by the driver's word, or, where the driver
does not tell what a card needs, by NVIDIA's catalogue; then the row remembers it, also over a
restart of the pool.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from miglab_pool.gpu.health import faults_in_words
from miglab_pool.gpu.readings import Health, Xid
from miglab_pool.gpu.xids import PROGRAM_WORDS, XidScope
from miglab_pool.ledger.rows import FULL, LeaseRow, MessageRow, SliceRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.state.store import Store

CAUSE = "driver"
"""The cause of these entries in the ledger."""
SHOWN_S = 900.0  # how long a student is shown it, who is told no second time meanwhile
MOST_MESSAGES = 100  # on display at once; beyond, staff's own messages need the room
SCOPES = {
    XidScope.PROGRAM: "a program's",
    XidScope.INSTANCE: "a slice's",
    XidScope.NOTICE: "a notice",
    XidScope.CARD: "the card's",
}
RESTART = "Restart the kernel and run your notebook again."


def record_changes(
    store: Store, gpu: str, old_xids: Sequence[Xid], before: Health | None, now: Health
) -> None:
    """Record new faults of a GPU, and tell its students.  The caller holds the store's lock.

    Args:
        store: the pool's.
        gpu: the GPU's UUID.
        old_xids: the Xid faults known before.
        before: the reading before; None for the first.
        now: the reading now.
    """
    row = store.state.gpus.get(gpu)
    xids, errors = new_xids(old_xids, now.xids or ()), list(new_errors(before, now))
    if row is None:
        return
    fault = fault_to_remember(row.fault, xids, now)
    if not (xids or errors or fault != row.fault):
        return
    with store.write(durable=True) as tx:
        for xid in xids:
            _note_xid(store, tx, gpu, xid)
        for line in errors:
            tx.record(row, CAUSE, line)
        tx.put(replace(row, fault=fault))


def new_xids(before: Sequence[Xid], now: Sequence[Xid]) -> Sequence[Xid]:
    """Return the faults that came since; a slice destroyed meanwhile changes old ids.  Pure."""
    added = appended_numbers([xid.number for xid in before], [xid.number for xid in now])
    return now[len(now) - len(added) :]


def appended_numbers(before: Sequence[int], now: Sequence[int]) -> list[int]:
    """Return what was appended to a list that also drops its oldest entries.  Pure."""
    for forgotten in range(len(before) + 1):
        remaining = list(before[forgotten:])
        if remaining == list(now[: len(remaining)]):
            return list(now[len(remaining) :])
    return list(now)


def new_errors(before: Health | None, now: Health) -> Iterator[str]:
    """A rise of the memory errors, in words.  Pure."""
    errors = before.ecc_errors if before else None
    if now.ecc_errors is not None and now.ecc_errors > (errors or 0):
        yield f"{now.ecc_errors} uncorrected memory errors since its last reset"


def fault_to_remember(fault: str, xids: Sequence[Xid], now: Health) -> str:
    """Return the fault of the card itself that the GPU's row must remember.  Pure.

    Args:
        fault: the fault that it has remembered so far.
        xids: the new faults.
        now: the GPU's health; if the driver says what it needs, no fault has to be remembered.
    """
    return "" if now.needs is not None else faults_in_words(xids) or fault


def _note_xid(store: Store, tx: Transaction, gpu: str, xid: Xid) -> None:
    row = _slice_of(store, gpu, xid)
    lease = store.state.leases.get(row.lease or 0) if row is not None else None
    places = [f"slice {row.id}"] if row is not None else []
    places += [f"lease {lease.id}"] if lease is not None else []
    line = f"Xid {xid.number} ({SCOPES[xid.scope]}){': ' if places else ''}{', '.join(places)}"
    tx.record(store.state.gpus[gpu], CAUSE, line)
    if lease is not None:
        tx.record(lease, CAUSE, line)
        if lease.is_in_use and (text := message_for_student(xid)):
            _show_to_student(store, tx, lease, text)


def _slice_of(store: Store, gpu: str, xid: Xid) -> SliceRow | None:
    """The slice that a fault came from; on a GPU that is leased whole, the whole GPU."""
    for row in store.state.on_gpu[gpu].values():
        is_same = row.profile == FULL if xid.gi_id is None else row.gi_id == xid.gi_id
        if is_same:
            return row
    return None


def message_for_student(xid: Xid) -> str:
    """The message for the student whose program a fault ended; empty for none.  Pure."""
    number = xid.number
    if number == 94:
        return (
            "A memory error of the GPU ended your program (Xid 94). Your code is not at fault, "
            f"and your slice and your files are safe. {RESTART}"
        )
    if xid.scope is XidScope.PROGRAM:
        return (
            f"Your program stopped with a GPU error (Xid {number}: {PROGRAM_WORDS[number]}). Your "
            "slice and your files are fine. Restart the kernel. If the error comes back, look for "
            "it in your code: with CUDA_LAUNCH_BLOCKING=1 the traceback names the operation."
        )
    if xid.scope is XidScope.INSTANCE:
        return (
            f"An engine of your slice reported an error (Xid {number}), which ended your program. "
            f"Your files are safe. {RESTART} If the error comes back, tell your course's staff."
        )
    return ""


def _show_to_student(store: Store, tx: Transaction, lease: LeaseRow, text: str) -> None:
    """Show a message on the lease's server, unless an earlier one is still shown there."""
    server = None if lease.is_borrow else lease.server
    messages = store.state.messages.values()
    is_told = any(
        row.by == CAUSE
        and (row.to_user, row.to_server) == (lease.user, server)
        and row.until > tx.at
        for row in messages
    )
    if is_told or len(messages) >= MOST_MESSAGES:
        return
    row = MessageRow(
        id=store.ledger.new_id("message"),
        at=tx.at,
        by=CAUSE,
        to_user=lease.user,
        to_server=server,
        to_course=None,
        text=text,
        until=tx.at + SHOWN_S,
    )
    tx.put(row, CAUSE, text)

"""Drain, undrain, quarantine, clear, adopt: what staff do to GPUs and slices.

A drained placement takes no new lease; a running lease goes on.  When a drained slice's lease ends
it is scrubbed and made anew, still drained, until somebody ends that.  Each is one transaction.
"""

from miglab_api.gpus import SliceState
from miglab_pool.model.rows import GpuRow, SliceRow
from miglab_pool.rules import staff_actions
from miglab_pool.state.store import Store
from miglab_pool.transactions import slices
from miglab_pool.transactions.staff_common import (
    check_expected,
    find_gpu,
    find_slice,
    last_told,
    record,
)


def drain_gpu(store: Store, uuid: str, reason: str, by: str, expected: str | None = None) -> GpuRow:
    """No new lease on this GPU."""
    with store.write(durable=True) as tx:
        row = find_gpu(store, uuid)
        check_expected(store, row, expected)
        after = staff_actions.drained(row, reason, last_told(store, row))
        return record(store, tx, row, after, by, reason, "drain")


def undrain_gpu(
    store: Store, uuid: str, reason: str, by: str, expected: str | None = None
) -> GpuRow:
    """The GPU takes leases again."""
    with store.write(durable=True) as tx:
        row = find_gpu(store, uuid)
        check_expected(store, row, expected)
        after = staff_actions.undrained(row, last_told(store, row))
        return record(store, tx, row, after, by, reason, "undrain")


def drain_slice(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> SliceRow:
    """No new lease on this slice, nor on what is made anew in its place."""
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected)
        after = staff_actions.drained(row, reason, last_told(store, row))
        return record(store, tx, row, after, by, reason, "drain")


def undrain_slice(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> SliceRow:
    """The slice's placement takes leases again."""
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected)
        after = staff_actions.undrained(row, last_told(store, row))
        return record(store, tx, row, after, by, reason, "undrain")


def quarantine(
    store: Store, number: int, reason: str, by: str, expected: str | None = None
) -> SliceRow:
    """Nobody gets it, and nothing touches it, until `clear`."""
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected)
        after = staff_actions.quarantine(row, reason, last_told(store, row))
        return record(store, tx, row, after, by, reason, "quarantine")


def clear(store: Store, number: int, reason: str, by: str, expected: str | None = None) -> SliceRow:
    """Announce another try at destroying what is set aside."""
    return _scrub(store, number, SliceState.QUARANTINED, reason, by, expected)


def adopt(store: Store, number: int, reason: str, by: str, expected: str | None = None) -> SliceRow:
    """Announce the destruction of what miglab did not make."""
    return _scrub(store, number, SliceState.FOREIGN, reason, by, expected)


OF = {
    SliceState.QUARANTINED: ("clear", "not-quarantined"),
    SliceState.FOREIGN: ("adopt", "not-foreign"),
}


def _scrub(
    store: Store, number: int, state: SliceState, reason: str, by: str, expected: str | None
) -> SliceRow:
    action, code = OF[state]
    with store.write(durable=True) as tx:
        row = find_slice(store, number, expected, code)
        staff_actions.check_is(row, state, code)
        slices.scrub(tx, row, reason or f"by hand, by {by}", remake=False, by=by, action=action)
        return store.state.slices[number]

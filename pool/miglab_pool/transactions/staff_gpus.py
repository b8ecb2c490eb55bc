"""Drain, undrain, set aside, clear, adopt: what staff do to GPUs and slices.

A drained place takes no new lease; who is on it runs on.  When a drained slice's lease ends it is
scrubbed and made anew, still drained, until somebody ends that.  Each is one transaction.
"""

from miglab_api.gpus import SliceState
from miglab_pool.model.rows import GpuRow, SliceRow
from miglab_pool.rules import staff_actions
from miglab_pool.state.store import Core
from miglab_pool.transactions import slices
from miglab_pool.transactions.staff_common import (
    check_seen,
    find_gpu,
    find_slice,
    last_told,
    record,
)


def drain_gpu(core: Core, uuid: str, why: str, by: str, seen: str | None = None) -> GpuRow:
    """No new lease on this GPU."""
    with core.write(durable=True) as tx:
        row = find_gpu(core, uuid)
        check_seen(core, row, seen)
        after = staff_actions.drained(row, why, last_told(core, row))
        return record(core, tx, row, after, by, why, "drain")


def undrain_gpu(core: Core, uuid: str, why: str, by: str, seen: str | None = None) -> GpuRow:
    """The GPU takes leases again."""
    with core.write(durable=True) as tx:
        row = find_gpu(core, uuid)
        check_seen(core, row, seen)
        after = staff_actions.undrained(row, last_told(core, row))
        return record(core, tx, row, after, by, why, "undrain")


def drain_slice(core: Core, number: int, why: str, by: str, seen: str | None = None) -> SliceRow:
    """No new lease on this slice, nor on what is made anew in its place."""
    with core.write(durable=True) as tx:
        row = find_slice(core, number, seen)
        after = staff_actions.drained(row, why, last_told(core, row))
        return record(core, tx, row, after, by, why, "drain")


def undrain_slice(core: Core, number: int, why: str, by: str, seen: str | None = None) -> SliceRow:
    """The slice's place takes leases again."""
    with core.write(durable=True) as tx:
        row = find_slice(core, number, seen)
        after = staff_actions.undrained(row, last_told(core, row))
        return record(core, tx, row, after, by, why, "undrain")


def set_aside(core: Core, number: int, why: str, by: str, seen: str | None = None) -> SliceRow:
    """Nobody gets it, and nothing touches it, until `clear`."""
    with core.write(durable=True) as tx:
        row = find_slice(core, number, seen)
        after = staff_actions.set_aside(row, why, last_told(core, row))
        return record(core, tx, row, after, by, why, "quarantine")


def clear(core: Core, number: int, why: str, by: str, seen: str | None = None) -> SliceRow:
    """Announce another try at destroying what is set aside."""
    return _scrub(core, number, SliceState.QUARANTINED, why, by, seen)


def adopt(core: Core, number: int, why: str, by: str, seen: str | None = None) -> SliceRow:
    """Announce the destruction of what miglab did not make."""
    return _scrub(core, number, SliceState.FOREIGN, why, by, seen)


OF = {
    SliceState.QUARANTINED: ("clear", "not-quarantined"),
    SliceState.FOREIGN: ("adopt", "not-foreign"),
}


def _scrub(
    core: Core, number: int, state: SliceState, why: str, by: str, seen: str | None
) -> SliceRow:
    act, reason = OF[state]
    with core.write(durable=True) as tx:
        row = find_slice(core, number, seen, reason)
        staff_actions.check_is(row, state, reason)
        slices.scrub(tx, row, why or f"by hand, by {by}", remake=False, by=by, act=act)
        return core.state.slices[number]

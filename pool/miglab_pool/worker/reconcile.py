"""Reconcile: ledger against holders against NVML, at start and on a timer.

Undoes what a crash left half done and takes in what happened meanwhile.  No step is destructive
on an unknown answer: a container is removed only for a lease that the ledger knows to be over, a
slice is freed only for a holder that is confirmed gone.
"""

from miglab_pool.model.rows import LeaseRow
from miglab_pool.state.store import Core
from miglab_pool.worker.inspect_gpu import Finding, look, read_gpus
from miglab_pool.worker.jobs import probe


def reconcile(core: Core) -> list[Finding]:
    """One round; every finding is in the ledger too, as a transition."""
    found = remove_strays(core)
    found += read_gpus(core)
    for gpu in list(core.state.gpus):
        found += _look_unless_busy(core, gpu)
    found += ask_after_holders(core)
    return found


def remove_strays(core: Core) -> list[Finding]:
    """Remove labelled containers whose lease is over, before anything else is done."""
    found = []
    for stray in core.holders.labelled():
        with core.lock:
            lease = core.ledger.find_lease(stray.lease)
        if lease is None:
            what = f"its label names lease {stray.lease}, which this ledger never had"
            found.append(Finding("holder", stray.holder, what))
        elif not lease.is_live:
            is_gone = core.holders.remove(stray.holder, force=True)
            with core.write() as tx:
                tx.note(lease, "pool", f"left-over {stray.holder} removed: {is_gone}")
            done = "removed" if is_gone else ""
            what = f"it is left over from lease {lease.id}, which is {lease.state}"
            found.append(Finding("holder", stray.holder, what, done))
    return found


def _look_unless_busy(core: Core, gpu: str) -> list[Finding]:
    with core.lock:
        if gpu in core.acting:
            return []
        core.acting[gpu] = core.now()
    try:
        return look(core, gpu)
    finally:
        with core.lock:
            core.acting.pop(gpu, None)


def ask_after_holders(core: Core) -> list[Finding]:
    """Probe the holders that a cheap listing no longer shows."""
    with core.lock:
        held = {lease.holder: lease for lease in core.state.leases.values() if lease.is_held}
    found = []
    for holder in sorted(core.holders.missing(set(held)) if held else ()):
        probe(core, held[holder].id)
        if _is_over(core, held[holder]):
            done = "its lease is released"
            found.append(Finding("holder", holder, "it is gone", done))
    return found


def _is_over(core: Core, lease: LeaseRow) -> bool:
    with core.lock:
        return lease.id not in core.state.leases

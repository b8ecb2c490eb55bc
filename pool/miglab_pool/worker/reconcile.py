"""Reconcile: ledger against holders against NVML, at start and on a timer.

Undoes what a crash left half done and takes in what happened meanwhile.  No step is destructive
on an unknown answer: a container is removed only for a lease that the ledger knows to be over, a
slice is freed only for a holder that is confirmed gone.
"""

from miglab_pool.model.rows import LeaseRow
from miglab_pool.worker.inspect_gpu import Finding, look, read_gpus
from miglab_pool.worker.jobs import probe
from miglab_pool.worker.worker import Worker


def reconcile(worker: Worker) -> list[Finding]:
    """One round; every finding is in the ledger too, as a transition."""
    found = remove_strays(worker)
    found += read_gpus(worker)
    for gpu in list(worker.store.state.gpus):
        found += _look_unless_busy(worker, gpu)
    found += ask_after_holders(worker)
    return found


def remove_strays(worker: Worker) -> list[Finding]:
    """Remove labelled containers whose lease is over, before anything else is done."""
    found = []
    for stray in worker.holders.labelled():
        with worker.store.lock:
            lease = worker.store.ledger.find_lease(stray.lease)
        if lease is None:
            what = f"its label names lease {stray.lease}, which this ledger never had"
            found.append(Finding("holder", stray.holder, what))
        elif not lease.is_live:
            is_gone = worker.holders.remove(stray.holder, force=True)
            with worker.store.write() as tx:
                tx.note(lease, "pool", f"left-over {stray.holder} removed: {is_gone}")
            done = "removed" if is_gone else ""
            what = f"it is left over from lease {lease.id}, which is {lease.state}"
            found.append(Finding("holder", stray.holder, what, done))
    return found


def _look_unless_busy(worker: Worker, gpu: str) -> list[Finding]:
    with worker.store.lock:
        if gpu in worker.acting:
            return []
        worker.acting[gpu] = worker.store.now()
    try:
        return look(worker, gpu)
    finally:
        with worker.store.lock:
            worker.acting.pop(gpu, None)


def ask_after_holders(worker: Worker) -> list[Finding]:
    """Probe the holders that a cheap listing no longer shows."""
    with worker.store.lock:
        held = {
            lease.holder: lease for lease in worker.store.state.leases.values() if lease.is_held
        }
    found = []
    for holder in sorted(worker.holders.missing(set(held)) if held else ()):
        probe(worker, held[holder].id)
        if _is_over(worker, held[holder]):
            done = "its lease is released"
            found.append(Finding("holder", holder, "it is gone", done))
    return found


def _is_over(worker: Worker, lease: LeaseRow) -> bool:
    with worker.store.lock:
        return lease.id not in worker.store.state.leases

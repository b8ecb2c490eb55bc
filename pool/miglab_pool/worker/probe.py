"""Asks whether a lease's holder is still there; ends it where nobody but the pool does."""

from miglab_api.holders import Liveness
from miglab_api.leases import LeaseState
from miglab_pool.leases import grant as grants
from miglab_pool.leases import transactions as leases
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.worker.worker import Worker, probe_key


def probe(worker: Worker, number: int) -> None:
    """Probe a lease's holder; only the answer *gone* frees its slices."""
    with worker.store.lock:
        lease = worker.store.state.leases.get(number)
        worker.store.suspects.discard(number)
        if lease is None or not lease.is_held or number in worker.probing:
            return
        worker.probing.add(number)
    try:
        answer = worker.holders.probe(lease.holder)
        if reason := _reason_to_end(worker, lease, answer):
            answer = Liveness.GONE if _end_holder(worker, lease, reason) else answer
        elif answer is Liveness.ALIVE and _is_overstaying(worker, lease):
            is_gone = worker.holders.remove(lease.holder, force=False)
            answer = Liveness.GONE if is_gone else answer
    finally:
        with worker.store.lock:
            worker.probing.discard(number)
    with worker.store.write(durable=True) as tx:
        _record_probe(worker, tx, lease, answer)


def _reason_to_end(worker: Worker, lease: LeaseRow, answer: Liveness) -> str:
    """Why the pool must end the lease's holder; empty if the hub does, or if it is gone."""
    if answer is Liveness.FORGOTTEN:
        return "its engine has forgotten it, and its processes run on"
    if answer is not Liveness.ALIVE or lease.state != LeaseState.RELEASING:
        return ""
    if lease.is_borrow:
        return "it is borrowed"
    return "the hub has no such server" if lease.id in worker.store.abandoned else ""


def _end_holder(worker: Worker, lease: LeaseRow, reason: str) -> bool:
    with worker.store.write(durable=True) as tx:
        tx.record(lease, "pool", f"{reason}: the pool ends {lease.holder} itself")
    return worker.holders.end(lease.holder)


def _is_overstaying(worker: Worker, lease: LeaseRow) -> bool:
    since = lease.releasing_at
    return (
        since is not None
        and worker.store.now() >= since + worker.store.settings.tuning.remove_after_s
    )


def _record_probe(worker: Worker, tx: Transaction, probed: LeaseRow, answer: Liveness) -> None:
    lease = worker.store.state.leases.get(probed.id)
    if lease is None or lease.holder != probed.holder:
        return
    if answer is Liveness.GONE:
        for is_asked_back in (False, True):
            worker.probe_backoff.clear((lease.id, is_asked_back))
        leases.end_released_lease(worker.store, tx, lease, "its server is gone")
        grants.grant_all(worker.store, tx)
    elif answer in (Liveness.UNKNOWN, Liveness.FORGOTTEN):  # or it could not be ended
        worker.probe_backoff.fail(probe_key(lease), tx.at)
    else:
        worker.probe_backoff.pause(probe_key(lease), tx.at + worker.store.settings.tuning.probe_s)

"""Destroys slices: on the GPU, without the lock; its result is recorded in the ledger."""

from contextlib import suppress
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.holders import Liveness
from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import GpuError, InUse, SliceGone, SliceStillListed
from miglab_pool.leases import grant as grants
from miglab_pool.leases import requests as tickets
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import FULL, GONE, GPU_OK, SliceRow
from miglab_pool.state.placement import Choice
from miglab_pool.state.slices import new_slice
from miglab_pool.worker import inspect_gpu
from miglab_pool.worker.creation import check_empty, find_reading, is_blocked
from miglab_pool.worker.remnants import DESTROYED
from miglab_pool.worker.worker import Claim, Worker


def destroy(worker: Worker, number: int) -> None:
    """Destroy a slice that is being scrubbed; quarantine it if an unknown container uses it."""
    with worker.store.lock:
        row = worker.store.state.slices.get(number)
        if row is None or row.state != SliceState.SCRUBBING or row.lease is not None:
            return
        claim = worker.other_claim(row, row.uuid)
    if claim is not None and not _is_claim_over(worker, claim):
        quarantine_claimed(worker)
        return
    try:
        _destroy_on_gpu(worker, row)
    except GpuError as error:
        _record_failure(worker, row, error)
        return
    with worker.store.write(durable=True) as tx:
        _record_gone(worker, tx, row)


def _is_claim_over(worker: Worker, claim: Claim) -> bool:
    """Probe the container of a claim, which may have ended since the last listing."""
    if worker.holders.probe(claim.holder) != Liveness.GONE:
        return False
    worker.drop_claims(claim.holder)
    return True


def quarantine_claimed(worker: Worker) -> None:
    """Quarantine the slices that containers use of which this ledger does not know."""
    with worker.store.write(durable=True) as tx:
        for number in list(worker.store.state.slices):
            row = worker.store.state.slices[number]
            claim = worker.other_claim(row, row.uuid)
            if claim is not None:
                _quarantine(worker, tx, row, claim)


def _quarantine(worker: Worker, tx: Transaction, row: SliceRow, claim: Claim) -> None:
    """Quarantine a slice unless a server holds it; a lease that was only granted is requeued."""
    lease = worker.store.state.leases.get(row.lease or 0)
    if lease is not None and lease.state == LeaseState.GRANTED:
        tickets.requeue_granted(worker.store, tx, lease, f"{claim.holder} uses slice {row.id}")
        row = worker.store.state.slices[row.id]
    if row.state not in (SliceState.FREE, SliceState.SCRUBBING):
        return
    reason = (
        f"{claim.holder} uses it, of which this ledger does not know: end that container, "
        f"then `miglab pool clear {row.id}`"
    )
    tx.put(replace(row, state=SliceState.QUARANTINED, reason=reason), reason=reason)


def _destroy_on_gpu(worker: Worker, row: SliceRow) -> None:
    if row.profile == FULL:
        check_empty(worker, row)
        return
    if row.gi_id is None:  # begun and not known to be made: the GPU says which it is, if any
        reading = find_reading(worker, row)
        gi_id = None if reading is None else reading.gi_id
    else:
        gi_id = row.gi_id
    if gi_id is not None:
        expected = worker.store.placement_of(row)
        with suppress(SliceGone), worker.stopwatch.time("destroy", row.profile):
            worker.driver.destroy(row.gpu, gi_id, expected)


def _record_failure(worker: Worker, row: SliceRow, error: GpuError) -> None:
    with worker.store.write() as tx:
        row = worker.store.state.slices[row.id]
        settings = worker.store.settings
        pause_s = min(
            settings.tuning.retry_max_s, settings.tuning.retry_s * 2 ** min(row.attempts, 20)
        )
        row = replace(row, attempts=row.attempts + 1, retry_at=tx.at + pause_s, reason=str(error))
        if not isinstance(error, InUse | SliceStillListed):
            inspect_gpu.mark_gpu_failed(worker, tx, row.gpu, error)
        if row.attempts >= settings.tuning.quarantine_after and row.profile != FULL:
            row = replace(row, state=SliceState.QUARANTINED)
        tx.put(row, reason=str(error))
        if row.state == SliceState.SCRUBBING:
            tx.record(row, "pool", f"destroy failed, attempt {row.attempts}: {error}")
        tickets.drop_blocked(worker.store, tx, row.gpu)


def _record_gone(worker: Worker, tx: Transaction, row: SliceRow) -> None:
    row = worker.store.state.slices[row.id]
    tx.put(replace(row, state=GONE), reason=DESTROYED)
    worker.gpu_backoff.clear(row.gpu)
    if row.draining:  # before anybody gets its placement; not at once where that has failed
        not_before = worker.store.creation_backoff.until(row.gpu) or 0.0
        _recreate(worker, tx, row, not_before, "made anew, drained")
    grants.grant_all(worker.store, tx)
    if row.remake and not row.draining:
        recreate_warm(worker, tx, row)


def recreate_warm(worker: Worker, tx: Transaction, former: SliceRow) -> None:
    """Create the same slice again, so that the next lease need not wait, if there is room."""
    gpu = worker.store.state.gpus[former.gpu]
    geometry = worker.store.geometry(former.gpu)
    has_it = geometry is not None and former.profile in geometry.by_name
    is_closed = gpu.state != GPU_OK or bool(gpu.draining)
    view = worker.store.view()
    if is_closed or not has_it or any(ticket.shape != FULL for ticket in view.queued):
        return
    if view.gpus[former.gpu].layout:
        return  # what is missing there is made for the layout
    _recreate(worker, tx, former, 0.0, "made anew for the next")


def _recreate(
    worker: Worker, tx: Transaction, former: SliceRow, not_before: float, reason: str
) -> None:
    """Announce the same slice, drained if it was, unless its placement is occupied by now."""
    choice = Choice(former.gpu, worker.store.profile(former), Placement(former.start, former.size))
    row = new_slice(worker.store, tx, choice)
    if not is_blocked(worker.store, row):
        row = replace(row, draining=former.draining, retry_at=not_before)
        tx.put(row, reason=reason)

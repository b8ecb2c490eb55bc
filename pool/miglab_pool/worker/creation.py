"""Creates slices: on the GPU, without the lock, between two records in the ledger."""

from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import (
    GpuError,
    InUse,
    NoRoom,
    SliceReading,
    SliceStillListed,
    UnknownGpuError,
)
from miglab_pool.leases import grant as grants
from miglab_pool.leases import requests as tickets
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import FULL, GONE, GPU_OK, GPU_UNKNOWN, SliceRow
from miglab_pool.state.placement import clash
from miglab_pool.state.slices import scrub
from miglab_pool.state.store import Store
from miglab_pool.worker import inspect_gpu
from miglab_pool.worker.worker import Worker

STALE = (
    "NVML gave it the id of another slice in the ledger: slices are gone that were thought there"
)
UUID_LOOKS = 5
NO_UUID = (
    f"it was created, and NVML did not list its MIG device in {UUID_LOOKS} looks: without a UUID "
    "no server could be given it"
)


def is_blocked(store: Store, row: SliceRow) -> bool:
    """Whether another slice still occupies the placement of a slice that is to be created."""
    placed_slice = store.placement_of(row)
    return any(
        other.id != row.id and clash(placed_slice, store.placement_of(other))
        for other in store.state.on_gpu[row.gpu].values()
    )


def create(worker: Worker, number: int) -> None:
    """Create a slice on its GPU, and record it, or why it could not be created."""
    if not _is_clear(worker, number):
        return
    with worker.store.write(durable=True) as tx:
        row = worker.store.state.slices.get(number)
        if row is None or row.state != SliceState.MAKING or is_blocked(worker.store, row):
            return
        was_tried = row.tried
        row = replace(row, tried=True)
        tx.put(row)  # from here on, what lies at this placement may be ours
    try:
        reading = _create_on_gpu(worker, row, was_tried=was_tried)
    except GpuError as error:
        _handle_failure(worker, row, error)
        return
    with worker.store.write(durable=True) as tx:
        row = worker.store.state.slices[row.id]
        is_stale = reading is not None and _has_ids_of_another(worker, row, reading)
        if is_stale:
            _record_failure(worker, tx, row, UnknownGpuError(STALE), has_remains=True)
        elif reading is not None and reading.uuid is None:
            _look_for_uuid_later(worker, tx, row)
        else:
            _record_created(worker, tx, row, reading)
    if is_stale:
        inspect_gpu.inspect(worker, row.gpu)


def _is_clear(worker: Worker, number: int) -> bool:
    """Whether the GPU has no slice at the placement yet, asked before a first try is recorded.

    If the driver fails without saying what it did, a slice found there later would count as the
    pool's own: one that somebody created by hand, unseen so far, must not.
    """
    with worker.store.lock:
        row = worker.store.state.slices.get(number)
    if row is None or row.tried or row.profile == FULL:
        return True
    mask = Placement(row.start, row.size).mask
    try:
        is_clear = not any(place.mask & mask for place in worker.driver.placements(row.gpu))
    except GpuError as error:
        with worker.store.write() as tx:
            inspect_gpu.mark_gpu_failed(worker, tx, row.gpu, error)
        return False
    if not is_clear:
        inspect_gpu.inspect(worker, row.gpu)
    return is_clear


def _has_ids_of_another(worker: Worker, row: SliceRow, reading: SliceReading) -> bool:
    """Whether the ids, which NVML uses again, are still in the ledger for another slice.

    Then that other slice is gone without our doing (a driver reload), and a server may still be
    about to use its UUID: nobody gets this one before the GPU was looked at.
    """
    return any(
        other.id != row.id
        and (other.gi_id == reading.gi_id or (reading.uuid and other.uuid == reading.uuid))
        for other in worker.store.state.on_gpu[row.gpu].values()
    )


def _look_for_uuid_later(worker: Worker, tx: Transaction, row: SliceRow) -> None:
    """Leave a slice without a UUID to a later try: NVML's list of MIG devices may lag behind."""
    if row.attempts + 1 >= UUID_LOOKS:
        _record_failure(worker, tx, row, UnknownGpuError(NO_UUID), has_remains=True)
        return
    retry_at = tx.at + worker.store.settings.tuning.retry_s
    tx.put(replace(row, attempts=row.attempts + 1, retry_at=retry_at))


def _create_on_gpu(worker: Worker, row: SliceRow, *, was_tried: bool) -> SliceReading | None:
    if row.profile == FULL:
        check_empty(worker, row)
        return None
    if was_tried:
        reading = find_reading(worker, row)
        if reading is not None and reading.ci_id is not None:
            return reading
        if reading is not None:
            worker.driver.destroy(row.gpu, reading.gi_id)
    with worker.stopwatch.time("create", row.profile):
        return worker.driver.create(
            row.gpu, worker.store.profile(row), Placement(row.start, row.size)
        )


def check_empty(worker: Worker, row: SliceRow) -> None:
    """Refuse to hand over a whole GPU unless its process list is known and empty.

    Raises:
        InUse: processes run on it, or nobody knows whether any do.
    """
    inspect_gpu.check_whole_unclaimed(worker, row.gpu)
    usage = worker.driver.gpu_usage(row.gpu)
    with worker.store.lock:
        worker.store.note_gpu_usage(row.gpu, usage)
    if usage.processes is None:
        raise InUse(f"The processes on {row.gpu} cannot be read, so it counts as in use.")
    if usage.processes:
        pids = ", ".join(str(process.pid) for process in usage.processes)
        raise InUse(f"Processes {pids} run on {row.gpu}; end them, or wait until they end.")


def find_reading(worker: Worker, row: SliceRow) -> SliceReading | None:
    """Return the reading of a row's slice; None if the GPU has no such slice."""
    for reading in worker.driver.slices(row.gpu):
        if inspect_gpu.is_slice_of_row(worker, row, reading):
            return reading
    return None


def _record_created(
    worker: Worker, tx: Transaction, row: SliceRow, reading: SliceReading | None
) -> None:
    lease = worker.store.state.leases.get(row.lease or 0)
    row = replace(
        row,
        state=SliceState.FREE if lease is None else SliceState.LEASED,
        gi_id=None if reading is None else reading.gi_id,
        ci_id=None if reading is None else reading.ci_id,
        uuid=row.gpu if reading is None else reading.uuid,
        lease=None if lease is None else lease.id,
        attempts=0,
        retry_at=0.0,
    )
    if lease is None and row.profile == FULL:
        scrub(tx, row, "no longer wanted", remake=False)
        return
    tx.put(row, reason="made")
    worker.gpu_backoff.clear(row.gpu)
    worker.store.placement_backoffs[row.gpu].clear((row.profile, row.start))
    if worker.store.state.gpus[row.gpu].state == GPU_UNKNOWN:
        worker.store.mark_gpu(tx, row.gpu, GPU_OK)
    if lease is None:
        worker.store.creation_backoff.clear(row.gpu)
    else:
        worker.store.grant_backoff.clear(row.gpu)
        grants.offer_if_ready(worker.store, tx, lease)


def _handle_failure(worker: Worker, row: SliceRow, error: GpuError) -> None:
    """Record a failed creation: the ticket waits on, and remains of the slice are destroyed."""
    has_remains = not isinstance(error, NoRoom) and _may_exist(worker, row)
    with worker.store.write(durable=True) as tx:
        row = worker.store.state.slices[row.id]  # it may have been drained meanwhile
        _record_failure(worker, tx, row, error, has_remains=has_remains or bool(row.draining))
    if isinstance(error, NoRoom):  # what is in the way is not in the ledger
        inspect_gpu.inspect(worker, row.gpu)


def _may_exist(worker: Worker, row: SliceRow) -> bool:
    """Whether a failed try may have left a slice: it did, or the GPU cannot be read."""
    if row.profile == FULL:
        return False
    try:
        return find_reading(worker, row) is not None
    except GpuError:
        return True


def _record_failure(
    worker: Worker, tx: Transaction, row: SliceRow, error: GpuError, *, has_remains: bool
) -> None:
    """Record a failed creation; ``has_remains``: a slice may be there, which is destroyed."""
    lease = worker.store.state.leases.get(row.lease or 0)
    if lease is not None and lease.state == LeaseState.GRANTED:
        tickets.requeue_granted(worker.store, tx, lease, f"a slice could not be made: {error}")
    if lease is None:
        worker.store.creation_backoff.fail(row.gpu, tx.at)
    row = worker.store.state.slices[row.id]
    if row.profile != FULL and has_remains:
        scrub(tx, row, str(error), remake=False)
    elif row.is_live:
        tx.put(replace(row, state=GONE, lease=None, reason=str(error)), reason=str(error))
    if isinstance(error, NoRoom):
        worker.store.close_placement(row, tx.at)
    elif _is_fault_of_gpu(row, error):
        inspect_gpu.mark_gpu_failed(worker, tx, row.gpu, error)
        if lease is not None:
            worker.store.pause_grants(row.gpu, tx.at)


def _is_fault_of_gpu(row: SliceRow, error: GpuError) -> bool:
    """Whether the GPU is to blame: not a process on one leased whole, nor a remnant."""
    is_used = row.profile == FULL and isinstance(error, InUse)
    return not (is_used or isinstance(error, SliceStillListed))

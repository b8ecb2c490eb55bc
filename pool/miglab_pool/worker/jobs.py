"""The work list: what the ledger says must be done next to GPUs and holders, and doing it.

A job is derived from the rows, never queued: after a crash the same list comes out again.  Each
job is announced in the ledger before it is done, done without the lock, and its result recorded.
One job at a time per GPU; a failing or stuck GPU does not hold up another.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from miglab_api.gpus import SliceState
from miglab_api.holders import Liveness
from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import (
    GpuError,
    InUse,
    NoRoom,
    SliceReading,
    StillThere,
    UnknownGpuError,
)
from miglab_pool.leases import grant as grants
from miglab_pool.leases import requests as tickets
from miglab_pool.leases import transactions as leases
from miglab_pool.ledger.rows import (
    FULL,
    GONE,
    GPU_LOST,
    GPU_OK,
    GPU_UNFIT,
    GPU_UNKNOWN,
    LeaseRow,
    SliceRow,
)
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.state.placement import Choice, clash
from miglab_pool.state.slices import new_slice, scrub
from miglab_pool.state.store import Store
from miglab_pool.state.view import PoolView, cached_on_instance
from miglab_pool.worker import inspect_gpu
from miglab_pool.worker.remnants import DESTROYED
from miglab_pool.worker.worker import Claim, Worker, probe_key

SILENT = (GPU_UNKNOWN, GPU_LOST)
STALE = (
    "NVML gave it the id of another slice in the ledger: slices are gone that were thought there"
)
UUID_LOOKS = 5
NO_UUID = (
    f"it was created, and NVML did not list its MIG device in {UUID_LOOKS} looks: without a UUID "
    "no server could be given it"
)


class JobKind(StrEnum):
    """What is done: to a slice, to a holder, or a GPU is looked at."""

    DESTROY = "destroy"
    CREATE = "create"
    PROBE = "probe"
    INSPECT = "inspect"


@dataclass(frozen=True)
class Job:
    """One thing to do.

    Attributes:
        kind: what.
        gpu: UUID of the GPU it is done to; empty for a probe.
        slice_id: the slice's row, for destroy and create.
        lease_id: the lease whose holder is asked after.
    """

    kind: JobKind
    gpu: str = ""
    slice_id: int = 0
    lease_id: int = 0


_OF_SLICES = {SliceState.SCRUBBING: JobKind.DESTROY, SliceState.MAKING: JobKind.CREATE}


@cached_on_instance
def kinds_ahead(view: PoolView) -> frozenset[JobKind]:
    """The kinds of job that the rows ask for, whether or not they may be done already."""
    slices = {row.state for row in view.slices.values()}
    kinds = {kind for state, kind in _OF_SLICES.items() if state in slices}
    if any(lease.state == LeaseState.RELEASING for lease in view.leases.values()):
        kinds.add(JobKind.PROBE)
    if any(gpu.state in SILENT for gpu in view.rows):
        kinds.add(JobKind.INSPECT)
    return frozenset(kinds)


def next_job(worker: Worker, kinds: frozenset[JobKind], busy: Collection[str] = ()) -> Job | None:
    """The most urgent job that may be done now: room first, then grants, holders, the rest.

    Args:
        worker: the pool's.
        kinds: only these.
        busy: GPUs for which the caller has one under way.
    """
    now = worker.store.now()
    for job in _jobs(worker, now):
        is_acting = job.gpu in worker.acting or job.gpu in busy
        is_busy = is_acting if job.gpu else job.lease_id in worker.probing
        if job.kind in kinds and not is_busy:
            return job
    return None


def _jobs(worker: Worker, now: float) -> Iterator[Job]:
    """Everything to be done, the most urgent first."""
    rows = list(worker.store.state.slices.values())
    for row in rows:
        if row.state == SliceState.SCRUBBING and row.retry_at <= now and _answers(worker, row.gpu):
            yield Job(JobKind.DESTROY, row.gpu, row.id)
    making = [row for row in rows if row.state == SliceState.MAKING]
    for row in sorted(making, key=lambda row: (row.lease is None, row.id)):
        ready = _takes_slices(worker, row.gpu) and row.retry_at <= now
        if ready and not _is_in_the_way(worker.store, row):
            yield Job(JobKind.CREATE, row.gpu, row.id)
    for lease in worker.store.state.leases.values():
        is_asked = lease.state == LeaseState.RELEASING or lease.id in worker.store.suspects
        if is_asked and worker.probe_backoff.is_due(probe_key(lease), now):
            yield Job(JobKind.PROBE, lease_id=lease.id)
    for gpu in worker.store.state.gpus.values():
        if gpu.state in SILENT and worker.gpu_backoff.is_due(gpu.uuid, now):
            yield Job(JobKind.INSPECT, gpu.uuid)


def _answers(worker: Worker, gpu: str) -> bool:
    row = worker.store.state.gpus.get(gpu)
    is_there = row is not None and row.state in (GPU_OK, GPU_UNFIT)
    return is_there and gpu in worker.store.infos


def _takes_slices(worker: Worker, gpu: str) -> bool:
    is_ok = _answers(worker, gpu) and worker.store.state.gpus[gpu].state == GPU_OK
    return is_ok and not worker.store.has_lost(gpu)


def _is_in_the_way(store: Store, row: SliceRow) -> bool:
    """Whether something still lies where this slice is to be made."""
    placed = store.placed(row)
    return any(
        other.id != row.id and clash(placed, store.placed(other))
        for other in store.state.on_gpu[row.gpu].values()
    )


def perform(worker: Worker, job: Job) -> None:
    """Do it; a GpuError ends up in the ledger, not at the caller."""
    if job.kind is JobKind.PROBE:
        probe(worker, job.lease_id)
        return
    with worker.alone_on(job.gpu) as is_alone:
        if not is_alone:
            return
        if job.kind is JobKind.INSPECT:
            inspect_gpu.inspect(worker, job.gpu)
        elif job.kind is JobKind.CREATE:
            _create(worker, job)
        else:
            _destroy(worker, job)


# -- create -------------------------------------------------------------------------------------


def _create(worker: Worker, job: Job) -> None:
    if not _is_clear(worker, job):
        return
    with worker.store.write(durable=True) as tx:
        row = worker.store.state.slices.get(job.slice_id)
        if row is None or row.state != SliceState.MAKING or _is_in_the_way(worker.store, row):
            return
        was_tried = row.tried
        row = replace(row, tried=True)
        tx.put(row)  # from here on, what lies at this placement may be ours
    try:
        reading = _made(worker, row, was_tried=was_tried)
    except GpuError as error:
        _create_failed(worker, row, error)
        return
    with worker.store.write(durable=True) as tx:
        row = worker.store.state.slices[row.id]
        is_stale = reading is not None and _is_taken_for_another(worker, row, reading)
        if is_stale:
            _create_failed_in(worker, tx, row, UnknownGpuError(STALE), is_made=True)
        elif reading is not None and reading.uuid is None:
            _look_for_uuid_later(worker, tx, row)
        else:
            _record_made(worker, tx, row, reading)
    if is_stale:
        inspect_gpu.inspect(worker, row.gpu)


def _is_clear(worker: Worker, job: Job) -> bool:
    """Whether nothing lies where the slice is to be made, before a first try is announced.

    A driver that fails without saying what it did leaves in doubt whose the slice at that placement
    is: what somebody made there by hand, and nobody has seen yet, must not pass for ours.
    """
    with worker.store.lock:
        row = worker.store.state.slices.get(job.slice_id)
    if row is None or row.tried or row.profile == FULL:
        return True
    mask = Placement(row.start, row.size).mask
    try:
        is_clear = not any(
            reading.placement.mask & mask for reading in worker.driver.slices(row.gpu)
        )
    except GpuError as error:
        with worker.store.write() as tx:
            inspect_gpu.gpu_failed(worker, tx, row.gpu, error)
        return False
    if not is_clear:
        inspect_gpu.inspect(worker, row.gpu)
    return is_clear


def _is_taken_for_another(worker: Worker, row: SliceRow, reading: SliceReading) -> bool:
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
    """A slice without a UUID is not made yet: NVML's list of MIG devices may lag behind."""
    if row.attempts + 1 >= UUID_LOOKS:
        _create_failed_in(worker, tx, row, UnknownGpuError(NO_UUID), is_made=True)
        return
    retry_at = tx.at + worker.store.settings.tuning.retry_s
    tx.put(replace(row, attempts=row.attempts + 1, retry_at=retry_at))


def _made(worker: Worker, row: SliceRow, *, was_tried: bool) -> SliceReading | None:
    if row.profile == FULL:
        _check_empty(worker, row)
        return None
    if was_tried:
        found = find_reading(worker, row)
        if found is not None and found.ci_id is not None:
            return found
        if found is not None:
            worker.driver.destroy(row.gpu, found.gi_id)
    with worker.stopwatch.time("create", row.profile):
        return worker.driver.create(
            row.gpu, worker.store.profile(row), Placement(row.start, row.size)
        )


def _check_empty(worker: Worker, row: SliceRow) -> None:
    """A whole GPU is handed over only while its process list is known and empty."""
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
    """What lies where this row says its slice is; None if nothing of the kind."""
    for reading in worker.driver.slices(row.gpu):
        if inspect_gpu.is_same(worker, row, reading):
            return reading
    return None


def _record_made(
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


def _create_failed(worker: Worker, row: SliceRow, error: GpuError) -> None:
    """Nothing was handed over: whoever it was for waits on, and the slice is cleaned up."""
    is_made = not isinstance(error, NoRoom) and _may_lie_there(worker, row)
    with worker.store.write(durable=True) as tx:
        row = worker.store.state.slices[row.id]  # it may have been drained meanwhile
        _create_failed_in(worker, tx, row, error, is_made=is_made or bool(row.draining))
    if isinstance(error, NoRoom):  # what is in the way is not in the ledger
        inspect_gpu.inspect(worker, row.gpu)


def _may_lie_there(worker: Worker, row: SliceRow) -> bool:
    """Whether a try that failed may have left something: it does, or the GPU does not say."""
    if row.profile == FULL:
        return False
    try:
        return find_reading(worker, row) is not None
    except GpuError:
        return True


def _create_failed_in(
    worker: Worker, tx: Transaction, row: SliceRow, error: GpuError, *, is_made: bool
) -> None:
    """As `_create_failed`; ``is_made``: something may lie there and must be cleaned up."""
    lease = worker.store.state.leases.get(row.lease or 0)
    if lease is not None and lease.state == LeaseState.GRANTED:
        tickets.requeue_granted(worker.store, tx, lease, f"a slice could not be made: {error}")
    if lease is None:
        worker.store.creation_backoff.fail(row.gpu, tx.at)
    row = worker.store.state.slices[row.id]
    if row.profile != FULL and is_made:
        scrub(tx, row, str(error), remake=False)
    elif row.is_live:
        tx.put(replace(row, state=GONE, lease=None, reason=str(error)), reason=str(error))
    if isinstance(error, NoRoom):
        worker.store.close_placement(row, tx.at)
    elif _is_of_gpu(row, error):
        inspect_gpu.gpu_failed(worker, tx, row.gpu, error)
        if lease is not None:
            worker.store.pause_grants(row.gpu, tx.at)


def _is_of_gpu(row: SliceRow, error: GpuError) -> bool:
    """Whether a create failed by the GPU: not by who runs on one leased whole, nor a remnant."""
    is_used = row.profile == FULL and isinstance(error, InUse)
    return not (is_used or isinstance(error, StillThere))


# -- destroy ------------------------------------------------------------------------------------


def _destroy(worker: Worker, job: Job) -> None:
    with worker.store.lock:
        row = worker.store.state.slices.get(job.slice_id)
        if row is None or row.state != SliceState.SCRUBBING or row.lease is not None:
            return
        claim = worker.other_claim(row, row.uuid)
    if claim is not None and not _is_claim_over(worker, claim):
        quarantine_claimed(worker)
        return
    try:
        _unmade(worker, row)
    except GpuError as error:
        _destroy_failed(worker, row, error)
        return
    with worker.store.write(durable=True) as tx:
        _record_gone(worker, tx, row)


def _is_claim_over(worker: Worker, claim: Claim) -> bool:
    """Ask after the container of a claim, which may have ended since the last listing."""
    if worker.holders.probe(claim.holder) != Liveness.GONE:
        return False
    worker.drop_claims(claim.holder)
    return True


def quarantine_claimed(worker: Worker) -> None:
    """What a container uses of which this ledger does not know is given to nobody, and stays."""
    with worker.store.write(durable=True) as tx:
        for number in list(worker.store.state.slices):
            row = worker.store.state.slices[number]
            claim = worker.other_claim(row, row.uuid)
            if claim is not None:
                _quarantine(worker, tx, row, claim)


def _quarantine(worker: Worker, tx: Transaction, row: SliceRow, claim: Claim) -> None:
    """Set it aside, unless a server holds it; who was only promised it waits on."""
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


def _unmade(worker: Worker, row: SliceRow) -> None:
    if row.profile == FULL:
        _check_empty(worker, row)
        return
    found = find_reading(worker, row)
    if found is not None:
        with worker.stopwatch.time("destroy", row.profile):
            worker.driver.destroy(row.gpu, found.gi_id)


def _destroy_failed(worker: Worker, row: SliceRow, error: GpuError) -> None:
    with worker.store.write() as tx:
        row = worker.store.state.slices[row.id]
        settings = worker.store.settings
        pause_s = min(
            settings.tuning.retry_max_s, settings.tuning.retry_s * 2 ** min(row.attempts, 20)
        )
        row = replace(row, attempts=row.attempts + 1, retry_at=tx.at + pause_s, reason=str(error))
        if not isinstance(error, InUse | StillThere):
            inspect_gpu.gpu_failed(worker, tx, row.gpu, error)
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
        _make_again(worker, tx, row, not_before, "made anew, drained")
    grants.grant_all(worker.store, tx)
    if row.remake and not row.draining:
        make_warm(worker, tx, row)


def make_warm(worker: Worker, tx: Transaction, gone: SliceRow) -> None:
    """Make the same anew, so that the next does not wait; unless someone else got the room."""
    gpu = worker.store.state.gpus[gone.gpu]
    geometry = worker.store.geometry(gone.gpu)
    has_it = geometry is not None and gone.profile in geometry.by_name
    is_closed = gpu.state != GPU_OK or bool(gpu.draining)
    view = worker.store.view()
    if is_closed or not has_it or any(ticket.shape != FULL for ticket in view.queued):
        return
    if view.gpus[gone.gpu].layout:
        return  # what is missing there is made for the layout
    _make_again(worker, tx, gone, 0.0, "made anew for the next")


def _make_again(
    worker: Worker, tx: Transaction, gone: SliceRow, not_before: float, reason: str
) -> None:
    """The same slice, drained if it was, unless something lies there by now."""
    choice = Choice(gone.gpu, worker.store.profile(gone), Placement(gone.start, gone.size))
    row = new_slice(worker.store, tx, choice)
    if not _is_in_the_way(worker.store, row):
        row = replace(row, draining=gone.draining, retry_at=not_before)
        tx.put(row, reason=reason)


# -- probe --------------------------------------------------------------------------------------


def probe(worker: Worker, number: int) -> None:
    """Ask after a holder; only *gone* frees anything."""
    with worker.store.lock:
        lease = worker.store.state.leases.get(number)
        worker.store.suspects.discard(number)
        if lease is None or not lease.is_held or number in worker.probing:
            return
        worker.probing.add(number)
    try:
        answer = worker.holders.probe(lease.holder)
        if reason := _why_ended_here(worker, lease, answer):
            answer = Liveness.GONE if _end_holder(worker, lease, reason) else answer
        elif answer is Liveness.ALIVE and _is_overstaying(worker, lease):
            is_gone = worker.holders.remove(lease.holder, force=False)
            answer = Liveness.GONE if is_gone else answer
    finally:
        with worker.store.lock:
            worker.probing.discard(number)
    with worker.store.write(durable=True) as tx:
        _record_probe(worker, tx, lease, answer)


def _why_ended_here(worker: Worker, lease: LeaseRow, answer: Liveness) -> str:
    """Why nobody but the pool ends the lease's holder; empty if the hub does, or it is gone."""
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


def _record_probe(worker: Worker, tx: Transaction, asked: LeaseRow, answer: Liveness) -> None:
    lease = worker.store.state.leases.get(asked.id)
    if lease is None or lease.holder != asked.holder:
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

"""The work list: what the ledger says must be done next to GPUs and holders, and doing it.

A job is derived from the rows, never queued: after a crash the same list comes out again.  Each
job is announced in the ledger before it is done, done without the lock, and its result recorded.
One job at a time per GPU; a failing or stuck GPU does not hold up another.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_pool.ledger.rows import GPU_LOST, GPU_OK, GPU_UNFIT, GPU_UNKNOWN
from miglab_pool.state.view import PoolView, cached_on_instance
from miglab_pool.worker import inspect_gpu
from miglab_pool.worker.creation import create, is_blocked
from miglab_pool.worker.destruction import destroy
from miglab_pool.worker.probe import probe
from miglab_pool.worker.worker import Worker, probe_key

SILENT = (GPU_UNKNOWN, GPU_LOST)


class JobKind(StrEnum):
    """What a job does."""

    DESTROY = "destroy"
    CREATE = "create"
    PROBE = "probe"
    INSPECT = "inspect"


@dataclass(frozen=True)
class Job:
    """One step of the pool's worker.

    Attributes:
        kind: what it does.
        gpu: the UUID of its GPU; empty for a probe.
        slice_id: the slice's row, for destroy and create.
        lease_id: the lease whose holder is probed.
    """

    kind: JobKind
    gpu: str = ""
    slice_id: int = 0
    lease_id: int = 0


_KIND_BY_STATE = {SliceState.SCRUBBING: JobKind.DESTROY, SliceState.MAKING: JobKind.CREATE}


@cached_on_instance
def kinds_ahead(view: PoolView) -> frozenset[JobKind]:
    """The kinds of job that the rows ask for, whether or not they may be done already."""
    slices = {row.state for row in view.slices.values()}
    kinds = {kind for state, kind in _KIND_BY_STATE.items() if state in slices}
    if any(lease.state == LeaseState.RELEASING for lease in view.leases.values()):
        kinds.add(JobKind.PROBE)
    if any(gpu.state in SILENT for gpu in view.gpu_rows):
        kinds.add(JobKind.INSPECT)
    return frozenset(kinds)


def next_job(worker: Worker, kinds: frozenset[JobKind], busy: Collection[str] = ()) -> Job | None:
    """Return the most urgent job: destroying first, then creating, probing, inspecting.

    Args:
        worker: the pool's.
        kinds: only jobs of these kinds.
        busy: GPUs on which the caller performs a job already.
    """
    now = worker.store.now()
    for job in _jobs(worker, now):
        is_acting = job.gpu in worker.acting or job.gpu in busy
        is_busy = is_acting if job.gpu else job.lease_id in worker.probing
        if job.kind in kinds and not is_busy:
            return job
    return None


def _jobs(worker: Worker, now: float) -> Iterator[Job]:
    """Yield all jobs, the most urgent first."""
    rows = list(worker.store.state.slices.values())
    for row in rows:
        if (
            row.state == SliceState.SCRUBBING
            and row.retry_at <= now
            and _is_answering(worker, row.gpu)
        ):
            yield Job(JobKind.DESTROY, row.gpu, row.id)
    making = [row for row in rows if row.state == SliceState.MAKING]
    for row in sorted(making, key=lambda row: (row.lease is None, row.id)):
        ready = _can_create(worker, row.gpu) and row.retry_at <= now
        if ready and not is_blocked(worker.store, row):
            yield Job(JobKind.CREATE, row.gpu, row.id)
    for lease in worker.store.state.leases.values():
        is_asked = lease.state == LeaseState.RELEASING or lease.id in worker.store.suspects
        if is_asked and worker.probe_backoff.is_due(probe_key(lease), now):
            yield Job(JobKind.PROBE, lease_id=lease.id)
    for gpu in worker.store.state.gpus.values():
        if gpu.state in SILENT and worker.gpu_backoff.is_due(gpu.uuid, now):
            yield Job(JobKind.INSPECT, gpu.uuid)


def _is_answering(worker: Worker, gpu: str) -> bool:
    row = worker.store.state.gpus.get(gpu)
    is_there = row is not None and row.state in (GPU_OK, GPU_UNFIT)
    return is_there and gpu in worker.store.infos


def _can_create(worker: Worker, gpu: str) -> bool:
    is_ok = _is_answering(worker, gpu) and worker.store.state.gpus[gpu].state == GPU_OK
    return is_ok and not worker.store.has_lost(gpu)


def perform(worker: Worker, job: Job) -> None:
    """Perform a job; a `GpuError` is recorded in the ledger and not raised."""
    if job.kind is JobKind.PROBE:
        probe(worker, job.lease_id)
        return
    with worker.alone_on(job.gpu) as is_alone:
        if not is_alone:
            return
        if job.kind is JobKind.INSPECT:
            inspect_gpu.inspect(worker, job.gpu)
        elif job.kind is JobKind.CREATE:
            create(worker, job.slice_id)
        else:
            destroy(worker, job.slice_id)

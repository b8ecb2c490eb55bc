"""Compares NVML's readings of one GPU with the ledger, and records the differences.

Never destructive: a missing slice is noted as gone, an unknown one as foreign.  A slice that must
be destroyed is announced in the ledger, and jobs.py destroys it.

Each inspection also reads the GPU's health.  New faults and memory errors are logged in the ledger,
so that a history remains after a restart of the driver or the host.  Between two inspections,
samples read the usage of the slices.  An unknown reading stays unknown.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.staff import AuditEntry
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import (
    GpuError,
    GpuHung,
    GpuInfo,
    GpuLost,
    Health,
    SliceReading,
    Usage,
    Versions,
)
from miglab_pool.leases import requests as tickets
from miglab_pool.leases import transactions as leases
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import (
    FULL,
    GONE,
    GPU_LOST,
    GPU_OK,
    GPU_UNFIT,
    GPU_UNKNOWN,
    SliceRow,
)
from miglab_pool.state.placement import Choice
from miglab_pool.state.slices import new_slice, scrub
from miglab_pool.state.store import Wellness
from miglab_pool.state.view import is_whole
from miglab_pool.worker import faults
from miglab_pool.worker.gpu_row import (
    is_unpartitioned,
    missing_reason,
    row_after_boot,
    unfit_reason,
    unread_row,
    updated_row,
)
from miglab_pool.worker.remnants import foreign_reason
from miglab_pool.worker.worker import Worker

MADE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.QUARANTINED, SliceState.FOREIGN})
HALF_THERE = "it has no compute instance any more"
UNLISTED_HOLDERS = (
    "the Docker engine does not answer, so it is not known which slices students' servers use; "
    "start the engine"
)
UNLISTED = "it is not among the GPUs given to miglab any more"
BY = faults.CAUSE
log = logging.getLogger(__name__)
UNKNOWN = Usage(None, None)
READABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.FOREIGN})


@dataclass(frozen=True)
class Finding:
    """A difference that reconcile found.

    Attributes:
        kind: ``gpu``, ``slice``, ``lease``, ``ticket`` or ``holder``.
        target: its id.
        finding: what is or was wrong, in words.
        action: what was done about it; empty if a person has to act.
    """

    kind: str
    target: str
    finding: str
    action: str = ""


def is_slice_of_row(worker: Worker, row: SliceRow, reading: SliceReading) -> bool:
    """Whether a reading is this row's slice: same profile and placement, and the same id if known.

    Where the id is not known, because the ledger saw the slice begun and not made, it is not the
    row's if somebody else's container uses it: then the ledger is a copy from before that.
    """
    return (
        reading.profile.name == row.profile
        and reading.placement.start == row.start
        and reading.placement.size == row.size
        and (
            reading.gi_id == row.gi_id
            if row.gi_id is not None
            else row.tried and worker.other_claim(row, reading.uuid) is None
        )
    )


def mark_unlisted_gpus(worker: Worker) -> None:
    """Mark the GPUs of the ledger that are no longer listed, so that they take no lease."""
    with worker.store.write() as tx:
        for gpu in [gpu for gpu in worker.store.state.gpus if gpu not in worker.driver.uuids]:
            worker.store.infos.pop(gpu, None)
            worker.gpu_backoff.fail(gpu, tx.at)
            worker.store.mark_gpu(tx, gpu, GPU_LOST, UNLISTED)
            tickets.drop_grants(worker.store, tx, gpu, UNLISTED)
            worker.store.publish_change([gpu])


def read_versions(worker: Worker) -> None:
    """Read the driver's version; the last known one stays if that fails."""
    with contextlib.suppress(GpuError):
        worker.store.versions = worker.driver.versions()


def inspect(worker: Worker, gpu: str) -> list[Finding]:
    """Read a GPU and its slices, and settle the differences from the ledger.

    The caller has marked the GPU as acting.
    """
    if gpu not in worker.driver.uuids:
        mark_unlisted_gpus(worker)
        return []
    try:
        if worker.claimed is None:  # then what the ledger calls free may be in use: it is a copy
            raise GpuError(UNLISTED_HOLDERS)
        info = worker.driver.info(gpu)
        health, readings = _read(worker, info)
    except GpuError as error:
        with worker.store.write() as tx:
            if gpu not in worker.store.state.gpus:  # it is shown even so, with what is wrong
                tx.put(unread_row(gpu, _free_index(worker)), reason="listed")
            mark_gpu_failed(worker, tx, gpu, error)
        return [Finding("gpu", gpu, str(error), "takes no new lease until it answers")]
    with worker.store.write(durable=True) as tx:
        if worker.store.infos.get(gpu) != info:
            worker.store.infos[gpu] = info
            worker.store.publish_change([gpu])
        _free_index_of(worker, tx, info)
        boot = worker.boot_id()
        before = worker.store.state.gpus.get(gpu)
        tx.put(row_after_boot(updated_row(info, before), boot), reason="listed")
        missing = missing_reason(before, boot)
        findings = _settle(worker, tx, gpu, readings, missing)
        worker.gpu_backoff.clear(gpu)
        return findings + _judge_fitness(worker, tx, info, health)


def _judge_fitness(worker: Worker, tx: Transaction, info: GpuInfo, health: Health) -> list[Finding]:
    """Decide whether a GPU that answers takes new leases.

    On an unfit one, granted tickets wait on, and leases in use go on.
    """
    gpu, row = info.uuid, worker.store.state.gpus[info.uuid]
    reason = unfit_reason(row, info, health, is_whole=is_whole(row, info, worker.store.settings))
    if not reason:
        worker.store.mark_gpu(tx, gpu, GPU_OK)
        return []
    worker.store.mark_gpu(tx, gpu, GPU_UNFIT, reason)
    tickets.drop_grants(worker.store, tx, gpu, reason, with_existing=True)
    return [Finding("gpu", gpu, reason, "takes no new lease until that is mended")]


def _read(worker: Worker, info: GpuInfo) -> tuple[Health, list[SliceReading]]:
    gpu = info.uuid
    health = record_health(worker, gpu, worker.driver.health(gpu))
    if health.lost:
        raise GpuLost(health.reason or f"GPU {gpu} is lost; reset it or reboot the host.")
    if not is_unpartitioned(info):
        return health, worker.driver.slices(gpu)
    check_whole_unclaimed(worker, gpu)
    usage = worker.driver.gpu_usage(gpu)
    with worker.store.lock:
        worker.store.note_gpu_usage(gpu, usage)
    return health, []


def check_whole_unclaimed(worker: Worker, gpu: str) -> None:
    """Check that no container uses a whole GPU without the ledger's knowledge.

    Raises:
        GpuError: one does; that it has no process there yet says nothing.
    """
    with worker.store.lock:
        claim = (worker.claimed or {}).get(gpu)
        rows = worker.store.state.on_gpu[gpu].values()
        if claim is None or any(worker.other_claim(row, gpu) is None for row in rows):
            return
    raise GpuError(f"{claim.holder} uses {gpu}, and this ledger does not know of it; end it")


def _free_index_of(worker: Worker, tx: Transaction, info: GpuInfo) -> None:
    """Give another row with this GPU's present index a free index.

    NVML counts the GPUs that it lists: if one is missing, those behind it move up.
    """
    for row in list(worker.store.state.gpus.values()):
        if row.idx == info.index and row.uuid != info.uuid:
            tx.put(replace(row, idx=_free_index(worker, info.index)))


def _free_index(worker: Worker, *reserved: int) -> int:
    """The lowest number, of those that the listed GPUs can have, that no row has."""
    indices = {row.idx for row in worker.store.state.gpus.values()} | {*reserved}
    return next(index for index in count() if index not in indices)


def mark_gpu_failed(worker: Worker, tx: Transaction, gpu: str, error: GpuError) -> None:
    """Mark a GPU that failed: it takes no lease until it answers, and is asked after a pause."""
    worker.gpu_backoff.fail(gpu, tx.at)
    state = GPU_LOST if isinstance(error, GpuLost) else GPU_UNKNOWN
    worker.store.mark_gpu(tx, gpu, state, str(error))
    tickets.drop_grants(worker.store, tx, gpu, str(error))


def _settle(
    worker: Worker, tx: Transaction, gpu: str, readings: list[SliceReading], missing: str
) -> list[Finding]:
    """Compare the ledger with readings; ``missing``: why a slice may have disappeared."""
    findings: list[Finding] = []
    unclaimed = list(readings)
    for number in list(worker.store.state.on_gpu[gpu]):
        row = worker.store.state.on_gpu[gpu].get(number)
        if row is None:  # it went with a lease whose other slice was missing
            continue
        matching = next(
            (reading for reading in unclaimed if is_slice_of_row(worker, row, reading)), None
        )
        if matching is not None:
            unclaimed.remove(matching)
            findings += _settle_present(worker, tx, row, matching)
        elif row.state in MADE and not row.lost and row.profile != FULL:
            findings += _settle_missing(worker, tx, row, missing)
        else:
            tx.put(_without_ids(row))
    for reading in unclaimed:
        findings.append(_note_foreign(worker, tx, reading))
    tickets.drop_blocked(worker.store, tx, gpu)
    return findings


def _settle_present(
    worker: Worker, tx: Transaction, row: SliceRow, reading: SliceReading
) -> list[Finding]:
    """Settle a slice that NVML shows; without a compute instance it is unusable."""
    target = str(row.id)
    if row.state == SliceState.FREE and reading.ci_id is None:
        scrub(tx, row, "half of it is gone", remake=True)
        return [Finding("slice", target, "it has no compute instance", "is made anew")]
    if row.state == SliceState.LEASED and reading.ci_id is None and not row.lost:
        return _settle_missing(worker, tx, row, HALF_THERE, is_half_there=True)
    return []


def _settle_missing(
    worker: Worker, tx: Transaction, row: SliceRow, reason: str, *, is_half_there: bool = False
) -> list[Finding]:
    lease = worker.store.state.leases.get(row.lease or 0)
    if not is_half_there:
        row = _without_ids(row)
    if lease is None and row.draining:
        scrub(tx, row, reason, remake=True)
        return [Finding("slice", str(row.id), reason, "is made anew, drained")]
    if lease is None:
        tx.put(replace(row, state=GONE, lease=None), reason=reason)
        return [Finding("slice", str(row.id), reason, "noted as gone")]
    if lease.state == LeaseState.GRANTED:
        scrub(tx, row, reason, remake=False)
        tickets.requeue_granted(worker.store, tx, lease, f"slice {row.id} is gone")
        return [Finding("slice", str(row.id), reason, "its ticket waits on")]
    tx.put(replace(row, lost=True, reason=reason), reason=reason)
    tx.record(row, "pool", reason)
    if lease.state != LeaseState.RELEASING:
        message = f"The slice is gone. {reason} Your files are safe; start again."
        leases.start_release(worker.store, tx, lease, "pool", message)
    return [Finding("lease", str(lease.id), f"its slice {row.id} is gone", "is being released")]


def _without_ids(row: SliceRow) -> SliceRow:
    """Return the row without NVML ids, since a later slice with the same ids is not the pool's."""
    return replace(row, gi_id=None, ci_id=None, tried=False)


def _note_foreign(worker: Worker, tx: Transaction, reading: SliceReading) -> Finding:
    choice = Choice(reading.gpu_uuid, reading.profile, reading.placement)
    reason = foreign_reason(worker.store, reading, tx.at)
    row = replace(
        new_slice(worker.store, tx, choice),
        state=SliceState.FOREIGN,
        gi_id=reading.gi_id,
        ci_id=reading.ci_id,
        uuid=reading.uuid,
        reason=reason,
    )
    tx.put(row, reason=reason)
    return Finding("slice", str(row.id), f"foreign: {row.profile} at {reading.placement}")


def record_health(worker: Worker, gpu: str, health: Health) -> Health:
    """Keep a GPU's health, log its new faults in the ledger, and return the health."""
    with worker.store.lock:
        before = worker.store.wellness.get(gpu)
        old_xids = before.xids if before else ()
        xids = old_xids if health.xids is None else health.xids
        worker.store.wellness[gpu] = Wellness(worker.store.now(), health, xids)
        faults.record_changes(
            worker.store, gpu, old_xids, before.health if before else None, health
        )
    return health


@dataclass(frozen=True, slots=True)
class Condition:
    """The GPUs' present health and their history.

    Attributes:
        versions: of the driver.
        infos: each GPU's facts, by UUID; none for one that never answered.
        wellness: each GPU's last health.
        history: the ledger's entries about them, the newest first.
    """

    versions: Versions
    infos: Mapping[str, GpuInfo]
    wellness: Mapping[str, Wellness]
    history: tuple[AuditEntry, ...]


def read_condition(worker: Worker, limit: int = 100) -> Condition:
    """Return the GPUs' health, and at most ``limit`` entries of their history."""
    store = worker.store
    history = (AuditEntry(**row) for row in store.ledger.history("gpu", limit=limit))
    return Condition(store.versions, dict(store.infos), dict(store.wellness), tuple(history))


def sample(worker: Worker, gpu: str) -> None:
    """Read the usage of a GPU's slices, or of the whole GPU; publish it if it changed.

    A GPU that does not answer in time is unknown from then on.
    """
    with worker.store.lock:
        row = worker.store.state.gpus.get(gpu)
        if row is None:
            return
        rows = [
            slice_row
            for slice_row in worker.store.state.on_gpu[gpu].values()
            if slice_row.state in READABLE
        ]
        info = worker.store.infos.get(gpu)
        is_whole = info is not None and is_unpartitioned(info)
        answers = row.state in (GPU_OK, GPU_UNFIT) and gpu not in worker.acting
    slices, gpu_usage = dict.fromkeys((slice_row.id for slice_row in rows), UNKNOWN), None
    try:
        if answers and not slices:
            worker.driver.info(gpu)  # so that an empty GPU that hangs is noticed as soon
        if answers:
            slices = _read_slices(worker, gpu, rows)
            gpu_usage = _read_gpu(worker, gpu) if is_whole else None
    except GpuHung as error:
        slices, gpu_usage = dict.fromkeys(slices, UNKNOWN), None
        with worker.store.write() as tx:
            mark_gpu_failed(worker, tx, gpu, error)
    except GpuError:
        log.info("GPU %s cannot be read", gpu)  # reconcile says why, and what follows from it
    _store_usage(worker, gpu, slices, gpu_usage)


def _store_usage(
    worker: Worker, gpu: str, slices: dict[int, Usage], gpu_usage: Usage | None
) -> None:
    store = worker.store
    with store.lock:
        before = [*map(store.slice_usage.get, slices), store.gpu_usage.get(gpu)]
        now = [*slices.values(), gpu_usage or store.gpu_usage.get(gpu)]
        if gpu_usage is not None:
            store.gpu_usage[gpu] = gpu_usage
        readings = store.slice_usage | slices
        store.slice_usage = {n: readings[n] for n in readings if n in store.state.slices}
        store.samples += 1
        if before != now:
            store.publish_change(
                [gpu],
                is_news=[*map(_significant_figures, before)] != [*map(_significant_figures, now)],
            )


def _significant_figures(usage: Usage | None) -> tuple[object, ...]:
    """What of a reading wakes people; activity never stands still, so only its tenths count."""
    if usage is None:
        return ()
    tenths = None if usage.activity_pct is None else round(usage.activity_pct / 10)
    return usage.memory_used_mib, usage.processes, tenths


def _read_slices(worker: Worker, gpu: str, rows: Sequence[SliceRow]) -> dict[int, Usage]:
    """Read usage by slice; the slice of a GPU without MIG is the whole GPU."""
    readings = {
        slice_row.id: _reading_of(worker, slice_row, slice_row.gi_id)
        for slice_row in rows
        if slice_row.gi_id is not None
    }
    usages = worker.driver.usages(gpu, list(readings.values())) if readings else {}
    usages_by_slice = {number: usages.get(reading, UNKNOWN) for number, reading in readings.items()}
    wholes = [slice_row.id for slice_row in rows if slice_row.gi_id is None]
    return usages_by_slice | {number: _read_gpu(worker, gpu) for number in wholes}


def _reading_of(worker: Worker, row: SliceRow, gi_id: int) -> SliceReading:
    placement = Placement(row.start, row.size)
    return SliceReading(row.gpu, gi_id, row.ci_id, row.uuid, worker.store.profile(row), placement)


def _read_gpu(worker: Worker, gpu: str) -> Usage:
    try:
        return worker.driver.gpu_usage(gpu)
    except GpuHung:
        raise
    except GpuError:
        return UNKNOWN

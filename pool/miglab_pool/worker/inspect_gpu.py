"""What a GPU says against what the ledger says: one GPU at a time.

Never destructive: a slice that is missing is noted as gone, one that is unknown as foreign.  What
must be destroyed is announced in the ledger, and done by jobs.py.

What each GPU says of its health is kept on the way.  What is new of faults and memory errors goes
into the ledger as notes on the GPU, so that a history remains when the driver, or the host, was
started anew.  Between two such looks a sample tells what its slices do.  Unknown stays unknown.
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
from miglab_pool.ledger.rows import (
    FULL,
    GONE,
    GPU_LOST,
    GPU_OK,
    GPU_UNFIT,
    GPU_UNKNOWN,
    SliceRow,
)
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.state.placement import Choice
from miglab_pool.state.slices import new_slice, scrub
from miglab_pool.state.store import Wellness
from miglab_pool.state.view import is_whole
from miglab_pool.worker import faults
from miglab_pool.worker.gpu_row import as_of_boot, is_uncut, row_of, unread, why_missing, why_unfit
from miglab_pool.worker.remnants import why_foreign
from miglab_pool.worker.worker import Worker

MADE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.QUARANTINED, SliceState.FOREIGN})
HALF_THERE = "it has no compute instance any more"
UNLISTED_HOLDERS = (
    "the Docker engine does not answer, so it is not known which slices students' servers use; "
    "start the engine"
)
UNLISTED = "it is not among the GPUs given to miglab any more"
BY = faults.BY
log = logging.getLogger(__name__)
UNKNOWN = Usage(None, None)
READABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.FOREIGN})


@dataclass(frozen=True)
class Finding:
    """Something reconcile found.

    Attributes:
        kind: ``gpu``, ``slice``, ``lease``, ``ticket`` or ``holder``.
        target: which one.
        finding: what is or was wrong, in words.
        done: what was done about it; empty if it is somebody's turn.
    """

    kind: str
    target: str
    finding: str
    done: str = ""


def is_same(worker: Worker, row: SliceRow, reading: SliceReading) -> bool:
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


def note_unlisted(worker: Worker) -> None:
    """GPUs that the ledger knows and nobody lists any more take no lease."""
    with worker.store.write() as tx:
        for gpu in [gpu for gpu in worker.store.state.gpus if gpu not in worker.driver.uuids]:
            worker.store.infos.pop(gpu, None)
            worker.gpu_backoff.fail(gpu, tx.at)
            worker.store.mark_gpu(tx, gpu, GPU_LOST, UNLISTED)
            tickets.drop_grants(worker.store, tx, gpu, UNLISTED)
            worker.store.changed([gpu])


def read_versions(worker: Worker) -> None:
    """Which driver the host runs; what is known already stays if it does not say."""
    with contextlib.suppress(GpuError):
        worker.store.versions = worker.driver.versions()


def inspect(worker: Worker, gpu: str) -> list[Finding]:
    """Read what a GPU is and its slices, and settle the differences.

    The caller has marked it as acting.
    """
    if gpu not in worker.driver.uuids:
        note_unlisted(worker)
        return []
    try:
        if worker.claimed is None:  # then what the ledger calls free may be in use: it is a copy
            raise GpuError(UNLISTED_HOLDERS)
        info = worker.driver.info(gpu)
        health, readings = _read(worker, info)
    except GpuError as error:
        with worker.store.write() as tx:
            if gpu not in worker.store.state.gpus:  # it is shown even so, with what is wrong
                tx.put(unread(gpu, _free_index(worker)), reason="listed")
            gpu_failed(worker, tx, gpu, error)
        return [Finding("gpu", gpu, str(error), "takes no new lease until it answers")]
    with worker.store.write(durable=True) as tx:
        worker.store.infos[gpu] = info
        worker.store.changed([gpu])
        _make_way(worker, tx, info)
        boot = worker.boot_id()
        before = worker.store.state.gpus.get(gpu)
        tx.put(as_of_boot(row_of(info, before), boot), reason="listed")
        missing = why_missing(before, boot)
        findings = _settle(worker, tx, gpu, readings, missing)
        worker.gpu_backoff.clear(gpu)
        return findings + _judge(worker, tx, info, health)


def _judge(worker: Worker, tx: Transaction, info: GpuInfo, health: Health) -> list[Finding]:
    """Whether a GPU that answers takes new leases.

    Whoever was to get a slice of one that does not waits on; whoever uses one goes on.
    """
    gpu, row = info.uuid, worker.store.state.gpus[info.uuid]
    reason = why_unfit(row, info, health, is_whole=is_whole(row, info, worker.store.settings))
    if not reason:
        worker.store.mark_gpu(tx, gpu, GPU_OK)
        return []
    worker.store.mark_gpu(tx, gpu, GPU_UNFIT, reason)
    tickets.drop_grants(worker.store, tx, gpu, reason, with_existing=True)
    return [Finding("gpu", gpu, reason, "takes no new lease until that is mended")]


def _read(worker: Worker, info: GpuInfo) -> tuple[Health, list[SliceReading]]:
    gpu = info.uuid
    health = keep_health(worker, gpu, worker.driver.health(gpu))
    if health.lost:
        raise GpuLost(health.reason or f"GPU {gpu} is lost; reset it or reboot the host.")
    if not is_uncut(info):
        return health, worker.driver.slices(gpu)
    check_whole_unclaimed(worker, gpu)
    usage = worker.driver.gpu_usage(gpu)
    with worker.store.lock:
        worker.store.note_gpu_usage(gpu, usage)
    return health, []


def check_whole_unclaimed(worker: Worker, gpu: str) -> None:
    """See that no container uses a whole GPU of which the ledger does not know.

    Raises:
        GpuError: one does; that it has no process there yet says nothing.
    """
    with worker.store.lock:
        claim = (worker.claimed or {}).get(gpu)
        rows = worker.store.state.on_gpu[gpu].values()
        if claim is None or any(worker.other_claim(row, gpu) is None for row in rows):
            return
    raise GpuError(f"{claim.holder} uses {gpu}, and this ledger does not know of it; end it")


def _make_way(worker: Worker, tx: Transaction, info: GpuInfo) -> None:
    """A GPU takes the index that NVML gives it now; another row with that number gets a free one.

    NVML counts the GPUs that it lists: if one is missing, those behind it move up.
    """
    for row in list(worker.store.state.gpus.values()):
        if row.idx == info.index and row.uuid != info.uuid:
            tx.put(replace(row, idx=_free_index(worker, info.index)))


def _free_index(worker: Worker, *reserved: int) -> int:
    """The lowest number, of those that the listed GPUs can have, that no row has."""
    indices = {row.idx for row in worker.store.state.gpus.values()} | {*reserved}
    return next(index for index in count() if index not in indices)


def gpu_failed(worker: Worker, tx: Transaction, gpu: str, error: GpuError) -> None:
    """The GPU takes no new lease until it answers; it is asked again after a pause."""
    worker.gpu_backoff.fail(gpu, tx.at)
    state = GPU_LOST if isinstance(error, GpuLost) else GPU_UNKNOWN
    worker.store.mark_gpu(tx, gpu, state, str(error))
    tickets.drop_grants(worker.store, tx, gpu, str(error))


def _settle(
    worker: Worker, tx: Transaction, gpu: str, readings: list[SliceReading], missing: str
) -> list[Finding]:
    """Ledger against readings; ``missing``: why a slice of the ledger may not be there."""
    found: list[Finding] = []
    unclaimed = list(readings)
    for number in list(worker.store.state.on_gpu[gpu]):
        row = worker.store.state.on_gpu[gpu].get(number)
        if row is None:  # it went with a lease whose other slice was missing
            continue
        mine = next((reading for reading in unclaimed if is_same(worker, row, reading)), None)
        if mine is not None:
            unclaimed.remove(mine)
            found += _settle_present(worker, tx, row, mine)
        elif row.state in MADE and not row.lost and row.profile != FULL:
            found += _settle_missing(worker, tx, row, missing)
        else:
            tx.put(_not_there(row))
    for reading in unclaimed:
        found.append(_note_foreign(worker, tx, reading))
    tickets.drop_blocked(worker.store, tx, gpu)
    return found


def _settle_present(
    worker: Worker, tx: Transaction, row: SliceRow, reading: SliceReading
) -> list[Finding]:
    """It is there.  Ours without a compute instance is half destroyed: nobody can use it."""
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
        row = _not_there(row)
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
        said = f"The slice is gone. {reason} Your files are safe; start again."
        leases.start_release(worker.store, tx, lease, "pool", said)
    return [Finding("lease", str(lease.id), f"its slice {row.id} is gone", "is being released")]


def _not_there(row: SliceRow) -> SliceRow:
    """What may come to lie there later, perhaps by the same id, is not ours to destroy."""
    return replace(row, gi_id=None, ci_id=None, tried=False)


def _note_foreign(worker: Worker, tx: Transaction, reading: SliceReading) -> Finding:
    choice = Choice(reading.gpu_uuid, reading.profile, reading.placement)
    reason = why_foreign(worker.store, reading, tx.at)
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


def keep_health(worker: Worker, gpu: str, health: Health) -> Health:
    """Remember what a GPU said; news of faults goes into the ledger.  Returns what it was given."""
    with worker.store.lock:
        before = worker.store.wellness.get(gpu)
        old_xids = before.xids if before else ()
        xids = old_xids if health.xids is None else health.xids
        worker.store.wellness[gpu] = Wellness(worker.store.now(), health, xids)
        faults.note(worker.store, gpu, old_xids, before.health if before else None, health)
    return health


@dataclass(frozen=True, slots=True)
class Condition:
    """How the GPUs are and were.

    Attributes:
        versions: of the driver.
        infos: what each GPU is, by its UUID; none for one that never answered.
        said: what each said last.
        history: what happened to them, the newest first: each began or ceased to answer, had a
            fault, or was acted on by a person.
    """

    versions: Versions
    infos: Mapping[str, GpuInfo]
    said: Mapping[str, Wellness]
    history: tuple[AuditEntry, ...]


def condition(worker: Worker, most: int = 100) -> Condition:
    """How the GPUs are and were; ``most`` happenings."""
    store = worker.store
    history = (AuditEntry(**row) for row in store.ledger.history("gpu", limit=most))
    return Condition(store.versions, dict(store.infos), dict(store.wellness), tuple(history))


def sample(worker: Worker, gpu: str) -> None:
    """Read a GPU's slices, or it as a whole, if it answers; a change wakes who waits for news.

    A GPU that does not answer in time is unknown from then on.
    """
    with worker.store.lock:
        row = worker.store.state.gpus.get(gpu)
        if row is None:
            return
        rows = [one for one in worker.store.state.on_gpu[gpu].values() if one.state in READABLE]
        info = worker.store.infos.get(gpu)
        is_whole = info is not None and is_uncut(info)
        answers = row.state in (GPU_OK, GPU_UNFIT) and gpu not in worker.acting
    slices, whole = dict.fromkeys((one.id for one in rows), UNKNOWN), None
    try:
        if answers and not slices:
            worker.driver.info(gpu)  # so that an empty GPU that hangs is noticed as soon
        if answers:
            slices = _read_slices(worker, gpu, rows)
            whole = _read_gpu(worker, gpu) if is_whole else None
    except GpuHung as error:
        slices, whole = dict.fromkeys(slices, UNKNOWN), None
        with worker.store.write() as tx:
            gpu_failed(worker, tx, gpu, error)
    except GpuError:
        log.info("GPU %s cannot be read", gpu)  # reconcile says why, and what follows from it
    _keep(worker, gpu, slices, whole)


def _keep(worker: Worker, gpu: str, slices: dict[int, Usage], whole: Usage | None) -> None:
    store = worker.store
    with store.lock:
        before = [*map(store.usage.get, slices), store.gpu_usage.get(gpu)]
        now = [*slices.values(), whole or store.gpu_usage.get(gpu)]
        if whole is not None:
            store.gpu_usage[gpu] = whole
        read = store.usage | slices
        store.usage = {number: read[number] for number in read if number in store.state.slices}
        store.samples += 1
        if before != now:
            store.changed([gpu], is_news=[*map(_news, before)] != [*map(_news, now)])


def _news(usage: Usage | None) -> tuple[object, ...]:
    """What of a reading wakes people; activity never stands still, so only its tenths count."""
    if usage is None:
        return ()
    tenths = None if usage.activity_pct is None else round(usage.activity_pct / 10)
    return usage.memory_used_mib, usage.processes, tenths


def _read_slices(worker: Worker, gpu: str, rows: Sequence[SliceRow]) -> dict[int, Usage]:
    """By slice; the slice of an uncut GPU is the whole of it."""
    readings = {one.id: _reading(worker, one, one.gi_id) for one in rows if one.gi_id is not None}
    usages = worker.driver.usages(gpu, list(readings.values())) if readings else {}
    found = {number: usages.get(one, UNKNOWN) for number, one in readings.items()}
    wholes = [one.id for one in rows if one.gi_id is None]
    return found | {number: _read_gpu(worker, gpu) for number in wholes}


def _reading(worker: Worker, row: SliceRow, gi_id: int) -> SliceReading:
    where = Placement(row.start, row.size)
    return SliceReading(row.gpu, gi_id, row.ci_id, row.uuid, worker.store.profile(row), where)


def _read_gpu(worker: Worker, gpu: str) -> Usage:
    try:
        return worker.driver.gpu_usage(gpu)
    except GpuHung:
        raise
    except GpuError:
        return UNKNOWN

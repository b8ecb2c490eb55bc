"""Reads memory, processes and activity of a GPU's slices, for snapshots.  Unknown stays unknown."""

import logging
from collections.abc import Sequence

from miglab_api.gpus import SliceState
from miglab_pool.gpu.errors import GpuError, GpuHung
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import SliceReading, Usage
from miglab_pool.ledger.rows import GPU_OK, SliceRow
from miglab_pool.worker import inspect_gpu
from miglab_pool.worker.worker import Worker

log = logging.getLogger(__name__)

UNKNOWN = Usage(None, None)
READABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.FOREIGN})


def sample(worker: Worker, gpu: str) -> None:
    """Read a GPU's slices, or it as a whole, if it answers; a change wakes who waits for news.

    A GPU that does not answer in time is unknown from then on.
    """
    with worker.store.lock:
        row = worker.store.state.gpus.get(gpu)
        if row is None:
            return
        rows = [one for one in worker.store.state.on_gpu[gpu].values() if one.state in READABLE]
        is_whole, answers = worker.store.is_whole(row), row.state == GPU_OK
        answers = answers and gpu not in worker.acting
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
            inspect_gpu.gpu_failed(worker, tx, gpu, error)
    except GpuError:
        log.info("GPU %s cannot be read", gpu)  # reconcile says why, and what follows from it
    _keep(worker, gpu, slices, whole)


def _keep(worker: Worker, gpu: str, slices: dict[int, Usage], whole: Usage | None) -> None:
    store = worker.store
    with store.lock:
        before = [store.usage.get(number) for number in slices]
        now = list(slices.values())
        if whole is not None:
            before.append(store.gpu_usage.get(gpu))
            now.append(whole)
            store.gpu_usage[gpu] = whole
        gone = [number for number in store.usage if number not in store.state.slices]
        for number in gone:
            del store.usage[number]
        store.usage.update(slices)
        store.samples += 1
        if before != now:
            is_news = [_news(usage) for usage in before] != [_news(usage) for usage in now]
            store.changed([gpu], is_news=is_news)


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

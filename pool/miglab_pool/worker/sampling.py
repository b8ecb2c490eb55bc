"""Reads memory, processes and activity of every slice, for snapshots.  Unknown stays unknown."""

from miglab_api.gpus import SliceState
from miglab_pool.gpu.errors import GpuError
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import SliceReading, Usage
from miglab_pool.model.rows import GPU_OK, SliceRow
from miglab_pool.worker.worker import Worker

UNKNOWN = Usage(None, None)
READABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.FOREIGN})


def sample(worker: Worker) -> None:
    """Read every slice and every whole GPU that answers; a change wakes who waits for news."""
    with worker.store.lock:
        rows = [row for row in worker.store.state.slices.values() if row.state in READABLE]
        whole = [row.uuid for row in worker.store.state.gpus.values() if worker.store.is_whole(row)]
        silent = {row.uuid for row in worker.store.state.gpus.values() if row.state != GPU_OK}
        silent |= set(worker.acting)
    slices = {row.id: _read(worker, row) for row in rows if row.gpu not in silent}
    gpus = {gpu: _read_gpu(worker, gpu) for gpu in whole if gpu not in silent}
    with worker.store.lock:
        store = worker.store
        is_news = any(
            _news(slices.get(row.id, UNKNOWN)) != _news(store.usage.get(row.id)) for row in rows
        ) or any(_news(usage) != _news(store.gpu_usage.get(gpu)) for gpu, usage in gpus.items())
        moved = {row.gpu for row in rows if slices.get(row.id) != store.usage.get(row.id)}
        moved |= {gpu for gpu, usage in gpus.items() if usage != store.gpu_usage.get(gpu)}
        store.usage = slices
        store.samples += 1
        store.gpu_usage.update(gpus)
        store.changed(moved, is_news=is_news)


def _news(usage: Usage | None) -> tuple[object, ...]:
    """What of a reading wakes people; activity never stands still, so only its tenths count."""
    if usage is None:
        return ()
    tenths = None if usage.activity_pct is None else round(usage.activity_pct / 10)
    return usage.memory_used_mib, usage.processes, tenths


def _read(worker: Worker, row: SliceRow) -> Usage:
    if row.gi_id is None:
        return _read_gpu(worker, row.gpu)
    reading = SliceReading(
        row.gpu,
        row.gi_id,
        row.ci_id,
        row.uuid,
        worker.store.profile(row),
        Placement(row.start, row.size),
    )
    try:
        return worker.driver.usage(reading)
    except GpuError:
        return UNKNOWN


def _read_gpu(worker: Worker, gpu: str) -> Usage:
    try:
        return worker.driver.gpu_usage(gpu)
    except GpuError:
        return UNKNOWN

"""Reads memory, processes and activity of every slice, for snapshots.  Unknown stays unknown."""

from miglab_api.gpus import SliceState
from miglab_pool.gpu.errors import GpuError
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import SliceReading, Usage
from miglab_pool.model.rows import GPU_OK, SliceRow
from miglab_pool.state.store import Core

UNKNOWN = Usage(None, None)
READABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.FOREIGN})


def sample(core: Core) -> None:
    """Read every slice and every whole GPU that answers; a change wakes who waits for news."""
    with core.lock:
        rows = [row for row in core.state.slices.values() if row.state in READABLE]
        whole = [row.uuid for row in core.state.gpus.values() if core.is_whole(row)]
        silent = {row.uuid for row in core.state.gpus.values() if row.state != GPU_OK}
        silent |= set(core.acting)
    slices = {row.id: _read(core, row) for row in rows if row.gpu not in silent}
    gpus = {gpu: _read_gpu(core, gpu) for gpu in whole if gpu not in silent}
    with core.lock:
        changed = {
            row.gpu
            for row in rows
            if _news(slices.get(row.id, UNKNOWN)) != _news(core.usage.get(row.id))
        }
        changed |= {
            gpu for gpu, usage in gpus.items() if _news(usage) != _news(core.gpu_usage.get(gpu))
        }
        core.usage = slices
        core.samples += 1
        core.gpu_usage.update(gpus)
        if changed:
            core.redraw(changed)


def _news(usage: Usage | None) -> tuple[object, ...]:
    """What of a reading wakes people; activity never stands still, so only its tenths count."""
    if usage is None:
        return ()
    tenths = None if usage.activity_pct is None else round(usage.activity_pct / 10)
    return usage.memory_used_mib, usage.processes, tenths


def _read(core: Core, row: SliceRow) -> Usage:
    if row.gi_id is None:
        return _read_gpu(core, row.gpu)
    reading = SliceReading(
        row.gpu,
        row.gi_id,
        row.ci_id,
        row.uuid,
        core.profile(row),
        Placement(row.start, row.size),
    )
    try:
        return core.driver.usage(reading)
    except GpuError:
        return UNKNOWN


def _read_gpu(core: Core, gpu: str) -> Usage:
    try:
        return core.driver.gpu_usage(gpu)
    except GpuError:
        return UNKNOWN

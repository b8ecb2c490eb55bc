"""A shape that no GPU can hold now: whether a layout ahead cuts it, and when.  Reads only."""

import datetime as dt
from zoneinfo import ZoneInfo

from miglab_pool.gpu.shapes import Shape
from miglab_pool.model.gpu import GpuOccupancy
from miglab_pool.rules import layout_times
from miglab_pool.rules.layout_times import Planned
from miglab_pool.rules.placement.placement import could_ever_fit
from miglab_pool.state.view import PoolView, gpus_at


def when_partitioned(view: PoolView, shape: Shape, course: str) -> str:
    """From when on a layout cuts GPUs for a course that hold the shape, in words; else empty."""
    if shape.is_full:
        return ""  # no layout leaves a GPU whole
    ahead = []
    for plan in view.plans:
        time = layout_times.phase(plan, view.at, view.settings.pool.reserve_lead_s).time
        if time and could_ever_fit(shape.profiles, _states(view, plan, time.starts_at, course)):
            ahead.append((time.starts_at, plan))
    if not ahead:
        return ""
    starts_at, plan = min(ahead, key=lambda one: one[0])
    clock = dt.datetime.fromtimestamp(starts_at, ZoneInfo(plan.rules[0].tz))
    return f"from {clock:%A} {clock:%Y-%m-%d %H:%M} on (layout “{plan.name}”)"


def _states(view: PoolView, plan: Planned, at: float, course: str) -> list[GpuOccupancy]:
    """The plan's GPUs that the course may use while it is in force, empty."""
    gpus = (gpu for gpu in gpus_at(view, at, None, [plan]).values() if gpu.uuid in plan.partitions)
    return [
        GpuOccupancy(g.uuid, g.geometry) for g in gpus if g.geometry and g.course in ("", course)
    ]

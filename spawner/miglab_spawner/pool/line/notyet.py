"""A shape that no GPU can hold now: whether a layout ahead cuts it, and when.  Reads only."""

import datetime as dt
from collections.abc import Iterator
from zoneinfo import ZoneInfo

from miglab_spawner.gpu.shapes import Shape
from miglab_spawner.pool.core import Core
from miglab_spawner.pool.layouts import timetable
from miglab_spawner.pool.layouts.timetable import InForce, Planned
from miglab_spawner.pool.placing.placement import GpuState, could_ever_place


def when_cut(core: Core, shape: Shape, course: str) -> str:
    """From when on a layout cuts GPUs for a course that hold the shape, in words; else empty."""
    if shape.is_full:
        return ""  # no layout leaves a GPU whole
    ahead = []
    for plan in map(timetable.planned, core.state.layouts.values()):
        time = timetable.phase(plan, core.now(), core.settings.reserve_lead_s).time
        if time and could_ever_place(shape.profiles, list(_states(core, plan, course))):
            ahead.append((time.starts_at, plan))
    if not ahead:
        return ""
    starts_at, plan = min(ahead, key=lambda one: one[0])
    clock = dt.datetime.fromtimestamp(starts_at, ZoneInfo(plan.rules[0].tz))
    return f"from {clock:%A} {clock:%Y-%m-%d %H:%M} on (layout “{plan.name}”)"


def _states(core: Core, plan: Planned, course: str) -> Iterator[GpuState]:
    """The plan's GPUs that the course may use while it is in force, empty."""
    for gpu, cut in plan.cuts.items():
        laid = InForce(plan.number, plan.name, plan.course, cut)
        geometry = core.geometry_under(gpu, core.possible_on(gpu, laid), ())
        if geometry and core.course_under(core.state.gpus[gpu], laid) in ("", course):
            yield GpuState(gpu, geometry)

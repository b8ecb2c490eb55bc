"""A shape that no GPU can hold now: whether a layout ahead cuts it, and when.  Reads only."""

import datetime as dt
from collections.abc import Iterator
from zoneinfo import ZoneInfo

from miglab_pool.gpu.shapes import Shape
from miglab_pool.model.gpu import GpuState
from miglab_pool.rules import layout_times
from miglab_pool.rules.layout_times import InForce, Planned
from miglab_pool.rules.placement.placement import could_ever_place
from miglab_pool.state.store import Store


def when_cut(store: Store, shape: Shape, course: str) -> str:
    """From when on a layout cuts GPUs for a course that hold the shape, in words; else empty."""
    if shape.is_full:
        return ""  # no layout leaves a GPU whole
    ahead = []
    for plan in map(layout_times.planned, store.state.layouts.values()):
        time = layout_times.phase(plan, store.now(), store.settings.pool.reserve_lead_s).time
        if time and could_ever_place(shape.profiles, list(_states(store, plan, course))):
            ahead.append((time.starts_at, plan))
    if not ahead:
        return ""
    starts_at, plan = min(ahead, key=lambda one: one[0])
    clock = dt.datetime.fromtimestamp(starts_at, ZoneInfo(plan.rules[0].tz))
    return f"from {clock:%A} {clock:%Y-%m-%d %H:%M} on (layout “{plan.name}”)"


def _states(store: Store, plan: Planned, course: str) -> Iterator[GpuState]:
    """The plan's GPUs that the course may use while it is in force, empty."""
    for gpu, cut in plan.cuts.items():
        laid = InForce(plan.number, plan.name, plan.course, cut)
        geometry = store.geometry_under(gpu, store.possible_on(gpu, laid), ())
        if geometry and store.course_under(store.state.gpus[gpu], laid) in ("", course):
            yield GpuState(gpu, geometry)

"""The layouts of the fake pool: one A100, a layout called 1, and what it is told."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from miglab_api.layouts import (
    GpuLayout,
    LayoutDiff,
    LayoutDrain,
    Layouts,
    LayoutSpec,
    LayoutState,
    LayoutView,
)
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.layouts.checks import PartitionableGpu
from miglab_pool.refused import Refused
from miglab_pool.settings import Course, Gpus, PoolSettings

if TYPE_CHECKING:
    from .fakes import FakePool


GEOMETRY = Geometry(
    8,
    (
        Profile("1g.5gb", 19, 0, 1, 1, 14, 4864, 7, tuple(range(7))),
        Profile("3g.20gb", 9, 2, 3, 4, 42, 19968, 2, (0, 4)),
    ),
)
FIRST = LayoutView(
    id=1, name="1", gpus={"GPU-0": ("3g.20gb", "3g.20gb")}, state=LayoutState.IN_FORCE,
    made_by="person:root", made_at=990.0,
)  # fmt: skip
DRAIN = LayoutDrain(slice_id=2, lease=2, user="bob", course="ml", profile="1g.5gb", start=2, size=1)


class FakeLayouts:
    """See the module; a part of `FakePool`."""

    now = 1000.0

    @property
    def _pool(self) -> "FakePool":
        return cast("FakePool", self)

    @property
    def settings(self) -> PoolSettings:
        courses = {
            name: Course(shapes=("1g.5gb",), gpus=("GPU-0",) * (name == self._pool.gpu_course))
            for name in ("ml", "vision")
        }
        return PoolSettings(gpus=Gpus(uuids=("GPU-0",)), courses=courses)

    def partitionable(self) -> list[PartitionableGpu]:
        return [PartitionableGpu("GPU-0", 0, "A100", GEOMETRY)]

    def all_layouts(self) -> Layouts:
        laid = tuple(self._pool.laid.values())
        last = laid[-1] if laid else None
        gpu = GpuLayout(
            gpu="GPU-0", index=0, layout=last.name if last else "", conforms=False, drains=(DRAIN,)
        )
        return Layouts(at=self.now, layouts=laid, gpus=(gpu,))

    def layout_diffs(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        found, there = self.all_layouts(), tuple(self._pool.laid)
        return [LayoutDiff(layout=one.name, replaces=there, gpus=found.gpus) for one in asked]

    def layouts_now(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        return [LayoutDiff(layout=one.name, gpus=()) for one in asked]

    def lay(self, asked: Sequence[LayoutSpec], by: str, reason: str = "") -> Layouts:
        for one in asked:
            self._pool.laid[one.name] = LayoutView(
                id=2, state=LayoutState.IN_FORCE, made_by=by, made_at=self.now, message=reason,
                **one.model_dump(),
            )  # fmt: skip
        self._pool._changed("lay", [one.name for one in asked], by, reason)
        return self.all_layouts()

    def unlay(self, name: str, by: str, reason: str = "") -> Layouts:
        if name not in self._pool.laid:
            raise Refused("unknown-layout", f"There is no layout {name!r}. There are: 1.", 404)
        del self._pool.laid[name]
        self._pool._changed("unlay", name, by, reason)
        return self.all_layouts()

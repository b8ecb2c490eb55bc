"""The layouts of the fake pool: one A100 with a layout, and what it is told."""

from typing import TYPE_CHECKING, cast

from miglab_api.layouts import GpuLayout, LayoutDrain, Layouts
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.layouts.file import LayoutDraft, PartitionableGpu, resolve
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
DRAIN = LayoutDrain(slice_id=2, lease=2, user="bob", course="ml", profile="1g.5gb", start=2, size=1)
FIRST = GpuLayout(
    gpu="GPU-0", index=0, layout="1", partition=("3g.20gb", "3g.20gb"), conforms=False,
    drains=(DRAIN,),
)  # fmt: skip


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

    def all_layouts(self) -> Layouts:
        return Layouts(at=self.now, gpus=(self._pool.laid,))

    def layout_diff(self, asked: LayoutDraft) -> Layouts:
        partition = resolve(asked, [PartitionableGpu("GPU-0", 0, "A100", GEOMETRY)])["GPU-0"]
        gpu = FIRST.model_copy(update={"layout": asked.name, "partition": partition})
        return Layouts(at=self.now, gpus=(gpu,))

    def lay(self, asked: LayoutDraft, by: str, reason: str = "", anyway: str = "") -> Layouts:
        found = self.layout_diff(asked)
        (self._pool.laid,) = found.gpus
        self._pool._changed("lay", asked.name, by, reason)
        return found

"""What Prometheus reads off the pool at the moment it asks: leases, slices, GPUs.

A slice is labelled by its GPU, its first memory slice and its profile, never by who holds it: names
would be unbounded, and metrics are open to whoever reaches the listener.  What is unknown has no
sample; zero always means zero.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge

from miglab_api.gpus import GpuView, PoolSnapshot, SliceState, SliceView
from miglab_api.leases import LeaseView
from miglab_pool.gpu.nvml.health import APPLICATION_XIDS
from miglab_pool.gpu.readings import Health

GPU_STATES = ("ok", "unknown", "lost")
SLICE = ("gpu", "start", "profile")
MIB = 1 << 20


@dataclass(frozen=True)
class Told:
    """What GPUs and slices said last, beside the snapshot.

    Attributes:
        health: by GPU UUID.
    """

    health: Mapping[str, Health] = field(default_factory=dict)


class Gauges:
    """The gauges, in the service's registry.

    Args:
        registry: where they are read.
        shape: the name under which a shape is counted.
    """

    def __init__(self, registry: CollectorRegistry, shape: Callable[[str], str]) -> None:
        self._registry = registry
        self._shape = shape
        self._leases = self._new("leases", "Live leases.", "state", "shape")
        self._waiting = self._new("tickets_waiting", "Tickets that wait.")
        self._paused = self._new("paused", "1 while no new lease is granted, else 0.")
        self._slices = self._new("slices", "Slices that exist.", "state")
        self._gpus = self._new("gpus", "GPUs of the lab.", "state")
        self._free = self._new("memory_slices_free", "Memory slices that nobody holds.")
        self._all = self._new("memory_slices", "Memory slices of GPUs that answer.")
        self._memory = self._new("slice_memory_bytes", "Memory of a slice.", *SLICE)
        self._used = self._new("slice_memory_used_bytes", "Memory in use on a slice.", *SLICE)
        self._busy = self._new("slice_activity_ratio", "How busy a slice was lately.", *SLICE)
        self._heat = self._new("gpu_temperature_celsius", "Temperature of a GPU.", "gpu")
        self._power = self._new("gpu_power_watts", "Power that a GPU draws.", "gpu")
        self._ecc = self._new("gpu_ecc_errors", "Uncorrected memory errors.", "gpu")
        self._xids = self._new("gpu_xids", "Xid faults since the service began.", "gpu", "kind")

    def set(self, snapshot: PoolSnapshot, leases: Iterable[LeaseView], told: Told) -> None:
        """Set all of them to what is so now."""
        self._set_leases(snapshot, leases)
        self._set_slices(snapshot)
        for gauge in (self._heat, self._power, self._ecc, self._xids):
            gauge.clear()
        for gpu in snapshot.gpus:
            health = told.health.get(gpu.uuid)
            if health is not None:
                self._set_health(str(gpu.index), health)

    def _set_leases(self, snapshot: PoolSnapshot, leases: Iterable[LeaseView]) -> None:
        self._paused.set(bool(snapshot.paused))
        self._waiting.set(len(snapshot.waiting))
        self._leases.clear()
        for lease in leases:
            self._leases.labels(lease.state.value, self._shape(lease.shape)).inc()

    def _set_slices(self, snapshot: PoolSnapshot) -> None:
        gpus = Tally(gpu.state for gpu in snapshot.gpus)
        for name in GPU_STATES:
            self._gpus.labels(name).set(gpus[name])
        states = Tally(item.state for gpu in snapshot.gpus for item in gpu.slices)
        for state in SliceState:
            self._slices.labels(state.value).set(states[state])
        well = [gpu for gpu in snapshot.gpus if gpu.state == "ok"]
        self._all.set(sum(gpu.memory_slices for gpu in well))
        self._free.set(sum(free_of(gpu) for gpu in well))
        for gauge in (self._memory, self._used, self._busy):
            gauge.clear()
        for gpu in snapshot.gpus:
            for item in gpu.slices:
                self._set_slice(gpu, item)

    def _set_slice(self, gpu: GpuView, item: SliceView) -> None:
        where = (str(gpu.index), str(item.start), item.profile)
        self._memory.labels(*where).set(item.memory_mib * MIB)
        if item.memory_used_mib is not None:
            self._used.labels(*where).set(item.memory_used_mib * MIB)
        if item.activity_pct is not None:
            self._busy.labels(*where).set(item.activity_pct / 100)

    def _set_health(self, gpu: str, health: Health) -> None:
        said = (
            (self._heat, health.temperature_c),
            (self._power, health.power_w),
            (self._ecc, health.ecc_errors),
        )
        for gauge, value in said:
            if value is not None:
                gauge.labels(gpu).set(value)
        if health.xids is not None:
            kinds = Tally(xid in APPLICATION_XIDS for xid in health.xids)
            self._xids.labels(gpu, "application").set(kinds[True])
            self._xids.labels(gpu, "gpu").set(kinds[False])

    def _new(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"miglab_{name}", text, labels, registry=self._registry)


def free_of(gpu: GpuView) -> int:
    """Memory slices of a GPU that nobody holds: not cut, or cut and free.  Pure."""
    held = sum(item.size for item in gpu.slices if item.state is not SliceState.FREE)
    return max(0, gpu.memory_slices - held)

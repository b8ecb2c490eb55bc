"""The metrics for Prometheus: counters of events, and gauges read from the pool at each scrape.

A slice is labelled by its GPU, its first memory slice and its profile, never by its holder: names
would be unbounded, and metrics are open to whoever reaches the listener.  What is unknown has no
sample, so zero always means zero.  Every label has a bounded set of values; the docs' list of them
is generated from here.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from miglab_api.gpus import GpuView, PoolSnapshot, SliceState
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketState
from miglab_pool.gpu.readings import Health
from miglab_pool.gpu.xids import XidScope
from miglab_pool.http.errors import REASONS as SERVICE_REASONS
from miglab_pool.ledger.rows import GPU_LOST, GPU_OK, GPU_UNFIT, GPU_UNKNOWN
from miglab_pool.refused import REASONS as POOL_REASONS
from miglab_pool.worker.disks import DiskUse
from miglab_pool.worker.inspect_gpu import Finding

GPU_STATES = (GPU_OK, GPU_UNFIT, GPU_UNKNOWN, GPU_LOST)
SLICE = ("gpu", "start", "profile")
MIB = 1 << 20
WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
JOB_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
DRIVER_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
FINDING_KINDS = ("gpu", "slice", "lease", "ticket", "holder")
"""The kinds of what findings of reconcile concern."""
Labels = tuple[str, ...]
Healths = Mapping[str, Health]
NO_HEALTHS: Healths = MappingProxyType({})


REASONS = POOL_REASONS.keys() | SERVICE_REASONS.keys()
"""The refusal reasons with a label of their own; others count as ``other``."""


class Metrics:
    """The service's metrics, in a registry of their own.

    Args:
        shapes: the shapes with a label of their own; others count as ``other``.
    """

    def __init__(self, shapes: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._shapes = frozenset(shapes)
        self._make_gauges()
        self._make_histograms()
        self._make_counters()

    def _make_gauges(self) -> None:
        self._leases = self._gauge(
            "leases", "Live leases, by shape offered or other.", "state", "shape"
        )
        self._waiting = self._gauge("tickets_waiting", "Tickets that wait.")
        self._paused = self._gauge("paused", "1 while no new lease is granted, else 0.")
        self._slices = self._gauge("slices", "Slices that exist now.", "state")
        self._gpus = self._gauge("gpus", "GPUs now: ok, unfit, unknown or lost.", "state")
        self._free = self._gauge("memory_slices_free", "Memory slices that nobody holds.")
        self._all = self._gauge("memory_slices", "Memory slices of GPUs that answer.")
        self._memory = self._gauge("slice_memory_bytes", "Memory of a slice.", *SLICE)
        self._used = self._gauge("slice_memory_used_bytes", "Memory in use on a slice.", *SLICE)
        self._busy = self._gauge("slice_activity_ratio", "Recent activity, 0 to 1.", *SLICE)
        self._heat = self._gauge("gpu_temperature_celsius", "Temperature of a GPU.", "gpu")
        self._power = self._gauge("gpu_power_watts", "Power that a GPU draws.", "gpu")
        self._ecc = self._gauge("gpu_ecc_errors", "Uncorrected memory errors since reset.", "gpu")
        self._xids = self._gauge(
            "gpu_xids", "Recent Xids: program, instance, notice or card.", "gpu", "kind"
        )

    def _make_histograms(self) -> None:
        self._wait_s = self._histogram(
            "wait_seconds",
            "Time from a ticket to the grant of its lease, for leases that were taken.",
            "shape",
            WAIT_BUCKETS_S,
        )
        self.job_s = self._histogram(
            "job_seconds",
            "Duration of the worker's jobs, ledger included: create, destroy, probe, inspect.",
            "kind",
            JOB_BUCKETS_S,
        )
        self._driver_s = {
            kind: self._histogram(
                f"slice_{kind}_seconds",
                f"How long the driver took to {kind} a slice; failed calls do not count.",
                "profile",
                DRIVER_BUCKETS_S,
            )
            for kind in ("create", "destroy")
        }

    def _make_counters(self) -> None:
        self.gpu_call_s = self._gauge(
            "gpu_call_seconds",
            "Age of the oldest driver call under way, 0 if none; see gpus.answer_s and change_s.",
        )
        self.silent_servers = self._gauge(
            "servers_silent",
            "Students' servers with a GPU that have not reported for reclaim.stale_s.",
        )
        self.disk_full = self._gauge(
            "disk_full", "1 while nothing is granted because the ledger's disk is full, else 0."
        )
        self._disk_used = self._gauge(
            "disk_used_ratio",
            "How full a disk is, 0 to 1: of ledger, logs, homes.",
            "holds",
        )
        self.refusals = self._counter("refusals", "Refused requests.", "reason")
        self.failed_rounds = self._counter(
            "failed_rounds",
            "Rounds of the service's own loops that failed and were tried again.",
            "loop",
        )
        self.reclaims = self._counter(
            "reclaims",
            "Leases reclaimed: idle, needed, time (their end), maintenance, staff.",
            "reason",
        )
        self._unserved = self._counter(
            "tickets_unserved", "Tickets that ended without a lease.", "reason"
        )
        self._repaired = self._counter(
            "reconcile_repaired", "Differences that reconcile found and mended.", "about"
        )
        self._open = self._gauge(
            "reconcile_open",
            "Differences that the last reconcile found, for somebody to look at.",
            "about",
        )

    def count_refusal(self, reason: str) -> None:
        """Count a refusal."""
        self.refusals.labels(reason if reason in REASONS else "other").inc()

    def count_unserved(self, state: str, reason: str) -> None:
        """Count a ticket that ended without a lease; one that waited too long is a refusal too."""
        self._unserved.labels(reason if reason in REASONS else "other").inc()
        if state == TicketState.REFUSED:
            self.count_refusal(reason)

    def reclaimed(self, kind: str) -> None:
        """Count a lease that was reclaimed; ``kind`` is a `WarningKind`."""
        self.reclaims.labels(kind).inc()

    def count_wait(self, shape: str, wait_s: float) -> None:
        """Count a wait that ended with a lease, seconds."""
        self._wait_s.labels(self._shape(shape)).observe(max(0.0, wait_s))

    def driver_call(self, kind: str, profile: str, took_s: float) -> None:
        """Count how long the driver took; ``kind`` is ``create`` or ``destroy``."""
        self._driver_s[kind].labels(profile).observe(took_s)

    def watched_disks(self, disks: Iterable[DiskUse]) -> None:
        """Take over how full the lab's disks are."""
        known = [disk for disk in disks if not disk.problem]
        used: dict[Labels, float] = {(n,): disk.used_pct for disk in known for n in disk.holds}
        _set_samples(self._disk_used, used, 0.01)

    def reconciled(self, findings: Sequence[Finding]) -> None:
        """Count the findings of a round of reconcile."""
        open_counts = Tally(finding.kind for finding in findings if not finding.action)
        for kind in FINDING_KINDS:
            self._open.labels(kind).set(open_counts[kind])
        for finding in findings:
            if finding.action:
                self._repaired.labels(finding.kind).inc()

    def render(
        self, snapshot: PoolSnapshot, leases: Iterable[LeaseView], healths: Healths = NO_HEALTHS
    ) -> bytes:
        """Return the metrics as Prometheus reads them, with the state of the pool now.

        Args:
            snapshot: the snapshot of the pool.
            leases: the live leases.
            healths: the last health reading of each GPU, by UUID.
        """
        self._paused.set(bool(snapshot.paused))
        self._waiting.set(len(snapshot.waiting))
        _set_samples(
            self._leases, Tally((lease.state.value, self._shape(lease.shape)) for lease in leases)
        )
        self._set_slices(snapshot)
        self._set_health(
            {(str(gpu.index),): healths[gpu.uuid] for gpu in snapshot.gpus if gpu.uuid in healths}
        )
        return generate_latest(self.registry)

    def _set_slices(self, snapshot: PoolSnapshot) -> None:
        gpus = Tally(gpu.state for gpu in snapshot.gpus)
        _set_samples(self._gpus, {(name,): gpus[name] for name in GPU_STATES})
        slices = {
            (str(gpu.index), str(slice_.start), slice_.profile): slice_
            for gpu in snapshot.gpus
            for slice_ in gpu.slices
        }
        states = Tally(slice_.state for gpu in snapshot.gpus for slice_ in gpu.slices)
        _set_samples(self._slices, {(state.value,): states[state] for state in SliceState})
        answering = [gpu for gpu in snapshot.gpus if gpu.state == "ok"]
        self._all.set(sum(gpu.memory_slices for gpu in answering))
        self._free.set(sum(map(_free_memory_slices, answering)))
        _set_samples(self._memory, {at: slice_.memory_mib for at, slice_ in slices.items()}, MIB)
        _set_samples(self._used, {at: slice_.memory_used_mib for at, slice_ in slices.items()}, MIB)
        _set_samples(self._busy, {at: slice_.activity_pct for at, slice_ in slices.items()}, 0.01)

    def _set_health(self, healths: Mapping[Labels, Health]) -> None:
        _set_samples(self._heat, {gpu: health.temperature_c for gpu, health in healths.items()})
        _set_samples(self._power, {gpu: health.power_w for gpu, health in healths.items()})
        _set_samples(self._ecc, {gpu: health.ecc_errors for gpu, health in healths.items()})
        xids = {
            (*gpu, scope.value): sum(xid.scope is scope for xid in health.xids)
            for gpu, health in healths.items()
            if health.xids is not None
            for scope in XidScope
        }
        _set_samples(self._xids, xids)

    def _shape(self, shape: str) -> str:
        return shape if shape in self._shapes else "other"

    def _histogram(self, name: str, text: str, label: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"miglab_{name}", text, [label], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"miglab_{name}", text, [label], registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"miglab_{name}", text, labels, registry=self.registry)


def _set_samples(gauge: Gauge, samples: Mapping[Labels, float | None], unit: float = 1) -> None:
    """Replace the samples of a gauge; an unknown value has none."""
    gauge.clear()
    for labels, value in samples.items():
        if value is not None:
            gauge.labels(*labels).set(value * unit)


def _free_memory_slices(gpu: GpuView) -> int:
    """Return the memory slices of a GPU that nobody holds, partitioned or not."""
    held_size = sum(slice_.size for slice_ in gpu.slices if slice_.state is not SliceState.FREE)
    return max(0, gpu.memory_slices - held_size)

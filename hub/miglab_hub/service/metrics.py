"""What Prometheus reads: counted here, or taken from the pool's snapshot when it asks.

Every label has a bounded set of values; docs/reference/metrics.md lists them all.
"""

from collections import Counter as Tally
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from miglab_spawner.messages import LeaseView, PoolSnapshot, SliceState
from miglab_spawner.pool.refused import REASONS as POOL_REASONS

from .answers import REASONS as SERVICE_REASONS

REASONS = POOL_REASONS.keys() | SERVICE_REASONS.keys()
"""The refusal reasons that are counted under their own name; others as ``other``."""

WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
ACT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
GPU_STATES = ("ok", "unknown", "lost")


class Metrics:
    """The service's metrics, in a registry of their own.

    Args:
        shapes: the shapes counted under their own name; others as ``other``.
    """

    def __init__(self, shapes: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._shapes = frozenset(shapes)
        self.wait_s = Histogram(
            "miglab_wait_seconds",
            "Time from a ticket to its lease being taken.",
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self.act_s = Histogram(
            "miglab_act_seconds",
            "Duration of acts on the GPUs.",
            ["kind"],
            buckets=ACT_BUCKETS_S,
            registry=self.registry,
        )
        self.gpu_call_s = self._gauge(
            "miglab_gpu_call_seconds", "How long the work on the GPU thread has lasted; 0 at rest."
        )
        self.refusals = Counter(
            "miglab_refusals", "Refused requests.", ["reason"], registry=self.registry
        )
        self.failed_rounds = Counter(
            "miglab_failed_rounds",
            "Rounds of the service's own loops that failed and were tried again.",
            ["loop"],
            registry=self.registry,
        )
        self.reclaims = Counter(
            "miglab_reclaims",
            "Leases taken back, by the reclaimer or because their time was up.",
            ["reason"],
            registry=self.registry,
        )
        self._leases = self._gauge("miglab_leases", "Live leases.", "state", "shape")
        self._waiting = self._gauge("miglab_tickets_waiting", "Tickets that wait.")
        self._slices = self._gauge("miglab_slices", "Slices that exist.", "state")
        self._gpus = self._gauge("miglab_gpus", "GPUs of the lab.", "state")

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self.refusals.labels(reason if reason in REASONS else "other").inc()

    def reclaimed(self, kind: str) -> None:
        """Count a lease that was taken back; ``kind`` is a `WarningKind`."""
        self.reclaims.labels(kind).inc()

    def render(self, snapshot: PoolSnapshot, leases: Iterable[LeaseView]) -> bytes:
        """The metrics as Prometheus reads them, with what the pool holds now."""
        self._waiting.set(len(snapshot.waiting))
        self._leases.clear()
        for lease in leases:
            shape = lease.shape if lease.shape in self._shapes else "other"
            self._leases.labels(lease.state.value, shape).inc()
        cut = Tally(item.state for gpu in snapshot.gpus for item in gpu.slices)
        for state in SliceState:
            self._slices.labels(state.value).set(cut[state])
        gpus = Tally(gpu.state for gpu in snapshot.gpus)
        for name in GPU_STATES:
            self._gpus.labels(name).set(gpus[name])
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

"""What Prometheus reads: counted here as it happens, beside what `gauges` reads off the pool.

Every label has a bounded set of values; docs/reference/metrics.md lists them all.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from miglab_api.gpus import PoolSnapshot
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketState
from miglab_pool.http.errors import REASONS as SERVICE_REASONS
from miglab_pool.http.gpu_metrics import GPU_STATES, Gauges, Told
from miglab_pool.model.refused import REASONS as POOL_REASONS

if TYPE_CHECKING:
    from miglab_pool.worker.inspect_gpu import Finding


__all__ = ["FOUND", "GPU_STATES", "REASONS", "Metrics", "Told"]

REASONS = POOL_REASONS.keys() | SERVICE_REASONS.keys()
"""The refusal reasons that are counted under their own name; others as ``other``."""

WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200)
JOB_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
DRIVER_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
FOUND = ("gpu", "slice", "lease", "ticket", "holder")
"""What reconcile finds something about."""


class Metrics:
    """The service's metrics, in a registry of their own.

    Args:
        shapes: the shapes counted under their own name; others as ``other``.
    """

    def __init__(self, shapes: Iterable[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._shapes = frozenset(shapes)
        self._gauges = Gauges(self.registry, self._shape)
        self._make_histograms()
        self._make_counters()

    def _make_histograms(self) -> None:
        self._wait_s = Histogram(
            "miglab_wait_seconds",
            "Time from a ticket to its lease being granted.",
            ["shape"],
            buckets=WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self.job_s = Histogram(
            "miglab_job_seconds",
            "Duration of jobs on the GPUs.",
            ["kind"],
            buckets=JOB_BUCKETS_S,
            registry=self.registry,
        )
        self._driver_s = {
            kind: Histogram(
                f"miglab_slice_{kind}_seconds",
                f"How long the driver took to {kind} a slice.",
                ["profile"],
                buckets=DRIVER_BUCKETS_S,
                registry=self.registry,
            )
            for kind in ("create", "destroy")
        }

    def _make_counters(self) -> None:
        self.gpu_call_s = Gauge(
            "miglab_gpu_call_seconds",
            "How long the oldest driver call under way has lasted; 0 if there is none.",
            registry=self.registry,
        )
        self.silent_servers = Gauge(
            "miglab_servers_silent",
            "Students' servers with a GPU that have not reported for reclaim.stale_s.",
            registry=self.registry,
        )
        self.refusals = self._counter("miglab_refusals", "Refused requests.", "reason")
        self.failed_rounds = self._counter(
            "miglab_failed_rounds",
            "Rounds of the service's own loops that failed and were tried again.",
            "loop",
        )
        self.reclaims = self._counter(
            "miglab_reclaims",
            "Leases reclaimed, by the reclaimer or because their time was up.",
            "reason",
        )
        self._unserved = self._counter(
            "miglab_tickets_unserved", "Tickets that ended without a lease.", "reason"
        )
        self._repaired = self._counter(
            "miglab_reconcile_repaired", "What reconcile found and did something about.", "about"
        )
        self._open = Gauge(
            "miglab_reconcile_open",
            "What reconcile found at its last round, and somebody must look at.",
            ["about"],
            registry=self.registry,
        )

    def refused(self, reason: str) -> None:
        """Count a refusal."""
        self.refusals.labels(reason if reason in REASONS else "other").inc()

    def unserved(self, state: str, reason: str) -> None:
        """Count a ticket that ended without a lease; one that waited too long is a refusal too."""
        self._unserved.labels(reason if reason in REASONS else "other").inc()
        if state == TicketState.REFUSED:
            self.refused(reason)

    def reclaimed(self, kind: str) -> None:
        """Count a lease that was reclaimed; ``kind`` is a `WarningKind`."""
        self.reclaims.labels(kind).inc()

    def waited(self, shape: str, wait_s: float) -> None:
        """Count a wait that ended with a lease, seconds."""
        self._wait_s.labels(self._shape(shape)).observe(max(0.0, wait_s))

    def driver_call(self, kind: str, profile: str, took_s: float) -> None:
        """Count how long the driver took; ``kind`` is ``create`` or ``destroy``."""
        self._driver_s[kind].labels(profile).observe(took_s)

    def reconciled(self, found: Sequence["Finding"]) -> None:
        """Count what a round of reconcile found."""
        still = Tally(one.kind for one in found if not one.done)
        for about in FOUND:
            self._open.labels(about).set(still[about])
        for one in found:
            if one.done:
                self._repaired.labels(one.kind).inc()

    def render(
        self, snapshot: PoolSnapshot, leases: Iterable[LeaseView], told: Told | None = None
    ) -> bytes:
        """The metrics as Prometheus reads them, with what the pool holds now."""
        self._gauges.set(snapshot, leases, told or Told())
        return generate_latest(self.registry)

    def _shape(self, shape: str) -> str:
        return shape if shape in self._shapes else "other"

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(name, text, [label], registry=self.registry)

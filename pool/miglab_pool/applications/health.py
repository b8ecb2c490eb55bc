"""The health of the service: a route that is open to all and names nobody, and the Health page.

Files, disk and Docker are examined on demand, at most once a minute.  An examination may take
seconds, or hang.  So it runs on a thread of its own, a request waits for it no longer than
`PATIENCE_S`, and it does not keep the service from ending.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

from fastapi import APIRouter, Request

from miglab_api.base import WireModel
from miglab_api.gpus import GpuView, PoolSnapshot, SliceState, SliceView
from miglab_api.staff import AuditEntry
from miglab_pool.applications.pool_runner import PoolRunner, Runner
from miglab_pool.gpu.readings import Health
from miglab_pool.http.access.dependencies import OPEN
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.errors import REFUSED
from miglab_pool.http.pages.frame import render, short_duration
from miglab_pool.ledger.rows import GPU_LOST, GPU_OK, GPU_UNFIT, GPU_UNKNOWN
from miglab_pool.worker.health_findings import (
    HOT_C,
    HealthFinding,
    gpu_findings,
    pool_findings,
    wrong,
)
from miglab_pool.worker.inspect_gpu import BY, Condition
from miglab_pool.worker.inspect_gpu import Finding as Disagreement

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
FINDINGS_LIVE_S = 60.0
Examine = Callable[[], list[HealthFinding]]
STALE_S = 120.0
STATES = {
    GPU_OK: "answers",
    GPU_UNFIT: "needs attention",
    GPU_UNKNOWN: "does not answer",
    GPU_LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of the last examination.

    Attributes:
        findings: what it found.
        age_s: how long ago that was; None if none has ended yet.
        running_s: how long the examination under way has lasted; None if there is none.
    """

    findings: tuple[HealthFinding, ...] = ()
    age_s: float | None = None
    running_s: float | None = None


class Doctor:
    """Examines the service on demand, with one examination at a time for all requests.

    Args:
        look: examines the service; may take long.
        clock: seconds that never jump.
        patience_s: how long a request waits for an examination under way.
    """

    def __init__(
        self,
        look: Examine,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._look = look
        self._clock = clock
        self._patience_s = patience_s
        self._began: float | None = None
        self._done = asyncio.Event()
        self._found: tuple[float, list[HealthFinding]] | None = None

    async def examine(self) -> Examination:
        """Return the last findings, no older than a minute if they can be had in time."""
        is_old = self._found is None or self._clock() - self._found[0] > FINDINGS_LIVE_S
        if self._began is None and is_old:
            self._begin()
        if self._began is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), self._patience_s)
        now = self._clock()
        at, findings = self._found or (None, ())
        return Examination(
            tuple(findings),
            None if at is None else now - at,
            None if self._began is None else now - self._began,
        )

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = self._clock()
        self._done.clear()

        def run() -> None:
            findings = self._examine()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._finish, findings)

        Thread(target=run, name="miglab-doctor", daemon=True).start()

    def _finish(self, findings: list[HealthFinding]) -> None:
        self._found, self._began = (self._clock(), findings), None
        self._done.set()

    def _examine(self) -> list[HealthFinding]:
        """The outer frame of the thread: an examination that fails is a finding."""
        try:
            return self._look()
        except Exception as error:
            log.exception("an examination failed")
            return [wrong("doctor", f"could not look: {error}", "see the pool's log")]


class ServiceHealth(WireModel):
    """The health of the pool.

    Attributes:
        gpus_troubled: how many of the GPUs take no new lease.
        is_stuck: whether a driver call hangs; its GPU takes no lease.
        is_reconciled: whether ledger, GPUs and servers were compared since the service began.
        unknown_to_hub: how many servers are to end that the hub does not have, and still run.
        left_alone: how many containers of this lab hold slices by a lease that is not the ledger's.
        is_other_engine: whether another Docker engine answers than the one that has the leases'
            containers, so that none of them is known to be gone.
        silent_servers: how many students' servers have not reported for `reclaim.stale_s`.
        is_disk_full: whether nothing is granted because the ledger's disk is full.
        disks_low: what lies on a disk that is at least 95 % full: ledger, logs, homes.
        failing: the service's own loops whose last round failed.
    """

    ok: bool
    gpus: int
    gpus_troubled: int
    is_stuck: bool
    is_reconciled: bool
    unknown_to_hub: int = 0
    left_alone: int = 0
    is_other_engine: bool = False
    silent_servers: int = 0
    is_disk_full: bool = False
    disks_low: tuple[str, ...] = ()
    failing: tuple[str, ...]


router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/health", dependencies=[OPEN])
async def health(runner: Runner) -> ServiceHealth:
    """Return whether the pool's rounds succeed and every GPU answers; open to all."""
    return service_health(runner, await runner.snapshot())


def service_health(runner: PoolRunner, snapshot: PoolSnapshot) -> ServiceHealth:
    """Return the health of the pool, by a snapshot of it."""
    troubled = sum(gpu.state != "ok" for gpu in snapshot.gpus)
    has_other_engine = any(finding.kind == "engine" for finding in runner.findings)
    return ServiceHealth(
        ok=not (troubled or runner.is_stuck or runner.failing or runner.unknown_to_hub)
        and not (has_other_engine or runner.is_disk_full)
        and runner.is_reconciled,
        gpus=len(snapshot.gpus),
        gpus_troubled=troubled,
        is_stuck=runner.is_stuck,
        is_reconciled=runner.is_reconciled,
        unknown_to_hub=len(runner.unknown_to_hub),
        left_alone=sum(
            finding.kind == "holder" and not finding.action for finding in runner.findings
        ),
        is_other_engine=has_other_engine,
        silent_servers=runner.silent_servers,
        is_disk_full=runner.is_disk_full,
        disks_low=tuple(name for disk in runner.disks if disk.is_low for name in disk.holds),
        failing=runner.failing,
    )


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One GPU as the Health page shows it.

    Attributes:
        last_health: its last health reading; None if there is none.
        age_s: how long ago that was.
    """

    gpu: GpuView
    last_health: Health | None = None
    age_s: float | None = None

    @property
    def is_bad(self) -> bool:
        """Whether the GPU needs attention."""
        return self.gpu.state != "ok" or (
            self.last_health is not None and self.last_health.ok is False
        )

    @property
    def verdict(self) -> str:
        """The state of the GPU, in a word or two."""
        if self.gpu.state == "ok":
            return "needs attention" if self.is_bad else STATES["ok"]
        return STATES.get(self.gpu.state, self.gpu.state)

    @property
    def is_stale(self) -> bool:
        """Whether the last reading is too old to be relied on."""
        return self.age_s is None or self.age_s > STALE_S


async def page(request: Request, principal: Principal) -> str:
    """Return the Health page."""
    runner: PoolRunner = request.app.state.runner
    doctor: Doctor = request.app.state.doctor
    examined = await doctor.examine()
    condition = await runner.decide(lambda pool: pool.condition())
    contradictions = await runner.decide(lambda pool: pool.check_invariants())
    snapshot = await runner.snapshot()
    findings = [
        *leasable_gpu_findings(snapshot, condition),
        *pool_findings(snapshot, service_health(runner, snapshot).model_dump(), contradictions),
        *examined.findings,
    ]
    return render(
        "health.html",
        request,
        principal,
        "health",
        wrong=[finding for finding in findings if finding.is_wrong],
        fine=[finding for finding in findings if not finding.is_wrong],
        examined=examined,
        cards=gpu_cards(snapshot, condition, time.time()),
        lines=[entry for entry in condition.history if entry.reason != "listed"],
        names={gpu.uuid: f"GPU {gpu.index}" for gpu in snapshot.gpus},
        describe_entry=describe_entry,
        driver=BY,
        foreign_or_quarantined=foreign_or_quarantined(snapshot),
        open_findings=open_findings(runner.findings),
        versions=condition.versions,
        simulated=snapshot.simulated,
        call_s=runner.gpu_call_s,
        now=time.time(),
        short_duration=short_duration,
        holder_name=holder_name,
        hot_c=HOT_C,
    )


def leasable_gpu_findings(snapshot: PoolSnapshot, condition: Condition) -> list[HealthFinding]:
    """Return doctor's findings on GPUs that take leases; the pool reports the others.  Pure."""
    infos, readings = condition.infos, condition.wellness
    return [
        finding
        for gpu in snapshot.gpus
        if gpu.state == GPU_OK and gpu.uuid in readings and gpu.uuid in infos
        for finding in gpu_findings(
            infos[gpu.uuid],
            readings[gpu.uuid].health,
            is_whole=infos[gpu.uuid].mig is False,  # the mode is as wanted, or it would be unfit
        )
    ]


def gpu_cards(snapshot: PoolSnapshot, condition: Condition, now: float) -> list[GpuCard]:
    """Return each GPU with its last health reading.  Pure."""
    readings = condition.wellness
    return [
        GpuCard(gpu, readings[gpu.uuid].health, max(0.0, now - readings[gpu.uuid].at))
        if gpu.uuid in readings
        else GpuCard(gpu)
        for gpu in snapshot.gpus
    ]


def describe_entry(entry: AuditEntry) -> str:
    """Return the reason of an entry, or else the state of the GPU, in words.  Pure."""
    state = STATES.get(entry.to_state, entry.to_state)
    return state if entry.reason in ("", entry.to_state) else entry.reason


def foreign_or_quarantined(snapshot: PoolSnapshot) -> list[tuple[GpuView, SliceView]]:
    """Return the foreign and the quarantined slices, each with its GPU.  Pure."""
    odd = (SliceState.FOREIGN, SliceState.QUARANTINED)
    return [(gpu, slice_) for gpu in snapshot.gpus for slice_ in gpu.slices if slice_.state in odd]


def holder_name(holder: str) -> str:
    """Return the name of a container as Docker lists it; of other holders, the holder.  Pure."""
    kind, _, name = holder.partition(":")
    return f"container {name[:12]}" if kind == "container" else holder


def open_findings(findings: Iterable[Disagreement]) -> list[Disagreement]:
    """Return what the last reconcile left to people, but for slices, which are listed anyway."""
    return [finding for finding in findings if not finding.action and finding.kind != "slice"]

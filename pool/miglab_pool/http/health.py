"""How the service is: for whoever watches it (open to all, names nobody), and the Health page.

What the service cannot know from memory (files, disk, Docker) is examined at most now and then.  An
examination may take seconds, or hang: it runs on a thread of its own that nobody waits for longer
than `PATIENCE_S`, and that does not keep the service from ending.
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
from miglab_pool.gpu.readings import Health
from miglab_pool.http.access.dependencies import OPEN, Runner
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.errors import REFUSED
from miglab_pool.http.pages.frame import render, short
from miglab_pool.http.pool_runner import PoolRunner
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
LIVES_S = 60.0
Look = Callable[[], list[HealthFinding]]
STALE_S = 120.0
STATES = {
    GPU_OK: "answers",
    GPU_UNFIT: "needs attention",
    GPU_UNKNOWN: "does not answer",
    GPU_LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found last.

    Attributes:
        age_s: how long ago; None if nothing was found yet.
        looks_for_s: how long the examination under way has lasted; None if there is none.
    """

    findings: tuple[HealthFinding, ...] = ()
    age_s: float | None = None
    looks_for_s: float | None = None


class Doctor:
    """Examines the service when it is asked, one examination at a time for all who ask.

    Args:
        look: examines; may take long.
        clock: seconds that never jump.
        patience_s: how long who asks waits for an examination under way.
    """

    def __init__(
        self,
        look: Look,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._look = look
        self._clock = clock
        self._patience_s = patience_s
        self._began: float | None = None
        self._done = asyncio.Event()
        self._found: tuple[float, list[HealthFinding]] | None = None

    async def examine(self) -> Examined:
        """What was found, no older than a minute if that can be had in time."""
        is_old = self._found is None or self._clock() - self._found[0] > LIVES_S
        if self._began is None and is_old:
            self._begin()
        if self._began is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), self._patience_s)
        now = self._clock()
        at, findings = self._found or (None, ())
        return Examined(
            tuple(findings),
            None if at is None else now - at,
            None if self._began is None else now - self._began,
        )

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._began = self._clock()
        self._done.clear()

        def run() -> None:
            found = self._looked()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._take, found)

        Thread(target=run, name="miglab-doctor", daemon=True).start()

    def _take(self, found: list[HealthFinding]) -> None:
        self._found, self._began = (self._clock(), found), None
        self._done.set()

    def _looked(self) -> list[HealthFinding]:
        """The outer frame of the thread: an examination that fails is a finding."""
        try:
            return self._look()
        except Exception as error:
            log.exception("an examination failed")
            return [wrong("doctor", f"could not look: {error}", "see the pool's log")]


class ServiceHealth(WireModel):
    """How the pool is.

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
    """Whether the pool answers, its rounds succeed, and every GPU answers; open to all."""
    return health_of(runner, await runner.snapshot())


def health_of(runner: PoolRunner, snapshot: PoolSnapshot) -> ServiceHealth:
    """How the pool is, by a snapshot of it."""
    troubled = sum(gpu.state != "ok" for gpu in snapshot.gpus)
    has_other_engine = any(one.kind == "engine" for one in runner.findings)
    return ServiceHealth(
        ok=not (troubled or runner.is_stuck or runner.failing or runner.unknown_to_hub)
        and not (has_other_engine or runner.is_disk_full)
        and runner.is_reconciled,
        gpus=len(snapshot.gpus),
        gpus_troubled=troubled,
        is_stuck=runner.is_stuck,
        is_reconciled=runner.is_reconciled,
        unknown_to_hub=len(runner.unknown_to_hub),
        left_alone=sum(one.kind == "holder" and not one.action for one in runner.findings),
        is_other_engine=has_other_engine,
        silent_servers=runner.silent_servers,
        is_disk_full=runner.is_disk_full,
        disks_low=tuple(name for disk in runner.disks if disk.is_low for name in disk.holds),
        failing=runner.failing,
    )


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One GPU as the page shows it.

    Attributes:
        said: what it said last; None if nothing.
        age_s: how long ago.
    """

    gpu: GpuView
    said: Health | None = None
    age_s: float | None = None

    @property
    def is_bad(self) -> bool:
        """Whether somebody must look after it."""
        return self.gpu.state != "ok" or (self.said is not None and self.said.ok is False)

    @property
    def verdict(self) -> str:
        """How it is, in a word or two."""
        if self.gpu.state == "ok":
            return "needs attention" if self.is_bad else STATES["ok"]
        return STATES.get(self.gpu.state, self.gpu.state)

    @property
    def is_stale(self) -> bool:
        """Whether what it said is too old to be relied on."""
        return self.age_s is None or self.age_s > STALE_S


async def page(request: Request, principal: Principal) -> str:
    """The whole page."""
    runner: PoolRunner = request.app.state.runner
    doctor: Doctor = request.app.state.doctor
    examined = await doctor.examine()
    condition = await runner.decide(lambda pool: pool.condition())
    contradictions = await runner.decide(lambda pool: pool.check_invariants())
    snapshot = await runner.snapshot()
    findings = [
        *of_gpus(snapshot, condition),
        *pool_findings(snapshot, health_of(runner, snapshot).model_dump(), contradictions),
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
        cards=cards(snapshot, condition, time.time()),
        lines=[one for one in condition.history if one.reason != "listed"],
        names={gpu.uuid: f"GPU {gpu.index}" for gpu in snapshot.gpus},
        in_words=in_words,
        driver=BY,
        strangers=strangers(snapshot),
        open_findings=orphans(runner.findings),
        versions=condition.versions,
        simulated=snapshot.simulated,
        call_s=runner.gpu_call_s,
        now=time.time(),
        short=short,
        called=called,
        hot_c=HOT_C,
    )


def of_gpus(snapshot: PoolSnapshot, condition: Condition) -> list[HealthFinding]:
    """What doctor says of GPUs that take leases; of the others the pool says more.  Pure."""
    infos, said = condition.infos, condition.wellness
    return [
        finding
        for gpu in snapshot.gpus
        if gpu.state == GPU_OK and gpu.uuid in said and gpu.uuid in infos
        for finding in gpu_findings(
            infos[gpu.uuid],
            said[gpu.uuid].health,
            is_whole=infos[gpu.uuid].mig is False,  # the mode is as wanted, or it would be unfit
        )
    ]


def cards(snapshot: PoolSnapshot, condition: Condition, now: float) -> list[GpuCard]:
    """Each GPU with what it said last.  Pure."""
    said = condition.wellness
    return [
        GpuCard(gpu, said[gpu.uuid].health, max(0.0, now - said[gpu.uuid].at))
        if gpu.uuid in said
        else GpuCard(gpu)
        for gpu in snapshot.gpus
    ]


def in_words(one: AuditEntry) -> str:
    """What happened, where the ledger has no words for it: how the GPU was then.  Pure."""
    state = STATES.get(one.to_state, one.to_state)
    return state if one.reason in ("", one.to_state) else one.reason


def strangers(snapshot: PoolSnapshot) -> list[tuple[GpuView, SliceView]]:
    """Slices that the lab did not make, and those that are set aside.  Pure."""
    odd = (SliceState.FOREIGN, SliceState.QUARANTINED)
    return [(gpu, item) for gpu in snapshot.gpus for item in gpu.slices if item.state in odd]


def called(holder: str) -> str:
    """A container as Docker's own lists call it; anything else as it is.  Pure."""
    kind, _, name = holder.partition(":")
    return f"container {name[:12]}" if kind == "container" else holder


def orphans(findings: Iterable[Disagreement]) -> list[Disagreement]:
    """What reconcile found at its last round and left to somebody; slices are listed anyhow."""
    return [one for one in findings if not one.action and one.kind != "slice"]

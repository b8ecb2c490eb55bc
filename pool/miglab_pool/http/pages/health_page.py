"""The Health page: what is wrong and what to do, each GPU and its history, what is foreign."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request, Response

from miglab_api.gpus import GpuView, PoolSnapshot, SliceState, SliceView
from miglab_pool.gpu.nvml.health import APPLICATION_XIDS
from miglab_pool.gpu.readings import GpuInfo
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.examiner import Doctor
from miglab_pool.http.pages.elements.wording import short
from miglab_pool.http.pages.frame import render, shown
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.routes.health_routes import health_of
from miglab_pool.model.memory import Wellness
from miglab_pool.views.health_findings import HOT_C, HealthFinding, of_gpu, of_pool
from miglab_pool.worker.gpu_health import BY, Condition, Happening
from miglab_pool.worker.inspect_gpu import Finding as Disagreement

STALE_S = 120.0
STATES = {"ok": "answers", "unknown": "does not answer", "lost": "lost"}


@dataclass(frozen=True, slots=True)
class GpuCard:
    """One GPU as the page shows it.

    Attributes:
        info: what it is; None if it never answered.
        said: what it said last; None if nothing.
        age_s: how long ago.
        xids: its faults, oldest first, each with whether a program causes it by itself; None if it
            does not report them.
        is_hot: whether it slows down to protect itself, or soon will.
    """

    gpu: GpuView
    info: GpuInfo | None
    said: Wellness | None
    age_s: float | None
    xids: tuple[tuple[int, bool], ...] | None
    is_hot: bool

    @property
    def is_bad(self) -> bool:
        """Whether somebody must look after it."""
        return self.gpu.state != "ok" or (self.said is not None and self.said.health.ok is False)

    @property
    def verdict(self) -> str:
        """How it is, in a word or two."""
        if self.gpu.state == "ok":
            return "needs a look" if self.is_bad else STATES["ok"]
        return STATES.get(self.gpu.state, self.gpu.state)

    @property
    def is_stale(self) -> bool:
        """Whether what it said is too old to be relied on."""
        return self.age_s is None or self.age_s > STALE_S


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of the history: when, which GPU, who, what."""

    at: float
    gpu: str
    who: str
    what: str
    is_fault: bool


async def page(request: Request) -> Response:
    """The whole page."""
    return await shown(request, lambda principal: _draw(request, principal))


async def _draw(request: Request, principal: Principal) -> str:
    runner: PoolRunner = request.app.state.runner
    doctor: Doctor = request.app.state.doctor
    examined = await doctor.examine()
    condition = await runner.decide(lambda pool: pool.condition())
    contradictions = await runner.decide(lambda pool: pool.check_invariants())
    snapshot = await runner.snapshot()
    findings = [
        *of_gpus(snapshot, condition),
        *of_pool(snapshot, health_of(runner, snapshot).model_dump(), contradictions),
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
        lines=lines(snapshot, condition.history),
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
    """What doctor says of GPUs that answer; of the others the pool says more.  Pure."""
    return [
        finding
        for gpu in snapshot.gpus
        if gpu.state == "ok" and gpu.uuid in condition.said and gpu.uuid in condition.infos
        for finding in of_gpu(condition.infos[gpu.uuid], condition.said[gpu.uuid].health)
    ]


def cards(snapshot: PoolSnapshot, condition: Condition, now: float) -> list[GpuCard]:
    """Each GPU with what it said last.  Pure."""
    return [
        _card(gpu, condition.infos.get(gpu.uuid), condition.said.get(gpu.uuid), now)
        for gpu in snapshot.gpus
    ]


def _card(gpu: GpuView, info: GpuInfo | None, said: Wellness | None, now: float) -> GpuCard:
    if said is None:
        return GpuCard(gpu, info, None, None, None, is_hot=False)
    heat, xids = said.health.temperature_c, said.health.xids
    told = None if xids is None else tuple((xid, xid in APPLICATION_XIDS) for xid in xids)
    is_hot = heat is not None and heat > HOT_C
    return GpuCard(gpu, info, said, max(0.0, now - said.at), told, is_hot)


def lines(snapshot: PoolSnapshot, history: Iterable[Happening]) -> list[HistoryEntry]:
    """The history with GPUs as people call them.  Pure."""
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in snapshot.gpus}
    return [
        HistoryEntry(
            one.at,
            names.get(one.gpu, one.gpu),
            "" if one.by == BY else one.by.removeprefix("person:"),
            one.what if one.what not in ("", one.state) else STATES.get(one.state, one.state),
            one.by == BY,
        )
        for one in history
        if one.what != "listed"
    ]


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
    return [one for one in findings if not one.done and one.kind != "slice"]

"""One day under one policy: who ends servers, and how time passes."""

import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from miglab_api.leases import LeaseState
from miglab_bench.class_day.assumptions import HOUR_S, Day
from miglab_bench.class_day.figures import DayFigures, figures
from miglab_bench.class_day.lab import DayLab
from miglab_bench.class_day.plan import plans, reserved
from miglab_bench.class_day.student import DayServer, DayStudent
from miglab_pool.gpu.simulated.models import models
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import Rules
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.settings import Pool as PoolTable


class DayPolicy(StrEnum):
    """Who ends servers, and who is next."""

    MIGLAB = "miglab"
    BORROW = "borrow"
    CULLER = "culler"
    NONE = "none"

    def table(self, day: Day) -> PoolTable:
        """[pool] of lab.toml."""
        if self is DayPolicy.CULLER:
            return PoolTable(ageing_s=0.0)  # who has aged goes by arrival: first come, first served
        if self is DayPolicy.BORROW:
            return PoolTable(borrow_s=day.borrow_s, borrow_linger_s=day.linger_s)
        return PoolTable()


class Nobody:
    """Decides which servers end: here none, they run until their students stop them."""

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """What the servers say."""

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """Those that end now."""
        return []


class MiglabReclaimer(Nobody):
    """The lab's own reclaimer, as it is set without a word in lab.toml."""

    def __init__(self) -> None:
        self._at = 0.0
        self._board = SignalBoard(clock=lambda: self._at)
        self._reclaimer = Reclaimer(Rules(), self._board, clock=lambda: self._at)

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """Every server reports."""
        self._at = at
        for server in servers:
            self._board.take(server.lease, server.signals(at))

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """Read the slices, look at every lease, stop what was reclaimed."""
        self._at = at
        lab.driver.busy = {
            uuid for server in servers if server.ran_at is not None for uuid in server.uuids
        }
        lab.pool.sample()
        self._reclaimer.round(lab.pool)
        return [one for one in servers if lab.row(one.lease).state == LeaseState.RELEASING]


class Culler(Nobody):
    """jupyterhub-idle-culler: the time since ``last_activity``, and nothing else.

    JupyterHub's last activity of a server is the later of two: traffic through the proxy, which a
    connected page causes by itself (websocket pings), and what the server reports, of which the
    messages of its kernels are part: a kernel that runs and prints nothing sends none.
    """

    def __init__(self, day: Day) -> None:
        self._day = day
        self._next_at = day.cull_every_s

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """All that were quiet for too long, every so often."""
        if at < self._next_at:
            return []
        self._next_at = at + self._day.cull_every_s
        return [one for one in servers if at - one.told_at >= self._day.cull_timeout_s]


@dataclass(frozen=True)
class DayCase:
    """A day, who comes, and who ends servers."""

    day: Day
    students: int
    policy: DayPolicy
    seed: int

    @property
    def gpus(self) -> int:
        """How many there are; the same for every policy."""
        return max(1, math.ceil(self.students / self.day.students_per_gpu))


def run_all(cases: Sequence[DayCase], jobs: int) -> list[DayFigures]:
    """All of them, the longest first, so many at a time; in the order asked."""
    by_size = sorted(cases, key=lambda case: (-case.students, list(DayPolicy).index(case.policy)))
    with ProcessPoolExecutor(jobs) as pool:
        done = dict(zip(by_size, pool.map(run, by_size), strict=True))
    return [done[case] for case in cases]


def run(case: DayCase) -> DayFigures:
    """Live through the day and draw the figures.

    Moments at which nobody does anything are passed over.

    Raises:
        RuntimeError: the pool contradicts its own invariants.
    """
    day, policy = case.day, case.policy
    enders = {DayPolicy.CULLER: lambda: Culler(day), DayPolicy.NONE: Nobody}
    ender = enders.get(policy, MiglabReclaimer)()
    with tempfile.TemporaryDirectory(prefix="miglab-day-") as folder:
        lab = DayLab(Path(folder), case.gpus, day, policy.table(day))
        students = [
            DayStudent(plan, day, borrows=policy is DayPolicy.BORROW)
            for plan in plans(day, case.students, case.seed)
        ]
        if count := reserved(day, case.students):
            lab.reserve(day, count)
        at = look_at = HOUR_S * day.begins_h
        ends_at = HOUR_S * day.ends_h
        while at < ends_at:
            look_at += day.look_s if at >= look_at else 0.0
            at = min(look_at, ends_at, _next_step(at, students, day.step_s))
            if at >= look_at:
                _look(lab, students, ender, at, day)
            _step(lab, students, at, is_look=at >= look_at)
        for student in students:
            student.end_day(ends_at, lab)
        lab.close()
    geometry = models()[day.model].geometry
    sizes = [geometry.by_name[one.plan.profile].size for one in students]
    return figures(policy, students, sizes)


def _next_step(at: float, students: Sequence[DayStudent], step_s: float) -> float:
    """The first full step at which somebody has something to do."""
    due_at = min(student.due_at for student in students)
    return max(at + step_s, math.ceil(due_at / step_s) * step_s) if due_at < math.inf else math.inf


def _look(lab: DayLab, students: Sequence[DayStudent], ender: Nobody, at: float, day: Day) -> None:
    """Who ends servers looks; the reports are some seconds old by then."""
    heard_at = at - day.report_age_s
    for student in students:
        student.live_to(heard_at)
    with_server = {one.server.lease: one for one in students if one.server is not None}
    servers = [one.server for one in students if one.server is not None]
    ender.hear(heard_at, servers)
    for student in students:
        student.live_to(at)
    lab.at = at
    for server in ender.ends(at, lab, servers):
        is_needed = lab.row(server.lease).warn_kind == "needed"
        with_server[server.lease].cut_off(at, is_needed=is_needed)
        lab.stop(server.lease, "ended")


def _step(lab: DayLab, students: Sequence[DayStudent], at: float, *, is_look: bool) -> None:
    """Everybody who has something to do does it; then the pool grants what is free."""
    lab.at = at
    for student in students:
        if is_look or student.is_due(at, lab):
            student.live_to(at)
            student.act(at, lab)
    lab.work(is_look=is_look)
    for student in students:
        student.take_offer(at, lab)

"""`./lab bench class`: a day of a class under four policies, with the same students and GPUs.

Who ends servers, how time passes, what came of it, and whether that is what was asked of it.
"""

import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from miglab_api.leases import LeaseState
from miglab_bench.class_day.lab import DayLab
from miglab_bench.class_day.plan import HOUR_S, PRACTICAL, Day, day_with, plans, reserved
from miglab_bench.class_day.student import DayServer, DayStudent
from miglab_bench.harness.results import say, table_of
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import Rules
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.settings import Pool as PoolTable

SIZES = (30, 120, 400)
KEPT_S = 120.0  # a reserved slice is there by then
COUNTS = ("never_served", "ended", "interrupted", "ended_for_need", "busy_ended_for_need")
KEYS = ("students", "policy")
ROW = (*KEYS, "useful_slice_hours", "wait_p50_s", "wait_p95_s", "unjust_reclaims", "reserved_kept")


# -- what came of it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class DayFigures:
    """One policy's day.

    Attributes:
        useful_slice_hours: memory slices times hours in which something ran that was wanted.
        wait_p50_s: from needing a server to having one, or to giving up; half are shorter.  Under
            borrow, from each cell to its first sample.
        wait_p95_s: nineteen of twenty are shorter.
        unjust_reclaims: servers that somebody else ended while something ran on them, though
            nobody needed what they held.
        reserved_kept: of the slices that were reserved, those that their students had within two
            minutes of asking; 1 if none were.
        wanted_slice_hours: what would have been useful, had nobody waited.
        held_slice_hours: slices leased, used or not.
        redone_slice_hours: what ran again because variables were lost.
        needs: how often a server was needed.
        never_served: how often the student gave up.
        ended: servers that somebody else ended.
        interrupted: those whose students were not done.
        ended_for_need: those whose guarantee was over and whose slices somebody needed.
        busy_ended_for_need: those of them on which something ran.
    """

    students: int
    policy: str
    useful_slice_hours: float
    wait_p50_s: int
    wait_p95_s: int
    unjust_reclaims: int
    reserved_kept: float
    wanted_slice_hours: float
    held_slice_hours: float
    redone_slice_hours: float
    needs: int
    never_served: int
    ended: int
    interrupted: int
    ended_for_need: int
    busy_ended_for_need: int


def figures(policy: str, students: Sequence[DayStudent], sizes: Sequence[int]) -> DayFigures:
    """Return the figures of one day.

    Args:
        policy: who ended servers.
        students: after the day.
        sizes: the memory slices of each student's shape.
    """
    tallies = [student.tally for student in students]
    waits_s = sorted(wait for tally in tallies for wait in tally.waits_s)

    def slice_hours(seconds: Iterable[float]) -> float:
        return round(sum(s * size for s, size in zip(seconds, sizes, strict=True)) / HOUR_S, 1)

    return DayFigures(
        students=len(students),
        policy=policy,
        useful_slice_hours=slice_hours(tally.useful_s for tally in tallies),
        wait_p50_s=round(quantile(waits_s, 0.5)),
        wait_p95_s=round(quantile(waits_s, 0.95)),
        unjust_reclaims=sum(tally.unjust for tally in tallies),
        reserved_kept=_reserved_kept(students),
        wanted_slice_hours=slice_hours(student.plan.wanted_s for student in students),
        held_slice_hours=slice_hours(tally.held_s for tally in tallies),
        redone_slice_hours=slice_hours(tally.redone_s for tally in tallies),
        needs=len(waits_s),
        **{name: sum(getattr(tally, name) for tally in tallies) for name in COUNTS},
    )


def _reserved_kept(students: Sequence[DayStudent]) -> float:
    reserving = [student.tally for student in students if student.plan.course == PRACTICAL]
    firsts = [tally.waits_s[0] for tally in reserving if tally.waits_s]
    return round(sum(wait <= KEPT_S for wait in firsts) / len(firsts), 3) if firsts else 1.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value with at least that share at or below it; 0 if there is none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# -- one day under one policy ----------------------------------------------------------------------


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


class NoReclaim:
    """Decides which servers end: here none, they run until their students stop them."""

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """Take the signals of the servers."""

    def servers_to_end(
        self, at: float, lab: DayLab, servers: Sequence[DayServer]
    ) -> list[DayServer]:
        """Return the servers that end now."""
        return []


class MiglabReclaimer(NoReclaim):
    """The lab's own reclaimer with its default settings."""

    def __init__(self) -> None:
        self._at = 0.0
        self._board = SignalBoard(clock=lambda: self._at)
        self._reclaimer = Reclaimer(Rules(), self._board, clock=lambda: self._at)

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """Take the signals of every server."""
        self._at = at
        for server in servers:
            self._board.take(server.lease, server.signals(at))

    def servers_to_end(
        self, at: float, lab: DayLab, servers: Sequence[DayServer]
    ) -> list[DayServer]:
        """Read the slices, look at every lease, stop what was reclaimed."""
        self._at = at
        lab.driver.busy = {
            uuid for server in servers if server.ran_at is not None for uuid in server.uuids
        }
        lab.pool.sample()
        self._reclaimer.round(lab.pool)
        return [server for server in servers if lab.row(server.lease).state == LeaseState.RELEASING]


class Culler(NoReclaim):
    """jupyterhub-idle-culler: the time since ``last_activity``, and nothing else.

    JupyterHub's last activity of a server is the later of two: traffic through the proxy, which a
    connected page causes by itself (websocket pings), and what the server reports, of which the
    messages of its kernels are part: a kernel that runs and prints nothing sends none.
    """

    def __init__(self, day: Day) -> None:
        self._day = day
        self._next_at = day.cull_every_s

    def servers_to_end(
        self, at: float, lab: DayLab, servers: Sequence[DayServer]
    ) -> list[DayServer]:
        """Return, at each round, the servers that have been inactive for too long."""
        if at < self._next_at:
            return []
        self._next_at = at + self._day.cull_every_s
        return [
            server for server in servers if at - server.last_activity_at >= self._day.cull_timeout_s
        ]


@dataclass(frozen=True)
class DayCase:
    """A day, who comes, and who ends servers."""

    day: Day
    students: int
    policy: DayPolicy
    seed: int

    @property
    def gpus(self) -> int:
        """The number of GPUs, the same for every policy."""
        return max(1, math.ceil(self.students / self.day.students_per_gpu))


def run_all(cases: Sequence[DayCase], jobs: int) -> list[DayFigures]:
    """Run all cases, ``jobs`` at a time, the longest first; return them in the given order."""
    by_size = sorted(cases, key=lambda case: (-case.students, list(DayPolicy).index(case.policy)))
    with ProcessPoolExecutor(jobs) as pool:
        figures_by_case = dict(zip(by_size, pool.map(run, by_size), strict=True))
    return [figures_by_case[case] for case in cases]


def run(case: DayCase) -> DayFigures:
    """Simulate the day and return its figures.

    Moments at which nobody does anything are passed over.

    Raises:
        RuntimeError: the pool contradicts its own invariants.
    """
    day, policy = case.day, case.policy
    enders = {DayPolicy.CULLER: lambda: Culler(day), DayPolicy.NONE: NoReclaim}
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
    geometry = model_geometry(day.model)
    sizes = [geometry.by_name[student.plan.profile].size for student in students]
    return figures(policy, students, sizes)


def _next_step(at: float, students: Sequence[DayStudent], step_s: float) -> float:
    """Return the first full step at which somebody has something to do."""
    due_at = min(student.due_at for student in students)
    return max(at + step_s, math.ceil(due_at / step_s) * step_s) if due_at < math.inf else math.inf


def _look(
    lab: DayLab, students: Sequence[DayStudent], ender: NoReclaim, at: float, day: Day
) -> None:
    """Let the policy end servers, by reports that are some seconds old."""
    heard_at = at - day.report_age_s
    for student in students:
        student.live_to(heard_at)
    with_server = {
        student.server.lease: student for student in students if student.server is not None
    }
    servers = [student.server for student in students if student.server is not None]
    ender.hear(heard_at, servers)
    for student in students:
        student.live_to(at)
    lab.at = at
    for server in ender.servers_to_end(at, lab, servers):
        is_needed = lab.row(server.lease).warn_kind == "needed"
        with_server[server.lease].cut_off(at, is_needed=is_needed)
        lab.stop(server.lease, "ended")


def _step(lab: DayLab, students: Sequence[DayStudent], at: float, *, is_look: bool) -> None:
    """Let all students act who have something to do; then let the pool grant free slices."""
    lab.at = at
    for student in students:
        if is_look or student.is_due(at, lab):
            student.live_to(at)
            student.act(at, lab)
    lab.work(is_look=is_look)
    for student in students:
        student.take_offer(at, lab)


# -- days side by side -----------------------------------------------------------------------------


def bench_class(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    students: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many students; may be repeated. [30, 120, 400]"),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="The seed of a day's plan; may be repeated. [1]")
    ] = None,
    policy: Annotated[
        list[DayPolicy] | None, typer.Option(help="Only this one; may be repeated.")
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="One assumption, such as stop_share=0.5.")
    ] = None,
) -> None:
    """Class: a simulated day under miglab, with borrowed slices, a culler, and no reclaim."""
    day = _day(values or ())
    cases = [
        DayCase(day, size, day_policy, number)
        for number, size, day_policy in product(
            seed or (1,), students or SIZES, policy or DayPolicy
        )
    ]
    jobs = len(os.sched_getaffinity(0))
    started_at = time.perf_counter()
    day_rows = [asdict(figure) for figure in run_all(cases, jobs)]
    method = _method_text(cases, jobs, time.perf_counter() - started_at)
    rows = [{name: row[name] for name in ROW} for row in day_rows]
    cost_names = [*KEYS, *(name for name in day_rows[0] if name not in ROW)]
    costs = [
        {"seed": case.seed, **{name: row[name] for name in cost_names}}
        for case, row in zip(cases, day_rows, strict=True)
    ]
    report = {"rows": rows, "costs": costs, "assumptions": asdict(day), "how": method}
    say(report, table_of(rows, "the day"), table_of(costs, "what it took"), method, as_json=as_json)


def _day(values: Sequence[str]) -> Day:
    try:
        return day_with("\n".join(values))
    except ValidationError as error:
        messages = (
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise typer.BadParameter("; ".join(messages)) from error
    except ValueError as error:
        raise typer.BadParameter(f"{error}: write name=value, text in quotes") from error


def _method_text(cases: Sequence[DayCase], jobs: int, took_s: float) -> str:
    gpus = ", ".join(dict.fromkeys(f"{case.gpus} for {case.students}" for case in cases))
    day, seeds = cases[0].day, dict.fromkeys(str(case.seed) for case in cases)
    cpu_s = sum(os.times()[:4])  # ours and that of the processes that are over
    is_usual = "as documented" if day == Day() else "changed"
    return (
        f"how: a day each, seed {', '.join(seeds)}, assumptions {is_usual}, steps of "
        f"{day.step_s:.0f} s; the pool's own queue and ledger over simulated {day.model} "
        f"({gpus} students); "
        f"the reclaimer as set by default; Python {sys.version.split()[0]}; {jobs} processes, "
        f"{took_s:.0f} s, {cpu_s:.0f} s of CPU"
    )

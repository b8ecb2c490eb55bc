"""One day under one policy."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from miglab_bench.class_day.assumptions import HOUR_S, Day
from miglab_bench.class_day.figures import Cost, PolicyFigures, cost, row
from miglab_bench.class_day.lab import BRIEF, DayLab
from miglab_bench.class_day.plan import plans
from miglab_bench.class_day.rules import Culler, Ender, MiglabReclaimer, Nobody
from miglab_bench.class_day.student import DayStudent
from miglab_pool.gpu.simulated.models import models
from miglab_pool.settings import Pool as PoolTable
from miglab_pool.settings import Quota

POLICIES = ("miglab", "culler", "none")
ENDERS: Mapping[str, Callable[[Day], Ender]] = {
    "miglab": lambda _day: MiglabReclaimer(),
    "culler": Culler,
    "none": lambda _day: Nobody(),
}


def table_of(case: "DayCase") -> PoolTable:
    """[pool] of lab.toml under a policy."""
    if case.policy == "culler":
        return PoolTable(ageing_s=0.0)  # who has aged goes by arrival: first come, first served
    return PoolTable(lease_s=case.day.lease_s, extensions=0) if has_limits(case) else PoolTable()


def quotas_of(case: "DayCase") -> dict[str, Quota]:
    """[quotas] of lab.toml under a policy."""
    brief = Quota(course=BRIEF, lease_s=case.day.brief_lease_s)
    return {BRIEF: brief} if has_limits(case) and case.day.brief_share else {}


def has_limits(case: "DayCase") -> bool:
    """Whether leases have an end by themselves."""
    return case.policy == "miglab" and case.day.lease_s > 0


@dataclass(frozen=True)
class DayCase:
    """A day, who comes, and who ends servers."""

    day: Day
    students: int
    policy: str
    seed: int

    @property
    def gpus(self) -> int:
        """How many there are; the same for every policy."""
        return max(1, math.ceil(self.students / self.day.students_per_gpu))


@dataclass(frozen=True)
class DayOutcome:
    """What came of one day."""

    row: PolicyFigures
    cost: Cost


def run(case: DayCase) -> DayOutcome:
    """Live through the day and draw the figures.

    Raises:
        Broken: the pool contradicts its own invariants.
    """
    students = simulate(case)
    geometry = models()[case.day.model].geometry
    sizes = [geometry.by_name[one.plan.profile].size for one in students]
    return DayOutcome(row(case.policy, students, sizes), cost(case.policy, students, sizes))


def run_all(cases: Sequence[DayCase], jobs: int) -> list[DayOutcome]:
    """All of them, the longest first, so many at a time; in the order asked."""
    if jobs == 1:
        return [run(case) for case in cases]
    by_size = sorted(cases, key=lambda case: (case.policy != "miglab", -case.students))
    with ProcessPoolExecutor(jobs) as pool:
        done = dict(zip(by_size, pool.map(run, by_size), strict=True))
    return [done[case] for case in cases]


def simulate(case: DayCase) -> list[DayStudent]:
    """Live through the day; the students, with what came of it.

    Raises:
        Broken: the pool contradicts its own invariants.
    """
    day = case.day
    with tempfile.TemporaryDirectory(prefix="miglab-day-") as folder:
        lab = DayLab(Path(folder), case.gpus, day, table_of(case), quotas_of(case))
        students = [DayStudent(plan, day) for plan in plans(day, case.students, case.seed)]
        ender = ENDERS[case.policy](day)
        steps = round((day.ends_h - day.begins_h) * HOUR_S / day.step_s)
        for number in range(steps):
            _step(lab, students, ender, day.begins_h * HOUR_S + number * day.step_s, day)
        for student in students:
            student.end_day(day.ends_h * HOUR_S, lab)
        lab.close()
    return students


def _step(lab: DayLab, students: list[DayStudent], ender: Ender, before: float, day: Day) -> None:
    """From one moment to the next: reports are some seconds old when they are judged."""
    at = before + day.step_s
    heard_at = at - day.report_age_s
    for student in students:
        student.pass_time(before, heard_at)
    with_server = {one.server.lease: one for one in students if one.server is not None}
    servers = [one.server for one in students if one.server is not None]
    ender.hear(heard_at, servers)
    for student in students:
        student.pass_time(heard_at, at)
    lab.at = at
    for server in ender.ends(at, lab, servers):
        with_server[server.lease].cut_off(at)
        lab.stop(server.lease, "hub", "ended")
    for student in students:
        student.act(at, lab)
    lab.work()
    for student in students:
        student.take_offer(at, lab)

"""Runs faults, each with what comes before and after it, and counts what does not hold."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from statistics import quantiles

from miglab_bench.faults.checks import breaches, unsettled
from miglab_bench.faults.engine import OwnEngine
from miglab_bench.faults.kinds import KINDS
from miglab_bench.faults.lab import BOUND_S, FaultLab
from miglab_bench.faults.plan import Act, FaultPlan, order_of, plan_of
from miglab_bench.faults.servers import Containers, Processes, StudentServers
from miglab_bench.faults.students import FaultClass
from miglab_bench.harness.student import CheckFailed

STUDENTS = 8
LAST_SHAPE = "3g.20gb"


@dataclass
class KindResult:
    """What came of the faults of one kind.

    Attributes:
        breaches: what did not hold, in words, each with the fault's number.
        recoveries_s: how long the lab took to be well again after each.
    """

    faults: int = 0
    breaches: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)

    @property
    def recovery_p95_s(self) -> float:
        """The 95th percentile of the recoveries."""
        times = self.recoveries_s
        return quantiles(times, n=20)[-1] if len(times) > 1 else sum(times)


class FaultRun:
    """A lab, its class, and one fault after another.

    Args:
        seed: of everything that is drawn; the same seed draws the same.
        docker: servers are containers, else processes; None: as the machine allows.
        kinds: only these; empty: all that the machine allows.
        without_mends: see service.py.
        tell: is told of each fault: its number, its kind, how long the lab took, what was wrong.
    """

    def __init__(
        self,
        seed: int,
        *,
        docker: bool | None = None,
        kinds: tuple[str, ...] = (),
        without_mends: bool = False,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._seed = seed
        self._tell = tell
        docker = OwnEngine.is_possible() if docker is None else docker
        self.lab = FaultLab(docker=docker, without_mends=without_mends)
        settings, engine = self.lab.settings, self.lab.engine
        self.servers: StudentServers = (
            Containers(engine, settings) if engine is not None else Processes(settings)
        )
        self.lesson = FaultClass(self.lab, self.servers, STUDENTS)
        self._has_still = ""
        self._acting = ThreadPoolExecutor(STUDENTS)
        self.results = {kind: KindResult() for kind in kinds or self._possible()}

    def run(self, count: int) -> dict[str, KindResult]:
        """So many faults, evenly of all kinds; then one more student must be served."""
        for number, kind in enumerate(order_of(self._seed, tuple(self.results), count)):
            plan = plan_of(self._seed, number, kind, STUDENTS)
            found = self.one(plan)
            result = self.results[kind]
            result.faults += 1
            result.breaches += [
                f"seed {self._seed}, fault {number}, {kind}: {one}" for one in found
            ]
            took = (
                f"well again after {result.recoveries_s[-1]:.1f} s" if result.recoveries_s else ""
            )
            self._tell(f"fault {number}, {kind}: {'; '.join(found) or took}")
        self.results[kind].breaches += self._serve_one_more()
        return self.results

    def close(self) -> None:
        """End everything."""
        self._acting.shutdown()
        self.lesson.close()
        self.lab.close()

    def _possible(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, kind in KINDS.items()
            if (self.servers.has_labels or not kind.needs_engine)
            and (self.lab.has_own_disk or not kind.needs_disk)
        )

    def one(self, plan: FaultPlan) -> list[str]:
        """One fault; what does not hold after it."""
        kind, lesson, rng = KINDS[plan.kind], self.lesson, Random(plan.seed)  # noqa: S311
        lesson.without_words.clear()
        acting = self._let(plan.before)
        time.sleep(plan.at_s)  # the point at which it strikes
        kind.begin(self.lab, rng)
        ends_at = time.monotonic() + plan.lasts_s
        acting += self._let(plan.during)
        if plan.steering:
            lesson.steer(plan.steering, plan.seed)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        kind.end(self.lab, rng)
        ended_at = time.monotonic()
        for act in acting:
            act.result()
        found = self._wait_until_well(plan.kind, ended_at)
        lesson.look()
        found += breaches(lesson, is_ledger_older=kind.is_ledger_older)
        lesson.tidy()
        return found

    def _let(self, acts: Sequence[Act]) -> list[Future[None]]:
        return [self._acting.submit(self.lesson.students[act.student].act, act) for act in acts]

    def _wait_until_well(self, name: str, ended_at: float) -> list[str]:
        try:
            self.lab.wait(self._is_well, BOUND_S, "the lab to be well again")
        except CheckFailed as error:
            return [f"{error}; it has still {self._has_still}"]
        self.results[name].recoveries_s.append(time.monotonic() - ended_at)
        return []

    def _is_well(self) -> bool:
        self.lab.keep_running()
        self._has_still = unsettled(self.lesson)
        return not self._has_still

    def _serve_one_more(self) -> list[str]:
        """Nothing is lost for good: when all have left, the largest shape is to be had."""
        for holder in self.servers.all():
            self.servers.end(holder)
        for student in self.lesson.students:
            student.lose()
        try:
            self.lesson.come(self.lesson.students[0], LAST_SHAPE, BOUND_S)
        except CheckFailed as error:
            return [f"seed {self._seed}, after all faults: {error}"]
        return []

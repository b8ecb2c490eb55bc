"""`./lab bench faults`: the lab under seeded faults, and whether its invariants hold after each.

Proxy, hub and pool over two simulated A100s, with containers of an engine of the harness's own as
students' servers.  How long each kind takes to be well again is measured from the end of the fault
until health is good, every server that ended is released, and every other answers through the
proxy.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Annotated

import typer

from miglab_bench.faults.checks import breaches, unsettled
from miglab_bench.faults.engine import IMAGE, OwnEngine, StudentServers
from miglab_bench.faults.kinds import KINDS, FaultKind
from miglab_bench.faults.lab import BOUND_S, FaultLab
from miglab_bench.faults.plan import Act, FaultPlan, plan_of
from miglab_bench.faults.series import FaultSeries, KindResult, run_and_say
from miglab_bench.faults.students import FaultClass
from miglab_bench.harness.student import CheckFailed
from miglab_bench.measures.ratio import p95
from miglab_hub.errors import StartError

STUDENTS = 8
LAST_SHAPE = "3g.20gb"


class FaultRun(FaultSeries):
    """Over real containers.

    Args:
        seed: as of `FaultSeries`.
        kinds: only these; empty: all that the machine allows.
        tell: as of `FaultSeries`.
    """

    def __init__(
        self,
        seed: int,
        *,
        kinds: tuple[str, ...] = (),
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.lab = FaultLab()
        has_clock = self.lab.clock.is_there
        possible = [name for name, kind in KINDS.items() if has_clock or not kind.needs_clock]
        super().__init__(seed, kinds or possible, tell)
        self.servers = StudentServers(self.lab.engine, self.lab.settings)
        self.lesson = FaultClass(self.lab, self.servers, STUDENTS)
        self._has_still = ""
        self._acting = ThreadPoolExecutor(STUDENTS)

    def run(self, count: int) -> dict[str, KindResult]:
        """The faults; then one more student must be served."""
        super().run(count)
        if not self.is_lost:
            next(reversed(self.results.values())).breaches += self._serve_one_more()
        if any(result.breaches for result in self.results.values()):
            self.tell(f"the logs are kept in {self.lab.keep_logs()}; they end:")
            self.tell(self.lab.log_ends())
        return self.results

    def close(self) -> None:
        """End everything."""
        self._acting.shutdown()
        self.lesson.close()
        self.lab.close()

    def strike(self, number: int, kind: str) -> list[str]:
        """One fault; what does not hold after it."""
        lesson = self.lesson
        lesson.without_words.clear()
        try:
            took_s = self._strike(plan_of(self.seed, number, kind, STUDENTS), KINDS[kind])
            self.results[kind].recoveries_s.append(took_s)
            lesson.look()
            found = breaches(lesson, is_ledger_older=KINDS[kind].is_ledger_older)
            lesson.tidy()
        except CheckFailed as error:
            self.is_lost = True
            return [f"{error}; the lab has still {self._has_still or 'nothing to do'}"]
        return found

    def _strike(self, plan: FaultPlan, kind: FaultKind) -> float:
        """Begin and end the fault while students and staff go on; wait until the lab is well.

        Returns:
            How long that took from the fault's end, s.

        Raises:
            CheckFailed: that takes too long.
        """
        rng = Random(plan.seed)  # noqa: S311 -- no secret
        acting = self._let(plan.before)
        time.sleep(plan.at_s)  # the point at which it strikes
        kind.begin(self.lab, rng)
        ends_at = time.monotonic() + plan.lasts_s
        acting += self._let(plan.during)
        if plan.steering:
            self.lesson.steer(plan.steering, plan.seed)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        kind.end(self.lab, rng)
        self.lab.keep_running()
        ended_at = time.monotonic()
        for act in acting:
            act.result()
        self.lab.wait(self._is_well, BOUND_S, "the lab to be well again")
        return time.monotonic() - ended_at

    def _let(self, acts: Sequence[Act]) -> list[Future[None]]:
        return [self._acting.submit(self.lesson.students[act.student].act, act) for act in acts]

    def _is_well(self) -> bool:
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
            return [f"seed {self.seed}, after all faults: {error}"]
        return []


def bench_faults(
    count: Annotated[int, typer.Option(min=1, help="How many faults.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the faults; the same one replays them.")] = 1,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only faults of this kind; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """The lab under seeded faults: kills, clocks, disk, NVML, engine, lost and restored data."""
    if unknown := set(kind or ()) - set(KINDS):
        raise typer.BadParameter(f"no kind {min(unknown)!r}; there are: {', '.join(KINDS)}")
    if not OwnEngine.is_possible():
        raise StartError(f"needs root, and a Docker engine that has {IMAGE}: images/build base")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the lab as well
    run = FaultRun(seed, kinds=tuple(kind or ()), tell=lambda line: typer.echo(line, err=True))
    run_and_say(run, count, as_json=as_json, recovery_p95_s=p95)

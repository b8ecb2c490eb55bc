"""`./lab bench faults`: the lab under seeded faults, and whether its invariants hold after each.

Proxy, hub and pool over two simulated A100s, with containers of an engine of the harness's own as
students' servers.  How long each kind takes to be well again is measured from the end of the fault
until health is good, every server that ended is released, and every other answers through the
proxy.
"""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console

from miglab_bench.faults.checks import breaches, unsettled
from miglab_bench.faults.engine import IMAGE, OwnEngine, StudentServers
from miglab_bench.faults.kinds import KINDS, FaultKind
from miglab_bench.faults.lab import BOUND_S, FaultLab
from miglab_bench.faults.plan import Act, FaultPlan, order_of, plan_of
from miglab_bench.faults.students import FaultClass
from miglab_bench.harness.student import CheckFailed
from miglab_bench.harness.tables import table_of
from miglab_bench.measures.ratio import p95
from miglab_hub.errors import StartError

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


class FaultRun:
    """A lab, its class, and one fault after another.

    Args:
        seed: of everything that is drawn; the same seed draws the same.
        kinds: only these; empty: all that the machine allows.
        tell: is told of each fault: its number, its kind, how long the lab took, what was wrong.
    """

    def __init__(
        self,
        seed: int,
        *,
        kinds: tuple[str, ...] = (),
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._seed = seed
        self._tell = tell
        self.lab = FaultLab()
        self.servers = StudentServers(self.lab.engine, self.lab.settings)
        self.lesson = FaultClass(self.lab, self.servers, STUDENTS)
        self._has_still = ""
        self._is_lost = False
        self._acting = ThreadPoolExecutor(STUDENTS)
        has_clock = self.lab.clock.is_there
        possible = (name for name, kind in KINDS.items() if has_clock or not kind.needs_clock)
        self.results = {name: KindResult() for name in kinds or possible}

    def run(self, count: int) -> dict[str, KindResult]:
        """So many faults, evenly of all kinds; then one more student must be served.

        A lab that does not become well again ends the run: what comes after would say nothing.
        """
        for number, kind in enumerate(order_of(self._seed, tuple(self.results), count)):
            result, found = (
                self.results[kind],
                self.one(plan_of(self._seed, number, kind, STUDENTS)),
            )
            result.faults += 1
            result.breaches += [
                f"seed {self._seed}, fault {number}, {kind}: {one}" for one in found
            ]
            told = "; ".join(found) or f"well again after {result.recoveries_s[-1]:.1f} s"
            self._tell(f"fault {number}, {kind}: {told}")
            if self._is_lost:
                break
        else:
            result.breaches += self._serve_one_more()
        if any(result.breaches for result in self.results.values()):
            self._tell(f"the logs are kept in {self.lab.keep_logs()}; they end:")
            self._tell(self.lab.log_ends())
        return self.results

    def close(self) -> None:
        """End everything."""
        self._acting.shutdown()
        self.lesson.close()
        self.lab.close()

    def one(self, plan: FaultPlan) -> list[str]:
        """One fault; what does not hold after it."""
        kind, lesson = KINDS[plan.kind], self.lesson
        lesson.without_words.clear()
        try:
            self._strike(plan, kind)
            lesson.look()
            found = breaches(lesson, is_ledger_older=kind.is_ledger_older)
            lesson.tidy()
        except CheckFailed as error:
            self._is_lost = True
            return [f"{error}; the lab has still {self._has_still or 'nothing to do'}"]
        return found

    def _strike(self, plan: FaultPlan, kind: FaultKind) -> None:
        """Begin and end the fault while students and staff go on; wait until the lab is well.

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
        self.results[plan.kind].recoveries_s.append(time.monotonic() - ended_at)

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
            return [f"seed {self._seed}, after all faults: {error}"]
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
    try:
        results = run.run(count)
    finally:
        run.close()
    said = summary(results)
    if as_json:
        print(json.dumps(said, indent=1))
    else:
        Console().print(table_of(said["rows"]), *said["said"], sep="\n")
    if said["breaches"]:
        raise typer.Exit(1)


def summary(results: dict[str, KindResult]) -> dict[str, Any]:
    """The results as JSON has them."""
    rows = [
        {
            "kind": kind,
            "faults": result.faults,
            "breaches": len(result.breaches),
            "recovery_p95_s": round(p95(result.recoveries_s), 2),
        }
        for kind, result in results.items()
    ]
    said = [one for result in results.values() for one in result.breaches]
    faults = sum(result.faults for result in results.values())
    return {"faults": faults, "breaches": len(said), "rows": rows, "said": said}

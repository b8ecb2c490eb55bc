"""Seeded faults, one after the other: what is drawn, what is done around each, and what is said.

Everything is drawn by the seed alone: whatever happens meanwhile, the draws are the same.  What an
act comes to depends on how its student stands then.  Pure, but for what is told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import typer

from miglab_bench.harness.results import say, table_of

SHAPES = ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")
BEFORE, DURING = 4, 3
AT_S = 0.6
LASTS_S = {"NVML hang": 3.0, "stop and resume": 1.5, "engine restart": 1.0}
OTHERS_LAST_S = 0.3
STEERING = ("drain", "pause", "reserve", "reclaim", "extend")
STEERS = 0.4


@dataclass(frozen=True)
class Act:
    """One action of a student.

    Attributes:
        student: which.
        number: between 0 and 1: which of the things that make sense then.
        shape: to ask for, if it is that.
    """

    student: int
    number: float
    shape: str


@dataclass(frozen=True)
class FaultPlan:
    """A fault, and what is done around it.

    Attributes:
        before: acts that are under way when it begins.
        at_s: how long they are.
        lasts_s: how long the fault lasts.
        during: acts that begin after it.
        steering: what staff do meanwhile; empty for nothing.
        seed: of what the fault itself draws.
    """

    before: tuple[Act, ...]
    at_s: float
    lasts_s: float
    during: tuple[Act, ...]
    steering: str
    seed: float


def plan_of(seed: int, number: int, kind: str, students: int) -> FaultPlan:
    """Return the plan of one fault in the run of that seed."""
    rng = Random(f"{seed}:{number}")  # noqa: S311 -- no secret
    participants = rng.sample(range(students), BEFORE + DURING)
    acts = tuple(Act(student, rng.random(), rng.choice(SHAPES)) for student in participants)
    return FaultPlan(
        before=acts[:BEFORE],
        at_s=rng.uniform(0, AT_S),
        lasts_s=rng.uniform(0, LASTS_S.get(kind, OTHERS_LAST_S)),
        during=acts[BEFORE:],
        steering=rng.choice(STEERING) if rng.random() < STEERS else "",
        seed=rng.random(),
    )


@dataclass
class KindResult:
    """The results of the faults of one kind.

    Attributes:
        breaches: what did not hold, in words, each with the fault's number.
        recoveries_s: how long it took until all was well again, after each.
    """

    faults: int = 0
    breaches: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)


class FaultSeries:
    """A lab and its class under one fault after another.

    Args:
        seed: of everything that is drawn; the same seed draws the same.
        kinds: of the faults.
        tell: is told of each fault: its number, its kind, how long the lab took, what was wrong.

    Attributes:
        is_lost: the lab does not become well again: what comes after would say nothing.
    """

    def __init__(
        self, seed: int, kinds: Sequence[str], tell: Callable[[str], None] = lambda _line: None
    ) -> None:
        self.seed, self.tell, self.is_lost = seed, tell, False
        self.results = {name: KindResult() for name in kinds}

    def strike(self, number: int, kind: str) -> list[str]:
        """Cause one fault and time the recovery; return what does not hold after it, in words."""
        raise NotImplementedError

    def close(self) -> None:
        """End everything."""
        raise NotImplementedError

    def run(self, count: int) -> dict[str, KindResult]:
        """Cause ``count`` faults, evenly of all kinds; return the result of each kind."""
        for number, kind in enumerate(order_of(self.seed, tuple(self.results), count)):
            result, problems = self.results[kind], self.strike(number, kind)
            result.faults += 1
            result.breaches += [
                f"seed {self.seed}, fault {number}, {kind}: {problem}" for problem in problems
            ]
            outcome = "; ".join(problems) or f"well again after {result.recoveries_s[-1]:.1f} s"
            self.tell(f"fault {number}, {kind}: {outcome}")
            if self.is_lost:
                break
        return self.results


def order_of(seed: int, kinds: Sequence[str], count: int) -> list[str]:
    """Return ``count`` kinds in seeded order: each occurs once before any comes again."""
    order: list[str] = []
    shuffle = Random(seed)  # noqa: S311 -- no secret
    while len(order) < count:
        order += shuffle.sample(kinds, len(kinds))
    return order[:count]


def run_and_say(
    series: FaultSeries, count: int, *, as_json: bool, **figures: Callable[[list[float]], float]
) -> None:
    """Run so many faults, end the lab, and print what came of it; exit status 1 after a breach.

    Args:
        series: not yet run.
        count: of faults.
        as_json: not a table.
        figures: by name, what is said of a kind's recoveries.
    """
    try:
        report = summary(series.run(count), **figures)
    finally:
        series.close()
    say(report, table_of(report["rows"]), *report["said"], as_json=as_json)
    if report["breaches"]:
        raise typer.Exit(1)


def summary(
    results: Mapping[str, KindResult], **figures: Callable[[list[float]], float]
) -> dict[str, Any]:
    """Return the results as the JSON report has them."""
    rows = [
        {
            "kind": kind,
            "faults": result.faults,
            "breaches": len(result.breaches),
            **{name: round(figure(result.recoveries_s), 2) for name, figure in figures.items()},
        }
        for kind, result in results.items()
    ]
    problems = [problem for result in results.values() for problem in result.breaches]
    faults = sum(result.faults for result in results.values())
    return {"faults": faults, "breaches": len(problems), "rows": rows, "said": problems}

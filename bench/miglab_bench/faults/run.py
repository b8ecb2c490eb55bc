"""Runs faults, each with what comes before and after it, and counts what does not hold."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from miglab_bench.faults.checks import breaches, is_settled
from miglab_bench.faults.kinds import KINDS
from miglab_bench.faults.lab import FaultLab
from miglab_bench.faults.servers import Containers, Processes, StudentServers
from miglab_bench.faults.students import FaultClass
from miglab_bench.harness.student import CheckFailed
from miglab_bench.measures.ratio import p95

STUDENTS = 8
BEFORE, DURING, AFTER = 6, 6, 12
LASTS_S = (0.0, 3.0)
BOUND_S = 240.0  # as lab.START_S; what it took is measured


@dataclass
class KindResult:
    """What came of the faults of one kind.

    Attributes:
        breaches: what did not hold, in words, each with the fault's number.
        recoveries_s: how long the pool took to be well again after each.
    """

    faults: int = 0
    breaches: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)

    @property
    def recovery_p95_s(self) -> float:
        """The 95th percentile of the recoveries."""
        return p95(self.recoveries_s)


def order_of(seed: int, kinds: tuple[str, ...], count: int) -> list[str]:
    """So many kinds: each once before any comes again, in an order that the seed draws.  Pure."""
    order: list[str] = []
    shuffle = Random(seed)  # noqa: S311 -- no secret
    while len(order) < count:
        order += shuffle.sample(kinds, len(kinds))
    return order[:count]


class FaultRun:
    """A lab, its class, and one fault after another.

    Args:
        seed: of everything that is drawn; the same seed draws the same.
        docker: servers are containers, else processes; None: as the machine allows.
        kinds: only these; empty: all that the machine allows.
        without_mends: see service.py.
        tell: is told of each fault: its number, its kind, how long the pool took, what was wrong.
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
        self._say = tell
        docker = Containers.are_possible() if docker is None else docker
        self.lab = FaultLab(docker=docker, without_mends=without_mends)
        self.servers: StudentServers = (
            Containers(self.lab.settings.lab_id) if docker else Processes()
        )
        self.lesson = FaultClass(self.lab, self.servers, STUDENTS)
        self.results = {kind: KindResult() for kind in kinds or self._possible()}

    def run(self, count: int) -> dict[str, KindResult]:
        """So many faults, evenly of all kinds, in an order that the seed draws."""
        for number, kind in enumerate(order_of(self._seed, tuple(self.results), count)):
            rng = Random(f"{self._seed}:{number}")  # noqa: S311 -- no secret
            found = self._one(rng, kind)
            self._tell(number, kind, found)
            self.results[kind].faults += 1
            self.results[kind].breaches += [f"fault {number}, {kind}: {one}" for one in found]
        return self.results

    def close(self) -> None:
        """End everything."""
        self.servers.close()
        self.lab.close()

    def _tell(self, number: int, kind: str, found: list[str]) -> None:
        took = self.results[kind].recoveries_s
        words = "; ".join(found) or (f"well again after {took[-1]:.1f} s" if took else "")
        self._say(f"fault {number}, {kind}: {words}")

    def _possible(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, kind in KINDS.items()
            if (self.servers.has_labels or not kind.needs_labels)
            and (self.lab.has_own_disk or not kind.needs_disk)
        )

    def _one(self, rng: Random, name: str) -> list[str]:
        kind, lesson = KINDS[name], self.lesson
        lesson.words.clear()
        lesson.step(rng, BEFORE)
        kind.begin(self.lab, rng)
        until = time.monotonic() + rng.uniform(*LASTS_S)
        does_steer = rng.random() < 0.3
        for _ in range(DURING):
            lesson.step(rng, 1)
            if time.monotonic() > until:
                break
        lesson.step(rng, kind.acts)
        if does_steer:
            lesson.steer(rng)
        time.sleep(max(0.0, until - time.monotonic()))
        kind.end(self.lab, rng)
        found = self._wait_until_well(name)
        lesson.step(rng, AFTER)
        try:
            found += breaches(lesson, is_restored=kind.needs_labels)
            lesson.tidy()
        except CheckFailed as error:
            found.append(str(error))
        return found

    def _wait_until_well(self, name: str) -> list[str]:
        try:
            took_s = self.lab.wait(self._is_well, BOUND_S, "the pool to be well again")
        except CheckFailed as error:
            return [f"{error}: {self.lab.get('/health')}"]
        self.results[name].recoveries_s.append(took_s)
        return []

    def _is_well(self) -> bool:
        self.lab.keep_running()
        return is_settled(self.lesson)

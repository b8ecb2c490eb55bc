"""Relations between measured series, and what their samples say about them.

A check never asks for an absolute figure. It asks for a ratio in a band, several of them, or an
exact value; the answer is supported, contradicted or undecided. Pure functions over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from labkit import stats
from labkit.records import Verdict

Data = Mapping[str, Sequence[float]]
MARGIN = 0.05  # above what processes differ by for no reason: up to 3 % here, on CPU and GPU


@dataclass(frozen=True)
class Outcome:
    """A verdict and its reason in words."""

    verdict: Verdict
    why: str


class Relation(Protocol):
    """Something that measured series can support or contradict."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the series it reads."""
        ...

    def judge(self, data: Data) -> Outcome:
        """Say what the series show."""
        ...


@dataclass(frozen=True)
class RatioIn:
    """The ratio of two series, measured round by round in turns, lies in a band."""

    a: str
    b: str
    band: tuple[float, float]
    margin: float = 0.0

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.a, self.b)

    def judge(self, data: Data) -> Outcome:
        """Take at most three looks, as `stats.judge` does."""
        looks = stats.judge(data[self.a], data[self.b], self.band, margin=self.margin)
        verdict = looks[-1].verdict if looks else Verdict.UNDECIDED
        words = stats.why(looks, self.band, self.margin)
        return Outcome(verdict, f"{self.a} over {self.b}: {words}")


@dataclass(frozen=True)
class Exactly:
    """Every value of a series passes an exact test (counts, bytes, relative errors)."""

    name: str
    says: str
    holds: Callable[[float], bool]

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.name,)

    def judge(self, data: Data) -> Outcome:
        """Supported if all values pass, contradicted by the first that does not."""
        values = data[self.name]
        if not values:
            return Outcome(Verdict.UNDECIDED, f"{self.name} was not measured")
        wrong = [value for value in values if not self.holds(value)]
        if wrong:
            return Outcome(Verdict.CONTRADICTED, f"{self.name} is {wrong[0]:g}, not {self.says}")
        if len(values) == 1:
            return Outcome(Verdict.SUPPORTED, f"{self.name}: {values[0]:g}")
        said = f"{self.name}: each of the {len(values)} values is {self.says}"
        return Outcome(Verdict.SUPPORTED, said)


@dataclass(frozen=True)
class AllOf:
    """Several relations at once: all supported, or the first that is contradicted."""

    parts: tuple[Relation, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.needs))

    def judge(self, data: Data) -> Outcome:
        """The worst part decides: contradicted before undecided before supported."""
        outcomes = [part.judge(data) for part in self.parts]
        for verdict in (Verdict.CONTRADICTED, Verdict.UNDECIDED):
            worst = [outcome for outcome in outcomes if outcome.verdict is verdict]
            if worst:
                return worst[0]
        return Outcome(Verdict.SUPPORTED, "; ".join(outcome.why for outcome in outcomes))


@dataclass(frozen=True)
class ForBoth:
    """A claim that something exists: supported by what was picked, refuted only by the luckiest.

    An unlucky pick then leaves open whether another would have done.
    """

    picked: Relation
    favoured: Relation

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.picked.needs, *self.favoured.needs)))

    def judge(self, data: Data) -> Outcome:
        """What the pick says; its contradiction counts if the favoured one's does, too."""
        said = self.picked.judge(data)
        if said.verdict is not Verdict.CONTRADICTED:
            return said
        other = self.favoured.judge(data)
        if other.verdict is Verdict.CONTRADICTED:
            return said
        return Outcome(Verdict.UNDECIDED, f"{said.why}, which does not decide it: {other.why}")


def greater(a: str, b: str, factor: float = 1.0) -> RatioIn:
    """The series a is more than `factor` times b; a factor of 1 is asked for with a margin."""
    return RatioIn(a, b, (factor, float("inf")), _margin(factor))


def less(a: str, b: str, factor: float = 1.0) -> RatioIn:
    """The series a is less than `factor` times b; a factor of 1 is asked for with a margin."""
    return RatioIn(a, b, (0.0, factor), _margin(factor))


def _margin(factor: float) -> float:
    """At a factor of 1 the claim's border lies where the truth often is: equal."""
    return MARGIN if factor == 1.0 else 0.0


def dips(first: str, best: str, lowest: str, last: str) -> ForBoth:
    """A U: something in the middle is lower than either end.

    Args:
        first: one end.
        best: what was picked in the middle before the rounds that are judged.
        lowest: the middle's lowest in these rounds, which chance favours.
        last: the other end.
    """
    picked, favoured = (AllOf((less(one, first), less(one, last))) for one in (best, lowest))
    return ForBoth(picked, favoured)

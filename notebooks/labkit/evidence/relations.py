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
    """A verdict, its reason in words, and the number that decided it."""

    verdict: Verdict
    why: str
    number: float | None = None


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
        number = looks[-1].ratio if looks else None
        return Outcome(verdict, f"{self.a} over {self.b}: {words}", number)


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
            why = f"{self.name} is {wrong[0]:g}, not {self.says}"
            return Outcome(Verdict.CONTRADICTED, why, wrong[0])
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
class NearIdeal:
    """A time is at most so many times the ideal's; far under it, the ideal is none.

    Attributes:
        found: the series that was measured.
        ideal: the series that nothing should be faster than.
        most: how many times the ideal's time is still near it.
    """

    found: str
    ideal: str
    most: float

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.found, self.ideal)

    def judge(self, data: Data) -> Outcome:
        """As `RatioIn`, but what is faster than the ideal decides nothing."""
        said = RatioIn(self.found, self.ideal, (1 - MARGIN, self.most)).judge(data)
        times = _both(data, self.found, self.ideal)
        if len(times) and float(stats.ratio(*times)) < 1 - MARGIN:
            return Outcome(Verdict.UNDECIDED, f"{said.why}; what is beaten is no ideal")
        return said


@dataclass(frozen=True)
class HiddenShare:
    """Of what `slow` takes longer than `base`, a share that `fast` saves is at least `least`.

    Attributes:
        slow: seconds with all of the cost.
        fast: seconds with some of it hidden.
        base: seconds without the cost.
        least: the share that is claimed.
        worth: the cost's least share of `slow`; below it there is nothing to hide.
    """

    slow: str
    fast: str
    base: str
    least: float
    worth: float = 0.2

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.slow, self.fast, self.base)

    def judge(self, data: Data) -> Outcome:
        """By the interval of the share over rounds that are redrawn in pairs."""
        slow, fast, base = (data[name] for name in self.needs)
        if len(slow) < stats.LOOKS[0]:
            return Outcome(Verdict.UNDECIDED, f"fewer than {stats.LOOKS[0]} rounds were measured")
        cost = 1 - stats.median(base) / stats.median(slow)
        if cost < self.worth:
            why = f"sending is only {cost:.0%} of the {self.slow} step, too little to judge by"
            return Outcome(Verdict.UNDECIDED, why)
        share, low, high = stats.saved_share(slow, fast, base)
        verdict = stats.verdict(low, high, (self.least, float("inf")))
        end = ", which does not decide the claim" if verdict is Verdict.UNDECIDED else ""
        why = f"{self.fast} hides {share:.0%} of the {cost:.0%} ({low:.0%} to {high:.0%}){end}"
        return Outcome(verdict, why, share)


def _both(data: Data, a: str, b: str) -> tuple[Sequence[float], Sequence[float]] | tuple[()]:
    return (data[a], data[b]) if data[a] and data[b] else ()


def greater(a: str, b: str, factor: float = 1.0) -> RatioIn:
    """The series a is more than `factor` times b; a factor of 1 is asked for with a margin."""
    return RatioIn(a, b, (factor, float("inf")), _margin(factor))


def less(a: str, b: str, factor: float = 1.0) -> RatioIn:
    """The series a is less than `factor` times b; a factor of 1 is asked for with a margin."""
    return RatioIn(a, b, (0.0, factor), _margin(factor))


def _margin(factor: float) -> float:
    """At a factor of 1 the claim's border lies where the truth often is: equal."""
    return MARGIN if factor == 1.0 else 0.0

"""Relations between measured series, and what their samples say about them.

A check never asks for an absolute figure. It asks for a ratio in a band, several of them, or for
values in a band; the answer is supported, contradicted or undecided. Pure functions over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from labkit import stats
from labkit.records import Verdict

Data = Mapping[str, Sequence[float]]
MARGIN = 0.05  # above what processes differ by for no reason: up to 3 % here, on CPU and GPU
WORTH = 0.2  # of a step: what costs less is too little to be hidden


@dataclass(frozen=True)
class Outcome:
    """A verdict, its reason in words, and the number that decided it."""

    verdict: Verdict
    reason: str
    number: float | None = None


@dataclass(frozen=True)
class Relation:
    """Something that measured series can support or contradict: which it needs, what they show."""

    needs: tuple[str, ...]
    judge: Callable[[Data], Outcome]


def ratio_in(a: str, b: str, band: tuple[float, float], margin: float = 0.0) -> Relation:
    """The ratio of two series, measured round by round in turns, lies in a band."""

    def judge(data: Data) -> Outcome:
        looks = stats.judge(data[a], data[b], band, margin=margin)
        reason = f"{a} over {b}: {stats.explain(looks, band, margin)}"
        if not looks:
            return Outcome(Verdict.UNDECIDED, reason)
        return Outcome(looks[-1].verdict, reason, looks[-1].ratio)

    return Relation((a, b), judge)


def greater(a: str, b: str, factor: float = 1.0) -> Relation:
    """The series a is more than `factor` times b; a factor of 1 is asked for with a margin."""
    return ratio_in(a, b, (factor, float("inf")), _margin(factor))


def less(a: str, b: str, factor: float = 1.0) -> Relation:
    """The series a is less than `factor` times b; a factor of 1 is asked for with a margin."""
    return ratio_in(a, b, (0.0, factor), _margin(factor))


def _margin(factor: float) -> float:
    """At a factor of 1 the claim's border lies where the truth often is: equal."""
    return MARGIN if factor == 1.0 else 0.0


def values_in(name: str, low: float = 0.0, high: float = float("inf")) -> Relation:
    """Every value of a series is at least `low` and below `high`: counts, which have no noise."""

    def judge(data: Data) -> Outcome:
        values = data[name]
        if not values:
            return Outcome(Verdict.UNDECIDED, f"{name} was not measured")
        for value in values:
            if not low <= value < high:
                reason = f"{name}: {value:g}, outside the band ({stats.in_words((low, high))})"
                return Outcome(Verdict.CONTRADICTED, reason, value)
        return Outcome(Verdict.SUPPORTED, f"{name}: {', '.join(f'{value:g}' for value in values)}")

    return Relation((name,), judge)


def all_of(*parts: Relation) -> Relation:
    """Several relations at once; contradicted decides before undecided, that before supported."""

    def judge(data: Data) -> Outcome:
        outcomes = [part.judge(data) for part in parts]
        for verdict in (Verdict.CONTRADICTED, Verdict.UNDECIDED):
            for outcome in outcomes:
                if outcome.verdict is verdict:
                    return outcome
        return Outcome(Verdict.SUPPORTED, "; ".join(outcome.reason for outcome in outcomes))

    return Relation(tuple(dict.fromkeys(name for part in parts for name in part.needs)), judge)


def near_ideal(measured: str, ideal: str, limit: float) -> Relation:
    """The measured time is at most `limit` times the ideal; one well below it decides nothing."""
    within_limit = ratio_in(measured, ideal, (1 - MARGIN, limit))

    def judge(data: Data) -> Outcome:
        outcome = within_limit.judge(data)
        if outcome.number is not None and outcome.number < 1 - MARGIN:
            return Outcome(Verdict.UNDECIDED, f"{outcome.reason}; what is beaten is no ideal")
        return outcome

    return Relation(within_limit.needs, judge)


def hidden_share(slow: str, fast: str, base: str, least: float) -> Relation:
    """Of what `slow` takes longer than `base`, a share that `fast` saves is at least `least`.

    Args:
        slow: seconds with all of the cost.
        fast: seconds with some of it hidden.
        base: seconds without the cost.
        least: the share that is claimed, by its interval over rounds that are redrawn in pairs.
    """

    def judge(data: Data) -> Outcome:
        if len(data[slow]) < stats.LOOKS[0]:
            return Outcome(Verdict.UNDECIDED, f"fewer than {stats.LOOKS[0]} rounds were measured")
        cost = 1 - stats.median(data[base]) / stats.median(data[slow])
        if cost < WORTH:
            reason = f"sending is only {cost:.0%} of the {slow} step, too little to judge by"
            return Outcome(Verdict.UNDECIDED, reason)
        share, low, high = stats.saved_share(data[slow], data[fast], data[base])
        verdict = stats.verdict(low, high, (least, float("inf")))
        ending = ", which does not decide the claim" if verdict is Verdict.UNDECIDED else ""
        reason = f"{fast} hides {share:.0%} of the {cost:.0%} ({low:.0%} to {high:.0%}){ending}"
        return Outcome(verdict, reason, share)

    return Relation((slow, fast, base), judge)

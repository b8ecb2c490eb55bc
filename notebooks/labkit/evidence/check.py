"""What a check is: a relation, its source, and what each tier should show.

A check that nothing can contradict checks nothing: each has a twin, a world without the effect that
the experiment is about, in which the same pipeline must not give the same verdict
(`labkit controls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labkit import stats
from labkit.errors import NotMeasured
from labkit.evidence.evidence import NOT_APPLICABLE, Judgement
from labkit.evidence.relations import Data, Relation
from labkit.records import Tier, Verdict


@dataclass(frozen=True)
class NotApplicable:
    """A tier on which the relation cannot be asked, and why."""

    reason: str


ALL_WORK_ALONE = "all ranks' work, by one alone"
ALL_WORK_TOGETHER = "all ranks' work, side by side"
CORE_SHARE = "share of a core"
LEAST_CORE_SHARE = 0.9  # less, and somebody else computes on it, too
Expected = Mapping[Tier, Verdict | NotApplicable]
GPU_TIERS = (Tier.SEVERAL_GPUS, Tier.SEVERAL_SLICES, Tier.WHOLE_GPU, Tier.SLICE)


@dataclass(frozen=True)
class Check:
    """A relation to be measured.

    Attributes:
        key: the experiment, as in the notebooks.
        says: the relation in words.
        source: where the band comes from.
        expected: what each tier should show; a tier may rightly expect the opposite.
        emulated: why an emulated slice cannot be asked; None where it can.
        least_gain: how many times as much the ranks must get done side by side as one alone, in the
            same rounds, before the relation can be asked of CPU cores.
        instead: what is true where the claim is false; the number found stands in its braces.
    """

    key: str
    says: str
    relation: Relation
    source: str
    expected: Expected
    emulated: NotApplicable | None = None
    least_gain: float = 0.0
    instead: str = ""

    def expects(self, tier: Tier, *, emulated: bool = False) -> Verdict | NotApplicable:
        """What a tier should show, or why it cannot be asked."""
        return self.emulated if emulated and self.emulated else self.expected[tier]

    def judge(self, data: Data, tier: Tier, *, emulated: bool = False) -> Judgement:
        """What the measured series say, beside what this tier should show.

        Raises:
            NotMeasured: a series is missing; the message says to measure first.
        """
        missing = [name for name in self.relation.needs if name not in data]
        if missing:
            raise NotMeasured(f"{self.key} needs {', '.join(missing)}: measure first")
        expected = self.expects(tier, emulated=emulated)
        if isinstance(expected, NotApplicable):
            return Judgement(self.key, Verdict.UNDECIDED, expected.reason, NOT_APPLICABLE)
        if self.least_gain and (why_not := no_free_cores(data, self.least_gain)):
            return Judgement(self.key, Verdict.UNDECIDED, why_not, NOT_APPLICABLE)
        outcome = self.relation.judge(data)
        why = outcome.why
        if outcome.verdict is Verdict.CONTRADICTED and self.instead and outcome.number is not None:
            why = f"{self.instead.format(outcome.number)} ({why})"
        return Judgement(self.key, outcome.verdict, why, expected.value)


def no_free_cores(data: Data, least_gain: float) -> str:
    """Why the ranks did not have a core each; empty where they had, or had devices of their own.

    Args:
        data: with what one rank and all of them got done in the same rounds, on CPU cores.
        least_gain: how many times as much, by the lower end of the interval: cores that are free
            now and then decide nothing.
    """
    alone, together = data.get(ALL_WORK_ALONE, ()), data.get(ALL_WORK_TOGETHER, ())
    if not alone or not together:
        return ""
    if (share := stats.median(data[CORE_SHARE])) < LEAST_CORE_SHARE:
        return (
            f"a rank had {share:.0%} of a core while all of them worked, side by side: something "
            "else computes on this machine's cores, or there are fewer than ranks"
        )
    low, high = (float(end) for end in stats.interval(alone, together))
    if low >= least_gain:
        return ""
    return (
        f"before they sent anything, the ranks side by side got {low:.1f} to {high:.1f} times as "
        f"much done as one alone, which is not clearly {least_gain:g} times: a core is missing, "
        "busy, or half of another (a hyperthread)"
    )


def everywhere(verdict: Verdict) -> Expected:
    """The same on every tier."""
    return dict.fromkeys(Tier, verdict)


def on_gpus(verdict: Verdict, cpu: Verdict | NotApplicable) -> Expected:
    """The same on every GPU tier, something else on the CPU."""
    return {**dict.fromkeys(GPU_TIERS, verdict), Tier.CPU: cpu}

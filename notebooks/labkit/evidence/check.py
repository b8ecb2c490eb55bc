"""What a check is: a claim in two wordings, what its title takes for granted, and its judgement.

The data decide the claim. What a title takes for granted (that the ranks exchanged anything, that
AMP was on) is judged beside it: where it does not hold, the claim's verdict says nothing about the
title, and the judgement names what to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labkit import stats
from labkit.errors import NotMeasured
from labkit.evidence.evidence import NOT_APPLICABLE, Judgement
from labkit.evidence.relations import Data, Outcome, Relation
from labkit.records import Tier, Verdict

Expected = Mapping[Tier, Verdict | str]  # a verdict, or the reason why a tier cannot be asked
ALL_WORK_ALONE = "all ranks' work, by one alone"
ALL_WORK_TOGETHER = "all ranks' work, side by side"
CORE_SHARE = "share of a core"
LEAST_CORE_SHARE = 0.9  # less, and somebody else computes on it, too
SUPPORTED, CONTRADICTED = Verdict.SUPPORTED, Verdict.CONTRADICTED
OPPOSITE = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED}


def on_every_tier(verdict: Verdict) -> Expected:
    """Expect one verdict on every tier."""
    return dict.fromkeys(Tier, verdict)


def on_gpus(verdict: Verdict, cpu: Verdict | str) -> Expected:
    """Expect one verdict on every GPU tier, and another, or a reason not to ask, on the CPU."""
    return {**on_every_tier(verdict), Tier.CPU: cpu}


@dataclass(frozen=True)
class Premise:
    """Something that a title takes for granted.

    Attributes:
        relation: what the series show where it holds; not asked of older runs that lack them.
        otherwise: what is the case where they contradict it, as a clause.
    """

    relation: Relation
    otherwise: str


@dataclass(frozen=True)
class Check:
    """A relation to be measured.

    Attributes:
        says: the relation in words.
        denies: its opposite in words; a student gets one of the two.
        look_at: what to look at in a run that does not show what the title says.
        premises: what the title takes for granted, beside the relation.
        expected: what each tier should show, by default that it holds; a tier may rightly expect
            the opposite.
        emulated: why an emulated slice cannot be asked; empty where it can.
        least_gain: how many times as much the ranks must get done side by side as one alone, in the
            same rounds, before the relation can be asked of CPU cores.
        instead: what is true where the relation does not hold; the number found stands in its
            braces.
    """

    says: str
    denies: str
    relation: Relation
    look_at: str
    expected: Expected = field(default_factory=lambda: on_every_tier(SUPPORTED))
    premises: tuple[Premise, ...] = ()
    emulated: str = ""
    least_gain: float = 0.0
    instead: str = ""

    def wording(self, *, is_denied: bool) -> str:
        """The claim in one of its two wordings."""
        return self.denies if is_denied else self.says

    def expects(self, tier: Tier, *, emulated: bool = False) -> Verdict | str:
        """What a tier should show of the relation, or why it cannot be asked."""
        return self.emulated if emulated and self.emulated else self.expected[tier]

    def judge(
        self, data: Data, tier: Tier, *, emulated: bool = False, is_denied: bool = False
    ) -> Judgement:
        """Judge the measured series, and name what this tier should show.

        Args:
            data: the series.
            tier: where they were measured.
            emulated: whether on an emulated slice.
            is_denied: whether the claim is the relation's opposite.

        Raises:
            NotMeasured: a series is missing; the message says to measure first.
        """
        missing = [name for name in self.relation.needs if name not in data]
        if missing:
            raise NotMeasured(f"The claim needs {', '.join(missing)}: measure first")
        expected = self.expects(tier, emulated=emulated)
        if not isinstance(expected, Verdict):
            return Judgement(Verdict.UNDECIDED, expected, NOT_APPLICABLE)
        if self.least_gain and (busy_cores := explain_busy_cores(data, self.least_gain)):
            return Judgement(Verdict.UNDECIDED, busy_cores, NOT_APPLICABLE)
        outcome = self.relation.judge(data)
        judgement = Judgement(
            outcome.verdict,
            self._reason(outcome),
            expected.value,
            mismatch=self._explain_mismatch(data, outcome, expected),
        )
        return denied(judgement) if is_denied else judgement

    def _reason(self, outcome: Outcome) -> str:
        """The outcome's reason, after what is true where the relation does not hold."""
        if outcome.verdict is CONTRADICTED and self.instead and outcome.number is not None:
            return f"{self.instead.format(outcome.number)} ({outcome.reason})"
        return outcome.reason

    def _explain_mismatch(self, data: Data, outcome: Outcome, expected: Verdict) -> str:
        """Why the run does not show what the title says, and what to look at; empty if it does."""
        broken = [reason for premise in self.premises if (reason := _broken(premise, data))]
        if outcome.verdict is OPPOSITE[expected]:
            broken.append(f"{expected} was expected here of “{self.says}”")
        return f"{'; '.join(broken)}. Look at {self.look_at}" if broken else ""


def _broken(premise: Premise, data: Data) -> str:
    """What is the case in place of a premise; empty where nothing contradicts it."""
    if any(name not in data for name in premise.relation.needs):
        return ""
    outcome = premise.relation.judge(data)
    return f"{premise.otherwise} ({outcome.reason})" if outcome.verdict is CONTRADICTED else ""


def denied(judgement: Judgement) -> Judgement:
    """The judgement of the opposite claim: the same data, the verdicts the other way round."""
    expected = judgement.expected
    if expected != NOT_APPLICABLE:
        expected = OPPOSITE[Verdict(expected)].value
    return replace(
        judgement,
        verdict=OPPOSITE.get(judgement.verdict, judgement.verdict),
        expected=expected,
    )


def explain_busy_cores(data: Data, least_gain: float) -> str:
    """Explain why the ranks had no core each; empty where they had, or had devices of their own.

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
    low, high = (float(bound) for bound in stats.interval(alone, together))
    if low >= least_gain:
        return ""
    return (
        f"before they sent anything, the ranks side by side got {low:.1f} to {high:.1f} times as "
        f"much done as one alone, which is not clearly {least_gain:g} times: a core is missing, "
        "busy, or half of another (a hyperthread)"
    )

"""What a check is: a relation, its source, and what each tier should show.

A check that nothing can contradict checks nothing: every core experiment has a twin, in which the
world is changed and the same pipeline must give the opposite verdict (`labkit controls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.errors import NotMeasured
from labkit.evidence.evidence import NOT_APPLICABLE, Judgement
from labkit.evidence.relations import Data, Relation
from labkit.records import Tier, Verdict


@dataclass(frozen=True)
class NotApplicable:
    """A tier on which the relation cannot be asked, and why."""

    reason: str


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
    """

    key: str
    says: str
    relation: Relation
    source: str
    expected: Expected
    emulated: NotApplicable | None = None

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
        outcome = self.relation.judge(data)
        return Judgement(self.key, outcome.verdict, outcome.why, expected.value)


def everywhere(verdict: Verdict) -> Expected:
    """The same on every tier."""
    return dict.fromkeys(Tier, verdict)


def on_gpus(verdict: Verdict, cpu: Verdict | NotApplicable) -> Expected:
    """The same on every GPU tier, something else on the CPU."""
    return {**dict.fromkeys(GPU_TIERS, verdict), Tier.CPU: cpu}

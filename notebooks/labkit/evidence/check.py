"""What a check is: a relation, its source, what each tier should show, and its negative control.

Each check has a negative control: samples recorded from something deliberately wrong, which must
contradict it. A check whose control passes checks nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from labkit.errors import NotMeasured
from labkit.evidence.evidence import Judgement
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
        control: the name of the recorded samples that must contradict it.
        roles: which recorded series plays which series of the relation, in the control.
    """

    key: str
    says: str
    relation: Relation
    source: str
    expected: Expected
    control: str
    roles: Mapping[str, str]

    def judge(self, data: Data, tier: Tier) -> Judgement:
        """What the measured series say, beside what this tier should show.

        Raises:
            NotMeasured: a series is missing; the message says to measure first.
        """
        missing = [name for name in self.relation.needs if name not in data]
        if missing:
            raise NotMeasured(f"{self.key} needs {', '.join(missing)}: measure first")
        expected = self.expected[tier]
        if isinstance(expected, NotApplicable):
            return Judgement(self.key, Verdict.UNDECIDED, expected.reason, "not applicable here")
        outcome = self.relation.judge(data)
        return Judgement(self.key, outcome.verdict, outcome.why, expected.value)

    def control_data(self) -> dict[str, list[float]]:
        """Recorded samples of something deliberately wrong, named as the relation wants them."""
        recorded = controls()[self.control]
        return {role: recorded[name] for role, name in self.roles.items()}


@functools.cache
def controls() -> Mapping[str, Mapping[str, list[float]]]:
    """Recorded samples for negative controls; the file says how each was recorded."""
    text = resources.files("labkit").joinpath("controls.json").read_text(encoding="utf-8")
    return {item["name"]: item["series"] for item in json.loads(text)["controls"]}


def everywhere(verdict: Verdict) -> Expected:
    """The same on every tier."""
    return dict.fromkeys(Tier, verdict)


def on_gpus(verdict: Verdict, cpu: Verdict | NotApplicable) -> Expected:
    """The same on every GPU tier, something else on the CPU."""
    return {**dict.fromkeys(GPU_TIERS, verdict), Tier.CPU: cpu}

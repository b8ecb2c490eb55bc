"""Every check supports what is right, contradicts its control, and knows each tier."""

import pytest

from labkit.errors import NotMeasured
from labkit.evidence.check import NotApplicable
from labkit.evidence.checks import CHECKS
from labkit.evidence.relations import AllOf, Exactly, RatioIn
from labkit.records import Tier, Verdict

JITTER = [1 + 0.002 * ((7 * i) % 11 - 5) for i in range(80)]


def good_data(relation):
    """Series that plainly satisfy a relation."""
    if isinstance(relation, RatioIn):
        low, high = relation.band
        middle = low * 1.5 + 0.1 if high == float("inf") else (low + high) / 2
        return {relation.a: [middle * j for j in JITTER], relation.b: JITTER[::-1]}
    if isinstance(relation, AllOf):
        data = {}
        for part in relation.parts:
            data |= good_data(part)
        return data
    assert isinstance(relation, Exactly)
    tries = [98, 65504, 0.5, 99.0, 1e-7, 1.0, 500, 2.0]
    return {relation.name: [next(value for value in tries if relation.holds(value))]}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_negative_control_fails(check):
    """Samples recorded from something deliberately wrong contradict the check."""
    assert check.relation.judge(check.control_data()).verdict is Verdict.CONTRADICTED


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_what_is_right_is_supported(check):
    """Plainly right series are supported, so that the check is not simply always against."""
    if check.key == "MP-6":
        data = {"1 micro-batch": JITTER, "the best": [j / 2 for j in JITTER], "the most": JITTER}
    else:
        data = good_data(check.relation)
    assert check.relation.judge(data).verdict is Verdict.SUPPORTED


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_each_tier_has_an_expectation_or_a_reason(check):
    """No tier is forgotten, and a tier without an answer is told why."""
    assert set(check.expected) == set(Tier)
    for tier, expected in check.expected.items():
        if isinstance(expected, NotApplicable):
            judgement = check.judge(check.control_data(), tier)
            assert judgement.verdict is Verdict.UNDECIDED
            assert len(judgement.why) > 10


def test_no_check_on_a_cpu_supports_a_claim_about_gpus():
    """What only a GPU can show is not applicable on the CPU tier."""
    about_gpus = ("MIG-1", "MIG-3", "MIG-5", "MIG-6", "MIG-7", "MX-2")
    assert all(isinstance(CHECKS[key].expected[Tier.CPU], NotApplicable) for key in about_gpus)


def test_a_missing_series_says_measure_first():
    """A check before its measurement asks for it by name."""
    with pytest.raises(NotMeasured, match="measure first"):
        CHECKS["DP-3"].judge({"one rank": JITTER}, Tier.CPU)

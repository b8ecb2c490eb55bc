"""Every check supports what is right, knows each tier, and has a twin that must turn it round."""

import pytest

from labkit.authoring.twins import TWINS
from labkit.errors import NotMeasured
from labkit.evidence.check import ALL_WORK_ALONE, ALL_WORK_TOGETHER, CORE_SHARE, NotApplicable
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
    tries = [98, 65504, 0.5, 99.0, 1e-7, 1.0, 500, 2.0, 0.25, 0]
    return {relation.name: [next(value for value in tries if relation.holds(value))]}


def test_every_check_has_a_twin():
    """No experiment is without a world in which it comes out otherwise."""
    assert set(TWINS) == set(CHECKS)
    assert all(twin.says for twin in TWINS.values())


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_what_is_right_is_supported(check):
    """Plainly right series are supported, so that the check is not simply always against."""
    if check.key == "CH-1":
        names = ("all", "a part", "all: SMs x time", "a part: SMs x time")
        data = dict(
            zip(
                names,
                (JITTER, [1.5 * j for j in JITTER], [2 * j for j in JITTER], JITTER),
                strict=True,
            )
        )
    elif check.key == "MIG-5":
        data = {
            "part": [1.9 * j for j in JITTER],
            "whole": JITTER,
            "part, in proportion": [0.95 * j for j in JITTER],
        }
    elif check.key == "MP-6":
        half = [j / 2 for j in JITTER]
        ends = dict.fromkeys(("1 micro-batch", "the most"), JITTER)
        data = {**ends, "the best": half, "the lowest": half}
    else:
        data = good_data(check.relation)
    assert check.relation.judge(data).verdict is Verdict.SUPPORTED


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_each_tier_has_an_expectation_or_a_reason(check):
    """No tier is forgotten, and a tier without an answer is told why."""
    assert set(check.expected) == set(Tier)
    for tier, expected in check.expected.items():
        if isinstance(expected, NotApplicable):
            judgement = check.judge({name: [] for name in check.relation.needs}, tier)
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


def test_an_emulated_slice_is_not_asked_about_bandwidth_and_isolation():
    """It has the whole GPU's memory paths, so a verdict about a slice's would be a lie."""
    for key in ("MIG-3", "MIG-6"):
        judged = CHECKS[key].judge(
            {name: [] for name in CHECKS[key].relation.needs}, Tier.SLICE, emulated=True
        )
        assert judged.expected == "not applicable here"
        assert "emulated" in judged.why


def test_one_slice_is_not_asked_about_its_isolation():
    """Copies inside one slice share it by time; the reason is said instead of "too few rounds"."""
    judged = CHECKS["MIG-6"].judge({"crowded": [], "alone": []}, Tier.SLICE)
    assert judged.expected == "not applicable here"
    assert "inside one slice" in judged.why


def on_cores(gain, speed_up, share=1.0):
    """Series of DP-3 on a CPU on which two ranks get `gain` times as much done as one."""
    work = [j / 50 for j in JITTER]
    return {
        "one rank": [speed_up * seconds for seconds in work],
        "two ranks": work,
        ALL_WORK_ALONE: [gain * seconds for seconds in work],
        ALL_WORK_TOGETHER: work,
        CORE_SHARE: [share] * len(work),
    }


@pytest.mark.parametrize("gain", [0.95, 1.0, 1.3])
def test_two_ranks_on_one_core_are_not_asked_whether_they_are_faster(gain):
    """Hyperthreads, or a core that others use, say nothing of data parallelism."""
    judged = CHECKS["DP-3"].judge(on_cores(gain, 0.9), Tier.CPU)
    assert judged.expected == "not applicable here"
    assert f"{gain:.1f} times as much" in judged.why


def test_ranks_that_share_their_cores_with_others_are_not_asked_either():
    """A second process wins time from a busy neighbour, so that the gain alone looks well."""
    judged = CHECKS["DP-3"].judge(on_cores(1.9, 0.9, share=0.6), Tier.CPU)
    assert judged.expected == "not applicable here"
    assert "60% of a core" in judged.why


def test_an_unlucky_pick_of_the_best_does_not_refute_a_u():
    """Only when no number of micro-batches in the middle is lower is it contradicted."""
    flat, low = [1.2 * j for j in JITTER], [j / 2 for j in JITTER]
    ends = dict.fromkeys(("1 micro-batch", "the most"), JITTER)
    check = CHECKS["MP-6"]
    for lowest, verdict in ((low, Verdict.UNDECIDED), (flat, Verdict.CONTRADICTED)):
        judged = check.judge({**ends, "the best": flat, "the lowest": lowest}, Tier.CPU)
        assert judged.verdict is verdict


def test_on_two_free_cores_a_slow_second_rank_contradicts():
    """With a core each, the same times are data parallelism's own fault; without figures, too."""
    slow = on_cores(1.9, 0.9)
    assert CHECKS["DP-3"].judge(slow, Tier.CPU).verdict is Verdict.CONTRADICTED
    assert CHECKS["DP-3"].judge(on_cores(1.9, 1.8), Tier.CPU).verdict is Verdict.SUPPORTED
    on_gpus = {name: slow[name] for name in ("one rank", "two ranks")}
    assert CHECKS["DP-3"].judge(on_gpus, Tier.SEVERAL_GPUS).verdict is Verdict.CONTRADICTED

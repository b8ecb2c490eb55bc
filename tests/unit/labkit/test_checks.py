"""Every check can come out either way, knows each tier, and has a twin; a third is false."""

import itertools

import pytest

from labkit.errors import NotMeasured
from labkit.evidence.checks import ALL_WORK_ALONE, ALL_WORK_TOGETHER, CHECKS, CORE_SHARE
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.records import Tier, Verdict
from labkit_authoring.twins import TWINS

JITTER = [1 + 0.002 * ((7 * i) % 11 - 5) for i in range(80)]


TIMES = (0.5, 1.0, 2.0, 50.0)


def outcomes(relation):
    """What a relation says of series that are each so many times as long as a second."""
    for times in itertools.product(TIMES, repeat=len(relation.needs)):
        series = ([factor * j for j in JITTER] for factor in times)
        yield relation.judge(dict(zip(relation.needs, series, strict=True))).verdict


def test_every_check_has_a_twin():
    """No claim is without a world in which what it is about is absent."""
    assert set(TWINS) == set(CHECKS)
    assert all(twin.absent for twin in TWINS.values())


@pytest.mark.parametrize("key", CHECKS)
def test_a_check_can_come_out_either_way(key):
    """Some series support it, and some contradict it."""
    for verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED):
        assert verdict in outcomes(CHECKS[key].relation)


def test_of_several_parts_one_that_is_wrong_contradicts():
    """All are right together; a step that is out of proportion on the part contradicts."""
    check = CHECKS["MIG-5"]
    slower = [1.9 * j for j in JITTER]
    data = {"part": slower, "whole": JITTER, "part, in proportion": [0.95 * j for j in JITTER]}
    assert check.relation.judge(data).verdict is Verdict.SUPPORTED
    out = {**data, "part, in proportion": slower}
    assert check.relation.judge(out).verdict is Verdict.CONTRADICTED


def test_a_false_claim_is_followed_by_what_is_true_with_its_number():
    """The student reads what holds instead, not only that the claim does not."""
    judged = CHECKS["MX-9"].judge({"kept with AMP over pure bf16": [1.357]}, Tier.CPU)
    assert judged.verdict is Verdict.CONTRADICTED
    assert judged.why.startswith("AMP keeps 1.36 times as much")


def test_what_is_false_somewhere_says_what_is_true_instead():
    """And every such sentence has room for one number."""
    false = [one for one in CHECKS.values() if Verdict.CONTRADICTED in one.expected.values()]
    assert all(check.instead.format(1.5) != check.instead for check in false)


CORE_TIERS = (Tier.CPU, Tier.SLICE, Tier.WHOLE_GPU, Tier.SEVERAL_GPUS)
RANKS = ("DP-2", "DP-3", "DP-4", "DP-6", "DP-12", "MP-6", "DP-13")
"""With one GPU or slice their ranks are processes on the CPU, and so is their tier."""


def shares_by(tier):
    """What a student who always says the same would get right, by verdict."""
    core = [key for key in CHECKS if not EXPERIMENTS[key].is_optional]
    on_one = tier in (Tier.SLICE, Tier.WHOLE_GPU)
    shown = [CHECKS[key].expected[Tier.CPU if on_one and key in RANKS else tier] for key in core]
    asked = [verdict for verdict in shown if isinstance(verdict, Verdict)]
    return {verdict: asked.count(verdict) / len(asked) for verdict in Verdict}


@pytest.mark.parametrize("tier", CORE_TIERS)
def test_a_third_of_the_claims_is_false_and_no_answer_is_always_right(tier):
    """25 to 45 % are false on each device; a constant answer earns at most 70 % of the marks."""
    shares = shares_by(tier)
    assert 0.25 <= shares[Verdict.CONTRADICTED] <= 0.45
    assert max(shares.values()) <= 0.7


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_each_tier_has_an_expectation_or_a_reason(check):
    """No tier is forgotten, and a tier without an answer is told why."""
    assert set(check.expected) == set(Tier)
    for tier, expected in check.expected.items():
        if not isinstance(expected, Verdict):
            judgement = check.judge({name: [] for name in check.relation.needs}, tier)
            assert judgement.verdict is Verdict.UNDECIDED
            assert len(judgement.why) > 10


def test_a_missing_series_says_measure_first():
    """A check before its measurement asks for it by name."""
    with pytest.raises(NotMeasured, match="measure first"):
        CHECKS["DP-3"].judge({"one rank": JITTER}, Tier.CPU)


def test_an_emulated_slice_is_not_asked_about_bandwidth_and_isolation():
    """It has the whole GPU's memory paths, so a verdict about a slice's would be a lie."""
    for key in ("MIG-3", "MIG-6"):
        nothing = dict.fromkeys(CHECKS[key].relation.needs, ())
        judged = CHECKS[key].judge(nothing, Tier.SLICE, emulated=True)
        assert judged.expected == "not applicable here"
        assert "emulated" in judged.why


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
    assert f"{gain:.1f} times as much" in judged.why


def test_ranks_that_share_their_cores_with_others_are_not_asked_either():
    """A second process wins time from a busy neighbour, so that the gain alone looks well."""
    judged = CHECKS["DP-3"].judge(on_cores(1.9, 0.9, share=0.6), Tier.CPU)
    assert judged.expected == "not applicable here"
    assert "60% of a core" in judged.why


def test_what_beats_its_ideal_shows_that_the_ideal_is_none():
    """A pipeline under 0.95 of it decides nothing."""
    fast = {"the best": [0.8 * j for j in JITTER], "its ideal": JITTER}
    judged = CHECKS["MP-6"].judge(fast, Tier.SEVERAL_GPUS)
    assert judged.verdict is Verdict.UNDECIDED
    assert "no ideal" in judged.why


def test_hardly_any_sending_leaves_nothing_to_hide():
    """Under a fifth of the step, whatever the buckets do is undecided."""
    times = {"flat": 1.1, "buckets": 1.0, "no sync": 1.0}
    data = {name: [seconds * j for j in JITTER] for name, seconds in times.items()}
    judged = CHECKS["DP-6"].judge(data, Tier.CPU)
    assert judged.verdict is Verdict.UNDECIDED
    assert "only 9%" in judged.why


def test_on_two_free_cores_a_slow_second_rank_contradicts():
    """With a core each, the same times are data parallelism's own fault; without figures, too."""
    slow = on_cores(1.9, 0.9)
    assert CHECKS["DP-3"].judge(slow, Tier.CPU).verdict is Verdict.CONTRADICTED
    assert CHECKS["DP-3"].judge(on_cores(1.9, 1.8), Tier.CPU).verdict is Verdict.SUPPORTED
    on_gpus = {name: slow[name] for name in ("one rank", "two ranks")}
    assert CHECKS["DP-3"].judge(on_gpus, Tier.SEVERAL_GPUS).verdict is Verdict.CONTRADICTED

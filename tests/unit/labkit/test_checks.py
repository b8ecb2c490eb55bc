"""Every check comes out either way, knows each tier, has two wordings and broken worlds."""

import itertools
import statistics

import pytest

from labkit.errors import NotMeasured
from labkit.evidence import evidence as store
from labkit.evidence.check import ALL_WORK_ALONE, ALL_WORK_TOGETHER, CORE_SHARE
from labkit.evidence.checks import CHECKS, is_denied_for
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.records import Tier, Verdict
from labkit_authoring.worlds import WORLDS

JITTER = [1 + 0.002 * ((7 * i) % 11 - 5) for i in range(80)]


TIMES = (0.5, 1.0, 2.0, 200.0)


def outcomes(relation):
    """What a relation says of series that are each so many times as long as a second."""
    for times in itertools.product(TIMES, repeat=len(relation.needs)):
        series = ([factor * j for j in JITTER] for factor in times)
        yield relation.judge(dict(zip(relation.needs, series, strict=True))).verdict


def test_every_check_has_broken_worlds_and_says_what_is_true_instead():
    """Two at least: the effect gone, and reversed; a sentence that has room for check number."""
    assert set(WORLDS) == set(CHECKS)
    for key, worlds in WORLDS.items():
        assert len({world.name for world in worlds}) == len(worlds) >= 2, key
    false = [check for check in CHECKS.values() if Verdict.CONTRADICTED in check.expected.values()]
    assert all(check.instead.format(1.5) != check.instead for check in false)


@pytest.mark.parametrize("key", CHECKS)
def test_a_check_can_come_out_either_way(key):
    """Some series support it, some contradict it; a tier without an answer is told why."""
    check = CHECKS[key]
    assert {Verdict.SUPPORTED, Verdict.CONTRADICTED} <= set(outcomes(check.relation))
    assert set(check.expected) == set(Tier)
    for tier, expected in check.expected.items():
        if not isinstance(expected, Verdict):
            judgement = check.judge({name: [] for name in check.relation.needs}, tier)
            assert judgement.verdict is Verdict.UNDECIDED
            assert len(judgement.reason) > 10


CORE_TIERS = (Tier.CPU, Tier.SLICE, Tier.WHOLE_GPU, Tier.SEVERAL_GPUS)
RANKS = ("DP-2", "DP-3", "DP-4", "DP-6", "DP-12", "DP-13", "DP-15", "MP-6", "MP-11")
"""With one GPU or slice their ranks are processes on the CPU, and so is their tier."""


STUDENTS = [f"student-{number}" for number in range(400)]


def right_answers(tier):
    """The answers that are right on a tier, by core experiment: of the relation, not the claim."""
    core = [key for key in CHECKS if not EXPERIMENTS[key].is_optional]
    on_one = tier in (Tier.SLICE, Tier.WHOLE_GPU)
    expected = {
        key: CHECKS[key].expected[Tier.CPU if on_one and key in RANKS else tier] for key in core
    }
    return {key: verdict for key, verdict in expected.items() if isinstance(verdict, Verdict)}


@pytest.mark.parametrize("tier", CORE_TIERS)
def test_a_constant_answer_is_right_for_about_half(tier):
    """Over many students, each of whom gets one of two wordings of every claim."""
    shares = []
    for student in STUDENTS:
        right = right_answers(tier)
        is_right = [
            (verdict is Verdict.SUPPORTED) is not is_denied_for(key, student)
            for key, verdict in right.items()
        ]
        shares.append(sum(is_right) / len(is_right))
    mean, (low, *_, high) = statistics.mean(shares), statistics.quantiles(shares, n=20)
    print(f"{tier}: {mean:.3f} of the claims, 90 % of the students {low:.2f} to {high:.2f}")
    assert 0.48 <= mean <= 0.52
    assert low >= 0.2
    assert high <= 0.8


@pytest.mark.parametrize("tier", CORE_TIERS)
def test_a_third_of_the_relations_does_not_hold(tier):
    """25 to 45 % on each device, so that a course does not come out one way."""
    verdicts = list(right_answers(tier).values())
    assert 0.25 <= verdicts.count(Verdict.CONTRADICTED) / len(verdicts) <= 0.45


@pytest.mark.parametrize("key", CHECKS)
def test_both_wordings_of_a_claim_are_drawn_and_are_told_apart(key):
    """About half of the students get each, always the same; the verdicts are opposite."""
    denied = [is_denied_for(key, student) for student in STUDENTS]
    assert 0.4 < sum(denied) / len(denied) < 0.6
    assert denied == [is_denied_for(key, student) for student in STUDENTS]
    check = CHECKS[key]
    assert check.wording(is_denied=True) != check.wording(is_denied=False)


def test_an_opposite_claim_has_the_opposite_verdict():
    """Judged by the same data, expected the other way round; undecided stays undecided."""
    check = CHECKS["MX-9"]
    told, opposite = (check.judge(AMP, Tier.CPU, is_denied=denied) for denied in (False, True))
    assert (told.verdict, told.expected) == ("contradicted", "contradicted")
    assert (opposite.verdict, opposite.expected) == ("supported", "supported")
    assert told.reason == opposite.reason
    noise = CHECKS["DP-6"].judge(LITTLE_TO_HIDE, Tier.CPU, is_denied=True)
    assert noise.verdict == "undecided"


@pytest.mark.parametrize(
    ("data", "mismatch"),
    [
        ({"kept with AMP over fp32": [0.68]}, ""),
        ({"kept with AMP over fp32": [1.0]}, "AMP keeps as much as fp32"),
        ({}, ""),  # a run recorded before this was noted
    ],
)
def test_a_premise_that_does_not_hold_is_told_whatever_the_claim_is(data, mismatch):
    """The verdict stays about the data; what to look at is named."""
    judged = CHECKS["MX-9"].judge(AMP | data, Tier.CPU)
    assert judged.verdict == "contradicted"
    assert mismatch in judged.mismatch
    has_advice = "Look at whether autocast" in judged.mismatch
    assert bool(judged.mismatch) == bool(mismatch) == has_advice


def test_a_missing_series_says_measure_first():
    """A check before its measurement asks for it by name."""
    with pytest.raises(NotMeasured, match="measure first"):
        CHECKS["DP-3"].judge({"one rank": JITTER}, Tier.CPU)


UNASKED = "not applicable here"


def test_an_emulated_slice_is_not_asked_about_bandwidth_and_isolation():
    """It has the whole GPU's memory paths, so a verdict about a slice's would be a lie."""
    for key in ("MIG-3", "MIG-6"):
        nothing = dict.fromkeys(CHECKS[key].relation.needs, ())
        judged = CHECKS[key].judge(nothing, Tier.SLICE, emulated=True)
        assert judged.expected == UNASKED
        assert "emulated" in judged.reason


def series(times):
    """Samples that take so many times as long as a second, by what was measured."""
    return {name: [seconds * j for j in JITTER] for name, seconds in times.items()}


def ranks(one_rank_s, two_ranks_s):
    """Series of DP-3: how long the work takes one rank, and two of them."""
    return series({"one rank": one_rank_s / 50, "two ranks": two_ranks_s / 50})


def on_cores(gain, speed_up, share=1.0):
    """The same on a CPU on which two ranks get `gain` times as much done as one."""
    side = series({ALL_WORK_ALONE: gain / 50, ALL_WORK_TOGETHER: 1 / 50})
    return ranks(speed_up, 1) | side | {CORE_SHARE: [share] * len(JITTER)}


def part(in_proportion):
    """Series of MIG-5, of which only one is not always right."""
    return series({"part": 1.9, "whole": 1.0, "part, in proportion": in_proportion})


AMP = {"kept with AMP over pure bf16": [1.357]}
NEAR_IDEAL = series({"the best": 0.8, "its ideal": 1.0})
LITTLE_TO_HIDE = series({"flat": 1.1, "buckets": 1.0, "no sync": 1.0})


@pytest.mark.parametrize(
    ("key", "tier", "data", "expected", "cause"),
    [
        ("MIG-5", Tier.WHOLE_GPU, part(0.95), "supported", ""),
        ("MIG-5", Tier.WHOLE_GPU, part(1.9), "contradicted", ""),
        ("MX-9", Tier.CPU, AMP, "contradicted", "AMP keeps 1.36 times as much"),
        ("MP-6", Tier.SEVERAL_GPUS, NEAR_IDEAL, "undecided", "no ideal"),
        ("DP-6", Tier.CPU, LITTLE_TO_HIDE, "undecided", "only 9%"),
        # hyperthreads, or a core that others use, say nothing of data parallelism
        ("DP-3", Tier.CPU, on_cores(0.95, 0.9), UNASKED, "0.9 times as much"),
        ("DP-3", Tier.CPU, on_cores(1.0, 0.9), UNASKED, "1.0 times as much"),
        ("DP-3", Tier.CPU, on_cores(1.3, 0.9), UNASKED, "1.3 times as much"),
        # a second process wins time from a busy neighbour, so that the gain alone looks well
        ("DP-3", Tier.CPU, on_cores(1.9, 0.9, share=0.6), UNASKED, "60% of a core"),
        # with a core each it is data parallelism's own fault; without such figures, too
        ("DP-3", Tier.CPU, on_cores(1.9, 0.9), "contradicted", ""),
        ("DP-3", Tier.CPU, on_cores(1.9, 1.8), "supported", ""),
        ("DP-3", Tier.SEVERAL_GPUS, ranks(0.9, 1), "contradicted", ""),
    ],
)
def test_what_series_say_of_a_claim(key, tier, data, expected, cause):
    """A false claim is followed by what is true, with its number."""
    judged = CHECKS[key].judge(data, tier)
    assert expected == (UNASKED if judged.expected == UNASKED else judged.verdict.value)
    assert cause in judged.reason


RECORDED = [key for key in CHECKS if store.is_recorded(key)]


@pytest.mark.parametrize("key", RECORDED)
def test_a_recorded_run_shows_what_its_title_says(key):
    """Judged again, also where it lacks the facts that later runs note."""
    judged = EXPERIMENTS[key].judge(store.recorded(key))
    assert judged is not None
    assert judged.mismatch == "", judged

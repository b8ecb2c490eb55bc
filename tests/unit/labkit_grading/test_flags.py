"""Flags for the marker's eyes: what is easily forged is seen, and honest runs are left alone."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.labkit_grading.test_grading import honest_evidence, record

from labkit.evidence import evidence as store
from labkit_grading.flags import backward_times, flags_of
from labkit_grading.submissions import Submission

GALLERY = Path(__file__).parents[3] / "docs" / "gallery"


def zips_of(evidence_of):
    """A class's zips, by the name of the student."""
    return [
        Submission(who, f"{who}.zip", {evidence.experiment: evidence})
        for who, evidence in evidence_of.items()
    ]


def drawn(seed):
    """A run whose samples are noise, as a clock's are."""
    luck, base = random.Random(seed), honest_evidence(seed)
    (point,) = base.points
    records = tuple(
        replace(part, samples_s=tuple(0.01 * luck.uniform(1, 1.1) for _ in part.samples_s))
        for part in point.records
    )
    return replace(base, points=(replace(point, records=records),))


def noisy(evidence, share):
    """The same run under another name, with noise of this share on each sample."""
    luck = random.Random(7)
    points = [
        replace(
            point,
            records=tuple(
                replace(
                    part,
                    samples_s=tuple(s * (1 + share * luck.uniform(-1, 1)) for s in part.samples_s),
                )
                for part in point.records
            ),
        )
        for point in evidence.points
    ]
    return replace(evidence, points=tuple(points))


@pytest.mark.parametrize("share", [0, 1e-9, 1e-3])
def test_a_classmates_run_is_flagged_in_both_zips(share):
    """Also with noise on it, since the ranks of noise stay: they rise and fall together."""
    mine = drawn(1)
    flags = flags_of(zips_of({"ann": mine, "bob": noisy(mine, share), "cyd": drawn(2)}))
    assert flags == {
        ("ann.zip", "MX-2"): ["2 of 2 records rise and fall as in bob.zip"],
        ("bob.zip", "MX-2"): ["2 of 2 records rise and fall as in ann.zip"],
    }


@pytest.mark.parametrize("key", ["T-1", "MX-2", "DP-2", "MIG-5"])
@pytest.mark.parametrize("share", [0, 1e-9])
def test_a_shipped_recording_is_flagged(key, share):
    """Whatever the file says about who ran it."""
    shipped = replace(store.recorded(key), headless=False, replayed_from=None)
    flags = flags_of(zips_of({"ann": noisy(shipped, share)}))
    (sentence,) = flags["ann.zip", key]
    assert sentence.endswith("rise and fall as in the shipped recording")
    count, _, all_count = sentence.split()[:3]
    assert count == all_count


def test_honest_runs_of_one_experiment_on_many_machines_are_not_flagged():
    """The gallery's: every pair of its machines, and none looks like another one's."""
    for folder in sorted(GALLERY.iterdir()):
        if folder.is_dir() and folder.name != "h100-1gpu":
            keys = sorted(path.stem for path in folder.glob("*.json"))
            for key in keys:
                mine, other = folder / f"{key}.json", GALLERY / "h100-1gpu" / f"{key}.json"
                if not other.exists() or store.load(mine) == store.load(other):
                    continue
                zips = zips_of({"ann": store.load(mine), "bob": store.load(other)})
                flags = [sentence for group in flags_of(zips).values() for sentence in group]
                shared = [sentence for sentence in flags if sentence.endswith("bob.zip")]
                assert shared == [], (folder.name, key)


def test_few_samples_are_compared_exactly():
    """Five ranks agree by chance; five samples do not."""

    def short(seed):
        luck = random.Random(seed)
        samples = tuple(sorted(luck.uniform(1, 2) for _ in range(6)))
        point = replace(
            drawn(0).points[0], records=(replace(record("a", 1, 0), samples_s=samples),)
        )
        return replace(drawn(0), points=(point,), ended="2026-03-01T10:10:00+00:00")

    assert flags_of(zips_of({"ann": short(1), "bob": short(2)})) == {}
    assert len(flags_of(zips_of({"ann": short(1), "bob": short(1)}))) == 2


def on(name, evidence):
    """The same run on a device of this name."""
    (point,) = evidence.points
    records = tuple(
        replace(part, devices=(replace(part.devices[0], name=name),)) for part in point.records
    )
    return replace(evidence, points=(replace(point, records=records),))


def test_a_machine_that_is_not_the_labs_is_flagged():
    """By the names that the marker gives; without any, by what nobody else measured on."""
    runs = {who: drawn(seed) for seed, who in enumerate(("ann", "bob", "cyd"))}
    runs["eve"] = on("GeForce", drawn(9))
    zips = zips_of(runs)
    assert flags_of(zips) == {("eve.zip", "MX-2"): ["nobody else measured on GeForce"]}
    told = flags_of(zips, machines=["a CPU"])
    assert told == {("eve.zip", "MX-2"): ["measured on GeForce, which is none of the lab's"]}
    emulated = flags_of(zips_of({"ann": replace(drawn(1), emulated=True)}))
    assert emulated["ann.zip", "MX-2"] == ["measured on an emulated slice"]


TIMES = {
    "it ended 10 s before it began": {"ended": "2026-03-01T10:00:00+00:00"},
    "a record of it was not made while it ran": {"started": "2026-03-01T10:00:25+00:00"},
    "a time of it is none": {"ended": "today"},
}


@pytest.mark.parametrize(("sentence", "changed"), TIMES.items())
def test_times_that_cannot_be_are_flagged(sentence, changed):
    """Of the run and of its records."""
    assert list(backward_times(honest_evidence())) == []
    assert list(backward_times(replace(honest_evidence(), **changed))) == [sentence]


def test_samples_that_took_longer_than_the_run_are_flagged():
    """Twenty calls of some seconds do not fit into twenty seconds."""
    (point,) = honest_evidence().points
    slow = replace(point, records=(record("a", 5, 0),))
    (sentence,) = backward_times(replace(honest_evidence(), points=(slow,)))
    assert sentence == "its samples alone took 101 s, and the whole run 20 s"


@pytest.mark.parametrize(("wait_s", "is_possible"), [(5.0, True), (50.0, False)])
def test_requests_that_wait_at_once_may_add_up_to_more_than_the_run(wait_s, is_possible):
    """Each batch of MIG-14 lasts at least as long as its longest wait."""
    (point,) = honest_evidence().points
    waits = replace(point, records=(record("a", wait_s, 0),))
    assert list(backward_times(replace(honest_evidence(), points=(waits,)))) != []
    served = replace(honest_evidence(), experiment="MIG-14", points=(waits,))
    assert (list(backward_times(served)) == []) is is_possible


def test_honest_runs_have_possible_times():
    """Every run of the gallery."""
    for file in GALLERY.glob("*/*.json"):
        assert list(backward_times(store.load(file))) == [], file

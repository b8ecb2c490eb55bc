"""The capstone's answer is open, and of one's own: no shape is the cheapest of all jobs."""

import random
from collections import Counter
from pathlib import Path

import pytest

import labkit
from labkit.exercises.capstone import CHOICES, waits_h
from labkit.exercises.formula_checks import (
    check_choose,
    check_job_hours,
    check_price,
    check_step_price,
)
from labkit.exercises.packing import A100
from labkit.machine.profiling import OperationCount, by_limit

WHOLE = A100["7g.40gb"]
DOCS = Path(__file__).parents[3] / "docs"


RECORDED = {"fixed": 0.0, "sm": 5.33, "memory": 6.09, "python": 0.0}
"""The law of CH-1's shipped recording (an H100), from which a CPU's table is made, in ms."""
LAWS = {
    "recorded": RECORDED,
    "an H200, by the guide": {"fixed": 3.2, "sm": 5.15, "memory": 1.95, "python": 0.0},
    "nearly all of it on the SMs": {"fixed": 0.5, "sm": 8.5, "memory": 1.0, "python": 0.0},
    "half of it fixed": {"fixed": 4.5, "sm": 3.0, "memory": 2.5, "python": 0.0},
}
STUDENTS = [f"student-{number}" for number in range(2000)]


def choice(job, law):
    """The shape that the right answers choose for a drawn job."""
    steps = job["full_h"] / check_job_hours.right(WHOLE, WHOLE, law, 1)
    wait_h = waits_h(job["queue"])
    rows = []
    for name, profile in A100.items():
        hours = check_job_hours.right(profile, WHOLE, law, steps)
        price = check_price.right(hours, profile.memory, wait_h[name], job["an_hour"])
        rows.append({"shape": name, "fits": True, "hours": hours, "price": price})
    return check_choose.right(rows, job["full_h"] * job["times_due"])


def jobs():
    return [labkit.drawn("6", student=student, **CHOICES) for student in STUDENTS]


@pytest.mark.parametrize("law", LAWS)
def test_every_shape_wins_for_somebody(law):
    """Of 2,000 students at least one in 25 each; nobody has a job that no shape can do."""
    winners = Counter(choice(job, LAWS[law]) for job in jobs())
    shares = {name: winners[name] / len(STUDENTS) for name in (*A100, "none")}
    print(law, shares)
    assert shares["none"] == 0
    assert min(shares[name] for name in A100) >= (0.1 if law == "recorded" else 0.04)
    assert max(shares.values()) <= 0.4


@pytest.mark.parametrize("law", ["recorded", "an H200, by the guide"])
@pytest.mark.parametrize("name", CHOICES)
def test_every_number_that_is_drawn_decides_for_somebody(name, law):
    """With another one in its place at least one student in eight chooses another shape."""
    changed = 0
    for job in jobs()[:400]:
        answers = {choice(job | {name: other}, LAWS[law]) for other in CHOICES[name]}
        changed += len(answers) > 1
    print(name, law, changed / 400)
    assert changed / 400 >= 1 / 8


def test_the_guide_says_how_the_choices_are_distributed():
    """The shares of the recorded law's choices, and of a number's decisions, in percent."""
    guide = (DOCS / "howto" / "teach" / "6_choose_your_slice.md").read_text()
    winners = Counter(choice(job, RECORDED) for job in jobs())
    for name in A100:
        assert f"| {name} | {100 * winners[name] / len(STUDENTS):.0f} % |" in guide


def test_without_a_price_of_time_the_smallest_shape_is_never_beaten():
    """And sevenths of the larger share give the opposite answer, where nothing is fixed."""
    luck = random.Random(0)
    for _ in range(1000):
        fixed_ms, job = luck.uniform(0, 10), (luck.uniform(1, 500), luck.uniform(1, 50))
        slices = {
            n: check_step_price.right(fixed_ms, *job, p, "memory slices") for n, p in A100.items()
        }
        sevenths = {n: check_step_price.right(0.0, *job, p, "sevenths") for n, p in A100.items()}
        assert slices["1g.5gb"] <= min(slices.values()) * 1.000001
        assert sevenths["7g.40gb"] <= min(sevenths.values()) * 1.000001


def test_what_limits_an_operation_is_its_intensity_and_not_its_name():
    """A product left of the ridge waits for the memory; what nobody counted, too."""
    took = {"aten::mm": 2.0, "aten::thin": 3.0, "aten::add": 1.0}
    counted = {"aten::mm": OperationCount(10, 1000), "aten::thin": OperationCount(10, 100)}
    ms_by_limit = by_limit(took, counted, ridge=50.0)
    assert ms_by_limit == {"sm_ms": 2.0, "memory_ms": 4.0, "operations": 3.0}


def test_a_student_keeps_the_same_numbers_and_others_have_others(monkeypatch):
    """On every machine; a marker names the student."""
    choices = {"batch": (32, 64, 128), "millions": (10, 25, 60)}
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    ada_numbers = labkit.drawn("4b", **choices)
    assert (
        ada_numbers == labkit.drawn("4b", **choices) == labkit.drawn("4b", student="ada", **choices)
    )
    assert all(ada_numbers[name] in some for name, some in choices.items())
    distinct_numbers = {str(labkit.drawn("4b", student=f"s{n}", **choices)) for n in range(40)}
    assert len(distinct_numbers) == 9

"""The capstone's answer is open, and of one's own: no shape is the cheapest of all jobs."""

import math
import random
from collections import Counter

import labkit
from labkit.exercises.formula_checks import check_job_hours, check_price, check_step_price
from labkit.exercises.packing import A100
from labkit.machine.profiling import OperationCount, by_limit

WHOLE = A100["7g.40gb"]


def a_job(luck):
    """A step of 1 ms on the whole GPU, the hours of the job there, and an hour's worth."""
    fixed_share = luck.uniform(0.05, 0.6)
    sm = (1 - fixed_share) * luck.uniform(0.3, 0.8)
    law = {"fixed": fixed_share, "sm": sm, "memory": 1 - fixed_share - sm, "python": 0.0}
    return law, luck.uniform(0.05, 2), math.exp(luck.uniform(math.log(0.1), math.log(4)))


def prices(luck):
    """The price of one job on every shape, after a wait that is longer for more memory slices."""
    law, hours, an_hour = a_job(luck)
    price_by_shape = {}
    for name, profile in A100.items():
        wait_h = luck.expovariate(8 / profile.memory)
        job_ms = check_job_hours.right(profile, WHOLE, law, hours * 3.6e6)
        price_by_shape[name] = check_price.right(job_ms, profile.memory, wait_h, an_hour)
    return price_by_shape


def test_of_ten_thousand_jobs_at_least_three_shapes_win_a_tenth_each():
    """Among jobs that fit every shape."""
    luck = random.Random(0)
    winners = Counter(
        min(price_by_shape, key=price_by_shape.get)
        for price_by_shape in (prices(luck) for _ in range(10_000))
    )
    print(winners)
    assert sum(count >= 1000 for count in winners.values()) >= 3


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

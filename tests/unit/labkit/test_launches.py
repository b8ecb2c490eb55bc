"""How steps launch what they time, and what a record says of its clock."""

import asyncio

from tests.needs import needs

from labkit.machine import parts
from labkit.notebook import steps
from labkit.records import (
    CpuBudget,
    Device,
    Lease,
    Place,
    RankResults,
    Tier,
)

needs("torch", "what a child does is done with torch")

GPU = Device("cuda", "a GPU", 80_000, sms=132)


def sweep():
    """What a notebook would send."""


FOUND = RankResults(
    ({"own": [1.0], "labkit": [2.0], "clocks": {"labkit": "cuda events"}},),
    (GPU,),
    Tier.WHOLE_GPU,
    "none",
    "nccl",
)


def one_point(made):
    return [asyncio.run(step.run(lambda point: None)).records[0] for step in made]


def test_records_say_which_clock(monkeypatch):
    """A function with timers of its own names the clock of each (T-3); the host's is usual."""

    async def ran(*_, **__):
        return FOUND

    monkeypatch.setattr(steps, "ranks_async", ran)
    own, labkits = one_point(steps.together(sweep, ("own", "labkit")))
    assert (own.clock, labkits.clock) == ("host", "cuda events")


def test_times_in_turns_say_how_long_python_took_to_queue_them(monkeypatch):
    """What `in_turns` returns says whether the device waited for Python."""
    monkeypatch.setenv("LAB_QUICK", "1")
    said = steps.in_turns({"a": lambda: None, "b": lambda: None}, 3)
    launch = said[steps.HOW]["launch"]
    assert {name: len(times) for name, times in launch.items()} == {"a": 3, "b": 3}

    async def ran(*_, **__):
        clock = {"clock": "cuda events", "launch": {"a": [0.9, 0.9]}}
        value = {"a": [1.0, 1.0], steps.HOW: clock}
        return RankResults((value,), (GPU,), Tier.WHOLE_GPU, "none", "nccl")

    monkeypatch.setattr(steps, "ranks_async", ran)
    (record,) = one_point(steps.together(sweep, ("a",)))
    assert record.is_launch_bound


def test_a_step_is_launched_in_every_way_there_is():
    """A graph and Python on a GPU, the graph first; one way without a name on a CPU."""
    budget = CpuBudget(1.0, 1)
    on_gpu = Place(Tier.WHOLE_GPU, (GPU,), "none", budget, Lease())
    on_cpu = Place(Tier.CPU, (Device("cpu", "a CPU", 1024),), "none", budget, Lease())
    assert list(parts.launches(on_gpu).items()) == [(parts.GRAPH, True), (parts.PYTHON, False)]
    assert parts.launches(on_cpu) == {"": False}

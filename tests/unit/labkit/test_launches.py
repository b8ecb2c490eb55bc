"""How steps launch what they time, and what a record says of its clock."""

import asyncio
import importlib
import sys
import types

import pytest
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


@pytest.fixture
def torch():
    """Imported by the tests that need it, and not while they are collected."""
    return importlib.import_module("torch")


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


@pytest.mark.parametrize("has_stream", [True, False])
def test_the_whole_goes_without_autograds_threads_only_where_a_part_must(
    monkeypatch, torch, has_stream
):
    """Before torch 2.11 a part had no stream, and neither side may have threads of its own."""
    green = types.ModuleType("torch.cuda.green_contexts")
    green.GreenContext = type("GreenContext", (), {"Stream": 1} if has_stream else {})
    monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", green)
    seen = []

    def work():
        seen.append(torch.autograd.is_multithreading_enabled())

    parts._as_on_parts(torch, work)()
    assert seen == [has_stream]
    monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", None)  # no such module
    assert parts._as_on_parts(torch, work) is work


def test_a_step_is_launched_in_every_way_there_is():
    """A graph and Python on a GPU, the graph first; one way without a name on a CPU."""
    budget = CpuBudget(1.0, 1)
    on_gpu = Place(Tier.WHOLE_GPU, (GPU,), "none", budget, Lease())
    on_cpu = Place(Tier.CPU, (Device("cpu", "a CPU", 1024),), "none", budget, Lease())
    assert list(parts.launches(on_gpu).items()) == [(parts.GRAPH, True), (parts.PYTHON, False)]
    assert parts.launches(on_cpu) == {"": False}

"""The GPU's own readings: one series for a process, in every kind of record."""

import asyncio
import importlib
import sys
import types

import pytest
from tests.needs import needs

from labkit.machine import parts
from labkit.machine.readings import Readings
from labkit.machine.sensors import own_sensors
from labkit.notebook import steps
from labkit.records import (
    CpuBudget,
    Device,
    Lease,
    Place,
    RankResults,
    Tier,
    circumstances,
    to_data,
)
from labkit.run.tasks import sensed

needs("torch", "what a child does is done with torch")

GPU = Device("cuda", "a GPU", 80_000, sms=132)


@pytest.fixture
def torch():
    """Imported by the tests that need it, and not while they are collected."""
    return importlib.import_module("torch")


@pytest.fixture
def gpu(monkeypatch, torch):
    """A torch that sees one GPU, and NVML of which the power rises with every reading."""
    watts = iter(range(100, 900, 100))
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = RuntimeError
    nvml.NVML_CLOCK_SM = 1
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvml.nvmlDeviceGetClockInfo = lambda *_: 1980
    nvml.nvmlDeviceGetPowerUsage = lambda _: next(watts) * 1000
    nvml.nvmlDeviceGetTemperature = lambda *_: 33
    nvml.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=87)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = types.SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    own_sensors.cache_clear()
    yield torch
    own_sensors.cache_clear()


def test_whatever_a_child_does_its_sensors_are_read(gpu):
    """A loop of labkit's reads between its calls, any other task is read at its end."""
    said = []
    with sensed(gpu, said.append):
        own_sensors(gpu).read()
    (message,) = said
    assert message["sensors"]["power_w"] == [100, 200]
    assert message["sensors"]["busy_pct"] == 87
    readings = Readings(1)
    readings.take(0, {"type": "hello", "device": to_data(GPU), "versions": {"torch": "2"}})
    readings.take(0, message)
    assert circumstances(readings)["sensors"]["sm_clock_mhz"] == [1980, 1980]
    assert readings.measurement("work").sensed == "1980–1980 MHz, 100–200 W, 33–33 °C"


def sweep():
    """What a notebook would send."""


FOUND = RankResults(
    ({"own": [1.0], "labkit": [2.0], "clocks": {"labkit": "cuda events"}},),
    (GPU,),
    Tier.WHOLE_GPU,
    "none",
    "nccl",
    sensors={"power_w": [100, 200]},
)


def one_point(made):
    return [asyncio.run(step.run(lambda point: None)).records[0] for step in made]


def test_records_say_which_clock_and_what_the_sensors_read(monkeypatch):
    """A function with timers of its own names the clock of each (T-3); the host's is usual."""

    async def ran(*_, **__):
        return FOUND

    monkeypatch.setattr(steps, "ranks_async", ran)
    own, labkits = one_point(steps.together(sweep, ("own", "labkit")))
    assert (own.clock, labkits.clock) == ("host", "cuda events")
    (memory,) = one_point(steps.apart(sweep, {"a": {}}, value=lambda _: 1.0))
    assert own.sensed == memory.sensed == "100–200 W"


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

"""Steps that share one run, counted points, and the optional sections' way out."""

import asyncio
from dataclasses import dataclass

import pytest
from tests.needs import needs

from labkit.errors import NotMeasured, StudentError
from labkit.machine import parts
from labkit.notebook import steps
from labkit.panel.experiment import Experiment, Look
from labkit.panel.panel import Panel
from labkit.records import CpuBudget, Device, Lease, Place, RankResults, Tier

CPU = Device("cpu", "a CPU", 1024)


@dataclass
class Ranks:
    """Stands in for the children: says what each rank returned, and counts the runs."""

    values: tuple
    runs: int = 0

    async def __call__(self, function, *, n, on, share_device, arguments):
        self.runs += 1
        return RankResults(self.values, (CPU,) * n, Tier.CPU, "loopback", "gloo")


def sweep():
    """What a notebook would send."""


def points_of(shared_steps):
    """Run the steps one after another, as the runner does."""

    async def run():
        return [await step.run(lambda point: None) for step in shared_steps]

    return asyncio.run(run())


def test_one_run_serves_all_its_steps(monkeypatch):
    """The children run once; each round counts the slowest rank; a second run measures anew."""
    ranks = Ranks(({"a": [1.0, 2.0], "b": [4.0, 4.0]}, {"a": [3.0, 1.0], "b": [1.0, 6.0]}))
    monkeypatch.setattr(steps, "ranks_async", ranks)
    shared_steps = steps.together(sweep, {"a": 1, "b": 2}, value=lambda m: m.median_s, n=2)
    points = points_of(shared_steps)
    assert [point.records[0].samples_s for point in points] == [(3.0, 2.0), (4.0, 6.0)]
    assert ranks.runs == 1
    points_of(shared_steps)
    assert ranks.runs == 2


def test_values_may_be_drawn_over_the_first_and_facts_are_kept(monkeypatch):
    """`relative` divides by the first spot's value; counts and errors are no seconds."""
    monkeypatch.setattr(steps, "ranks_async", Ranks(({"a": {"mib": 2.0}, "b": {"mib": 5.0}},)))
    shared_steps = steps.together(
        sweep, {"a": 1, "b": 2}, value="mib", relative=True, link="by hand"
    )
    points = points_of(shared_steps)
    assert [point.value for point in points] == [1.0, 2.5]
    assert (points[1].records[0].setting["mib"], points[1].records[0].samples_s) == (5.0, ())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "`sweep` returned nothing for a"),
        ({}, "`sweep` returned nothing for a"),
        ({"b": [1.0]}, "`sweep` returned nothing for a"),
        ({"a": {"b": 1.0}}, "no fact `mib`"),
    ],
)
def test_what_is_missing_is_said_in_words(monkeypatch, returned, message):
    """A function that is not written yet, or returns something else than what is drawn."""
    monkeypatch.setattr(steps, "ranks_async", Ranks((returned,)))
    with pytest.raises(NotMeasured, match=message):
        points_of(steps.together(sweep, {"a": 1}, value="mib"))


def test_a_computed_point_has_no_device():
    """A count carries no record; a function that is not written ends in a sentence, no trace."""
    (point,) = points_of([steps.computed_step("n=4", 4, lambda n: 2 * (n - 1) / n, 4)])
    assert (point.value, point.records) == (1.5, ())
    with pytest.raises(StudentError, match=r"TypeError.*in rows"):
        points_of([steps.computed_step("rows", 1, lambda: None)])


def test_records_say_which_clock(monkeypatch):
    """A function with timers of its own names the clock of each (T-3); the host's is usual."""
    value = {"own": [1.0], "labkit": [2.0], "clocks": {"labkit": "cuda events"}}
    monkeypatch.setattr(steps, "ranks_async", Ranks((value,)))
    own_point, labkit_point = points_of(steps.together(sweep, ("own", "labkit")))
    assert (own_point.records[0].clock, labkit_point.records[0].clock) == ("host", "cuda events")


def test_times_in_turns_say_how_long_python_took_to_queue_them(monkeypatch):
    """What `in_turns` returns says whether the device waited for Python."""
    needs("torch", "what a child does is done with torch")
    monkeypatch.setenv("LAB_QUICK", "1")
    launch = steps.in_turns({"a": lambda: None, "b": lambda: None}, 3)[steps.HOW]["launch"]
    assert {name: len(times) for name, times in launch.items()} == {"a": 3, "b": 3}
    clock = {"clock": "cuda events", "launch": {"a": [0.9, 0.9]}}
    monkeypatch.setattr(steps, "ranks_async", Ranks(({"a": [1.0, 1.0], steps.HOW: clock},)))
    (point,) = points_of(steps.together(sweep, ("a",)))
    assert point.records[0].is_launch_bound


def test_a_step_is_launched_in_every_way_there_is():
    """A graph and Python on a GPU, the graph first; one way without a name on a CPU."""
    gpu = Device("cuda", "a GPU", 80_000, sms=132)
    on_gpu, on_cpu = (
        Place(Tier.WHOLE_GPU, (device,), "none", CpuBudget(1.0, 1), Lease())
        for device in (gpu, CPU)
    )
    assert list(parts.launches(on_gpu).items()) == [(parts.GRAPH, True), (parts.PYTHON, False)]
    assert parts.launches(on_cpu) == {"": False}


@pytest.mark.parametrize(("optional", "points"), [("0", 0), ("1", 1)])
def test_a_headless_run_measures_optional_sections_only_when_asked(
    monkeypatch, tmp_path, optional, points
):
    """Without LAB_OPTIONAL an optional panel measures nothing."""
    monkeypatch.setenv("LAB_HEADLESS", "1")
    monkeypatch.setenv("LAB_OPTIONAL", optional)
    only_step = (steps.computed_step("a", 1, lambda: 1.0),)
    panel = Panel(Experiment("X-1", "t", "q", "x", "y", only_step, look=Look.OPTIONAL), tmp_path)
    assert len(asyncio.run(panel.settle()).points) == points

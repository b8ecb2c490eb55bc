"""Copies of one job that share a device, all together and one alone in turns.

Every copy is a process. In one window all of them work, in the next only the first; windows change
places from pair to pair, so that what drifts hurts both alike. One run shows what neighbours cost
a call, and what all copies do together.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from labkit.arguments import public, refuse_beside
from labkit.evidence.evidence import Point
from labkit.machine.readings import Readings
from labkit.machine.sensors import own_sensors
from labkit.measuring import sharing
from labkit.panel.experiment import MeasuringStep, Report
from labkit.records import Measurement, circumstances
from labkit.run.jobs import is_quick, make_job
from labkit.run.tasks import RANK, meet, quiet_wait

WARM_CALLS = 5
PAIRS, QUICK_PAIRS = 20, 5
ORDER = ("together", "alone", "alone", "together")  # two pairs of windows, again and again
WINDOW_S = 0.15
WORKED = 0.9  # of a window; the rest is for the last call to end
STEP_S = 20.0  # what a step says it takes
Records = tuple[Measurement, Measurement]
CALLS_A_WINDOW = 2  # of each copy while all work, or a window says nothing about rates


@dataclass(frozen=True, kw_only=True)
class Turns(sharing.Shared):
    """What copies did, window by window.

    Attributes:
        together: calls of all copies per second, one value a window.
        alone: calls of the first copy per second while the others rested, paired with `together`.
        crowded: calls of the first copy per second while all worked.
    """

    together: tuple[float, ...]
    alone: tuple[float, ...]
    crowded: tuple[float, ...]

    @property
    def gain(self) -> float:
        """Work done together over the work of one alone in the same time."""
        return statistics.median(self.together) / statistics.median(self.alone)

    @property
    def slowdown(self) -> float:
        """How much longer one call takes with busy neighbours."""
        return statistics.median(self.alone) / statistics.median(self.crowded)

    def series(self, name: str, ranks: int) -> Measurement:
        """The rates of one kind of window as a record of seconds per call."""
        rates: Sequence[float] = getattr(self, name)
        return self.record(name, tuple(1 / rate for rate in rates), ranks=ranks)


async def turns_async(
    function: Callable[..., Any],
    way: sharing.Way | str,
    *,
    copies: int,
    sms_per_copy: int | None = None,
    pairs: int | None = None,
    timeout_s: float = 180.0,
    **arguments: Any,
) -> Turns:
    """Run copies in windows: all together, then one alone, and so on.

    Args:
        function: as for `labkit.measure`; it returns the function to be called.
        way: how the copies share the device.
        copies: how many.
        sms_per_copy: for SM partitions.
        pairs: how many pairs of windows; 20, or 5 under LAB_QUICK.
        timeout_s: end the copies after this long.
        arguments: passed to the function.

    Raises:
        LabError: the way does not work here, or a copy failed.
    """
    told = sharing.Copies(sharing.way_of(way), copies, sms_per_copy, in_turns=True)
    counted = in_windows(function, copies, pairs or (QUICK_PAIRS if is_quick() else PAIRS))
    job = make_job("call", [counted], arguments, group=False)
    return _turns(told.way, await sharing.run_copies(job, told, timeout_s))


def _turns(way: sharing.Way, readings: Readings) -> Turns:
    values = [rank.facts["value"] for rank in readings.ranks]
    together = zip(*(value["together"] for value in values), strict=True)
    return Turns(
        way=way,
        copies=len(values),
        together=tuple(sum(rates) for rates in together),
        alone=tuple(values[0]["alone"]),
        crowded=tuple(values[0]["together"]),
        cpu_per_copy=tuple(value["cpu_per_copy"] for value in values),
        **circumstances(readings),
    )


def in_windows(function: Callable[..., Any], copies: int, pairs: int) -> Callable[..., Any]:
    """The function's work, called in windows and counted."""

    def in_turns(**arguments: Any) -> Any:
        import os

        from labkit.notebook.windows import count_in_windows
        from labkit.run.tasks import FOLDER

        return count_in_windows(function(**arguments), os.environ[FOLDER], copies, pairs)

    return in_turns


def count_in_windows(
    work: Callable[[], Any], meeting: str, copies: int, pairs: int
) -> dict[str, Any]:
    """One copy: warm up, meet the others, then work in its windows; in a child only.

    Returns:
        The calls per second of each window, and the CPU used while all worked.
    """
    import torch

    settle, number, sensors = quiet_wait(torch), int(os.environ[RANK]), own_sensors(torch)
    start, window_s = _meet(Path(meeting), number, copies, _warm(work, settle))
    rates: dict[str, list[float]] = {"together": [], "alone": []}
    cpu = 0.0
    for window, name in enumerate(islice(cycle(ORDER), 2 * pairs)):
        if name == "alone" and number:
            continue
        begins = start + window * window_s
        time.sleep(max(0.0, begins - time.monotonic()))
        rate, used = calls_per_s(work, settle, begins + WORKED * window_s)
        rates[name].append(rate)
        cpu += used if name == "together" else 0.0
        sensors.read()
    return {**rates, "cpu_per_copy": cpu / pairs}


def _warm(work: Callable[[], Any], settle: Callable[[], Any]) -> float:
    """Seconds per call, the slow first calls left out."""
    times = []
    for _ in range(WARM_CALLS):
        begun = time.monotonic()
        work()
        settle()
        times.append(time.monotonic() - begun)
    return min(times)


def calls_per_s(
    work: Callable[[], Any], settle: Callable[[], Any], ends: float
) -> tuple[float, float]:
    """Calls per second until `ends` (at least one call), and CPU seconds per second."""
    begun, cpu, calls = time.monotonic(), time.process_time(), 0
    while calls == 0 or time.monotonic() < ends:
        work()
        settle()
        calls += 1
    wall = time.monotonic() - begun
    return calls / wall, (time.process_time() - cpu) / wall


def _meet(folder: Path, number: int, copies: int, typical_s: float) -> tuple[float, float]:
    """Wait until every copy is warm; the first says when the windows begin and how long they are.

    The monotonic clock is the same for all processes of a Linux machine.
    """
    meet(folder, copies, number)
    said = folder / "start.json"
    if number == 0:
        window_s = max(WINDOW_S, CALLS_A_WINDOW * copies * typical_s)
        draft = folder / "start.part"
        draft.write_text(json.dumps([time.monotonic() + 0.2, window_s]))
        draft.replace(said)
    while not said.exists():
        time.sleep(0.002)
    start, window_s = json.loads(said.read_text())
    return start, window_s


@public
def gain_step(
    label: str,
    x: float,
    function: Callable[..., Any],
    way: sharing.Way | str,
    *,
    series: str = "",
    **options: Any,
) -> MeasuringStep:
    """A step that draws how much more work all copies do together than one alone.

    Args:
        label: the point's name on the axis.
        x: where it is drawn.
        function: as for `labkit.measure`.
        way: how the copies share the device.
        series: which series of the plot the point belongs to.
        options: as for `turns_async`, and the function's own arguments.
    """
    turns = _prepared("gain_step", function, way, options)
    return _turns_step(label, x, turns, _gain_point, series)


@public
def crowd_step(
    label: str, x: float, function: Callable[..., Any], way: sharing.Way | str, **options: Any
) -> MeasuringStep:
    """A step that draws how much longer a call takes while neighbours work; see `gain_step`."""
    turns = _prepared("crowd_step", function, way, options)
    return _turns_step(label, x, turns, _crowd_point)


def _prepared(
    call: str, function: Callable[..., Any], way: sharing.Way | str, options: Mapping[str, Any]
) -> Callable[[], Awaitable[Turns]]:
    chosen = sharing.way_of(way)
    refuse_beside(call, turns_async, function, options)
    return lambda: turns_async(function, chosen, **options)


def _turns_step(
    label: str,
    x: float,
    measured: Callable[[], Awaitable[Turns]],
    drawn: Callable[[Turns], tuple[float, Records]],
    series: str = "",
) -> MeasuringStep:
    async def run(_: Report) -> Point:
        value, records = drawn(await measured())
        bound = " (CPU-bound)" if any(record.is_cpu_bound for record in records) else ""
        return Point(x, label + bound, value, records, series=series)

    return MeasuringStep(label, run, STEP_S)


def _gain_point(found: Turns) -> tuple[float, Records]:
    return found.gain, (found.series("alone", 1), found.series("together", found.copies))


def _crowd_point(found: Turns) -> tuple[float, Records]:
    return found.slowdown, (found.series("crowded", found.copies), found.series("alone", 1))

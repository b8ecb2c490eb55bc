"""Copies of one job that share a device, all together and one alone in turns.

Every copy is a process. In one window all of them work, in the next only the first; windows change
places from pair to pair, so that what drifts hurts both alike. One run shows what neighbours cost
a call, and what all copies do together.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.arguments import public
from labkit.evidence.evidence import Point
from labkit.machine.readings import Readings
from labkit.measuring import sharing
from labkit.panel.experiment import MeasuringStep, Report
from labkit.records import Borrowed, Device, Measurement, Tier, now_text
from labkit.run.jobs import is_quick, make_job
from labkit.run.tasks import RANK, meet, quiet_wait

WARM_CALLS = 5
PAIRS = 20
WINDOW_S = 0.15
STEP_S = 20.0  # what a step says it takes
Records = tuple[Measurement, Measurement]
CALLS_A_WINDOW = 2  # of each copy while all work, or a window says nothing about rates


@dataclass(frozen=True)
class Turns:
    """What copies did, window by window.

    Attributes:
        together: calls of all copies per second, one value a window.
        alone: calls of the first copy per second while the others rested, paired with `together`.
        crowded: calls of the first copy per second while all worked.
        cpu_per_copy: CPU seconds per second of each copy while all worked.
    """

    way: sharing.Way
    copies: int
    together: tuple[float, ...]
    alone: tuple[float, ...]
    crowded: tuple[float, ...]
    cpu_per_copy: tuple[float, ...]
    devices: tuple[Device, ...]
    tier: Tier
    versions: Mapping[str, str]
    borrowed: Borrowed | None = None

    @property
    def is_cpu_bound(self) -> bool:
        """Whether the copies used up the CPU budget, so that the GPU cannot be blamed."""
        return sum(self.cpu_per_copy) >= 0.9 * self.devices[0].cpu_cores

    @property
    def gain(self) -> float:
        """Work done together over the work of one alone in the same time."""
        return statistics.median(self.together) / statistics.median(self.alone)

    @property
    def slowdown(self) -> float:
        """How much longer one call takes with busy neighbours."""
        return statistics.median(self.alone) / statistics.median(self.crowded)

    def record(self, name: str, rates: Sequence[float], ranks: int) -> Measurement:
        """A series of rates as a record of seconds per call."""
        return Measurement(
            name=name,
            samples_s=tuple(1 / rate for rate in rates),
            tier=self.tier,
            devices=self.devices[:ranks],
            clock="host",
            cold=False,
            ranks=ranks,
            link="none: the copies do not talk",
            cpu_per_copy=statistics.mean(self.cpu_per_copy),
            setting={"way": str(self.way), "copies": self.copies},
            versions=self.versions,
            date=now_text(),
            borrowed=self.borrowed,
        )

    def __str__(self) -> str:
        bound = ", CPU-bound" if self.is_cpu_bound else ""
        cpu = statistics.mean(self.cpu_per_copy)
        return (
            f"{self.copies} copies, {self.way}: {self.gain:.2f} times the work of one alone; "
            f"a call takes {self.slowdown:.2f} times as long; {cpu:.2f} CPU cores per copy{bound}"
        )


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
    chosen = sharing.Way(way)
    counted = in_windows(function, copies, pairs or (5 if is_quick() else PAIRS))
    job = make_job("call", [counted], arguments, group=False)
    told = sharing.Copies(chosen, copies, sms_per_copy, in_turns=True)
    return _turns(chosen, await sharing.run_copies(job, told, timeout_s))


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
        devices=readings.devices,
        tier=readings.tier,
        versions=readings.ranks[0].versions,
        borrowed=readings.borrowed,
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

    settle, number = quiet_wait(torch), int(os.environ[RANK])
    typical = _warm(work, settle)
    start, window_s = _meet(Path(meeting), number, copies, typical)
    rates: dict[str, list[float]] = {"together": [], "alone": []}
    cpu = 0.0
    for window in range(2 * pairs):
        name = "together" if (window % 2 == 0) == (window // 2 % 2 == 0) else "alone"
        begins = start + window * window_s
        if name == "alone" and number:
            continue
        time.sleep(max(0.0, begins - time.monotonic()))
        rate, used = _count(work, settle, begins + 0.9 * window_s)
        rates[name].append(rate)
        cpu += used if name == "together" else 0.0
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


def _count(work: Callable[[], Any], settle: Callable[[], Any], ends: float) -> tuple[float, float]:
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
    measured = functools.partial(turns_async, function, way, **options)
    return _turns_step(label, x, measured, _gain_point, series)


@public
def crowd_step(
    label: str, x: float, function: Callable[..., Any], way: sharing.Way | str, **options: Any
) -> MeasuringStep:
    """A step that draws how much longer a call takes while neighbours work; see `gain_step`."""
    return _turns_step(label, x, lambda: turns_async(function, way, **options), _crowd_point)


def _turns_step(
    label: str,
    x: float,
    measured: Callable[[], Awaitable[Turns]],
    drawn: Callable[[Turns], tuple[float, Records]],
    series: str = "",
) -> MeasuringStep:
    async def run(_: Report) -> Point:
        found = await measured()
        value, records = drawn(found)
        return Point(x, label + _bound(found), value, records, series=series)

    return MeasuringStep(label, run, STEP_S)


def _gain_point(found: Turns) -> tuple[float, Records]:
    together = found.record("together", found.together, found.copies)
    return found.gain, (found.record("alone", found.alone, 1), together)


def _crowd_point(found: Turns) -> tuple[float, Records]:
    crowded = found.record("crowded", found.crowded, found.copies)
    return found.slowdown, (crowded, found.record("alone", found.alone, 1))


def _bound(found: Turns) -> str:
    return " (CPU-bound)" if found.is_cpu_bound and found.tier is not Tier.CPU else ""

"""The steps that fill an experiment: timed, compared, several out of one run, shared, computed.

What is compared must be alive at the same time, so a sweep is measured in turns in one crew of
children (`together`, with `in_turns` inside the child). Counts need no child (`computed_step`).
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.arguments import name_of, public, refuse_arguments, refuse_band, split_options
from labkit.errors import NotMeasured, StudentError, WrongArgument
from labkit.evidence.evidence import Point
from labkit.measuring.measure import compare_async, measure_async, ranks_async
from labkit.measuring.sharing import Turns, Way, turns_async, way_of
from labkit.panel.experiment import MeasuringStep, Report, Value, reader
from labkit.records import Comparison, Measurement, RankResults, counted_record
from labkit.run.jobs import BUDGET_S, is_quick
from labkit.run.source import describe_error, error_sentence
from labkit.timing import SideBySide, Work, make_clock, timing_loop, warm_up

FACTS = "facts"  # what a function found out beside its times, kept with every label
CLOCKS = "clocks"  # by label, of a function that times by itself with another clock than the host's
HOW = "measured how"  # beside the labels of what `in_turns` returns


@public
def timed_step(
    label: str,
    x: float,
    function: Callable[..., Any],
    *,
    value: Value = None,
    seconds: float = BUDGET_S,
    series: str = "",
    **options: Any,
) -> MeasuringStep:
    """A step that times one function.

    Args:
        label: the point's name on the axis.
        x: where it is drawn.
        function: as for `labkit.measure`.
        value: what is drawn of the record; milliseconds by default.
        seconds: the time budget.
        series: which series of the plot the point belongs to.
        options: as for `labkit.measure` (ranks, dtype, flops ...), and the function's arguments.
    """
    measure_options, arguments = split_options("timed_step", measure_async, function, options)
    read_value = reader(value)

    def point(record: Measurement) -> Point:
        return Point(x, label, read_value(record), (record,), series=series)

    measure_options |= {"budget_s": seconds, "arguments": arguments}
    return _live_step(label, seconds, point, partial(measure_async, function, **measure_options))


def _live_step(
    label: str, seconds: float, point: Callable[[Any], Point], measured: Callable[..., Any]
) -> MeasuringStep:
    """A step whose point is drawn while it is measured."""

    async def run(report: Report) -> Point:
        return point(await measured(on_update=lambda record: report(point(record))))

    return MeasuringStep(label, run, seconds)


@public
def compared_step(
    label: str,
    x: float,
    a: Callable[..., Any],
    b: Callable[..., Any],
    *,
    band: tuple[float, float] = (0.0, float("inf")),
    seconds: float = 2 * BUDGET_S,
    series: str = "",
    **options: Any,
) -> MeasuringStep:
    """A step that compares two functions in turns and draws the ratio of their times."""
    refuse_band(band)
    compare_options, arguments = split_options("compared_step", compare_async, a, options)
    refuse_arguments("compared_step", b, arguments)

    def point(record: Comparison) -> Point:
        last = record.looks[-1] if record.looks else None
        low, high = (last.low, last.high) if last else (None, None)
        return Point(x, label, record.ratio, (record.a, record.b), record, low, high, series)

    compare_options |= {"band": band, "budget_s": seconds, "arguments": arguments}
    return _live_step(label, seconds, point, partial(compare_async, a, b, **compare_options))


@public
def in_turns(works: Mapping[str, Work], times: int) -> dict[str, list[float]]:
    """Time several functions in turns; call it inside a function that `together` sends to a child.

    As in `labkit.compare`, every call finds an emptied L2 cache (on a GPU), and each work first
    runs until its time is stable; several ranks, which must all make the same calls, warm up five
    times.

    Args:
        works: what is timed, by label; with several ranks each call starts at a barrier.
        times: how many rounds, after the warm-up, which is not counted.

    Returns:
        Seconds per call, by label, in order of rounds; and under `HOW` the circumstances.
    """
    if not works or not all(map(callable, works.values())):
        raise WrongArgument(
            "in_turns takes a dictionary of functions without arguments for `works`, by label: "
            f'{{"mine": lambda: a @ b}}, not {works!r:.60}.'
        )
    import torch

    clock = make_clock(torch, cold=True)
    warm = {name: warm_up(work, clock, fixed=is_quick()) for name, work in works.items()}
    samples: dict[str, Any] = {name: [] for name in works}
    launch: dict[str, list[float]] = {name: [] for name in works}
    cores = SideBySide(torch)
    for turns in timing_loop(works, range(times), clock):
        cores.measure()
        for turn in turns:
            samples[turn.name].append(turn.seconds)
            launch[turn.name].append(turn.launch_s)
    circumstances: dict[str, Any] = {"clock": clock.name, "cold": clock.is_cold, "warmup": warm}
    circumstances |= {"launch": launch, "side_by_side": cores.summary()}
    return {**samples, HOW: circumstances}


def _record_of(results: RankResults, name: str, label: str, link: str | None) -> Measurement:
    """The record of one label in the results of a run."""
    rank_values = [
        value.get(label) if isinstance(value, dict) else None for value in results.values
    ]
    if any(value is None for value in rank_values):
        raise NotMeasured(f"`{name}` returned nothing for {label}: is your part of it written?")
    circumstances, clocks = (results.values[0].get(key, {}) for key in (HOW, CLOCKS))
    facts = {"label": label, **results.values[0].get(FACTS, {})}
    return counted_record(
        name,
        results,
        dict(rank_values[0]) if isinstance(rank_values[0], dict) else facts,
        samples_s=_slowest_seconds(rank_values),
        clock=clocks.get(label, circumstances.get("clock", "host")),
        cold=circumstances.get("cold", False),
        warmup_s=tuple(circumstances.get("warmup", {}).get(label, ())),
        launch_s=tuple(circumstances.get("launch", {}).get(label, ())),
        side_by_side=circumstances.get("side_by_side", {}),
        ranks=len(results.values),
        link=link or results.link,
    )


def _slowest_seconds(rank_values: list[Any]) -> tuple[float, ...]:
    """The slowest rank's seconds in every round; empty where facts were returned, not times."""
    if isinstance(rank_values[0], dict):
        return ()
    return tuple(max(turn) for turn in zip(*rank_values, strict=True))


@public
def together(
    function: Callable[..., Any],
    spots: Mapping[str, float] | Sequence[str],
    *,
    value: Value = None,
    n: int = 1,
    seconds: float = BUDGET_S,
    link: str | None = None,
    relative: bool = False,
    series: Mapping[str, str] | None = None,
    on: str | None = None,
    share_device: bool = False,
    **arguments: Any,
) -> tuple[MeasuringStep, ...]:
    """One step per spot, all out of one run of a function in a child (or in `n` ranks).

    Every call is a process of its own: for memory, which a process never gives back, call it once
    for each spot.

    Args:
        function: returns per label a list of seconds (what `in_turns` returns) or a dict of facts.
        spots: label and where it is drawn on the x axis; labels alone where there are no numbers.
        value: what is drawn of the record: a fact by its name, or what a function reads of it;
            milliseconds by default.
        n: how many ranks.
        seconds: about how long the run takes.
        link: how the ranks talk, where the function does not use the default group.
        relative: draw every value over the first spot's.
        series: label and the series it belongs to, where there are several.
        on: the shape to borrow, on a server that borrows; the course's usual one by default.
            "cpu" is the container's CPU on every server.
        share_device: with fewer GPUs or slices than ranks, share them instead of going to the CPU.
        arguments: passed to the function.
    """
    spots = _numbered_spots(spots)
    refuse_arguments("together", function, arguments)
    read_value = reader(value)
    run = partial(ranks_async, function, n=n, on=on, share_device=share_device, arguments=arguments)
    shared_run = _SharedRun(run, name_of(function), next(iter(spots), ""), link)

    def step(label: str, x: float) -> MeasuringStep:
        async def read(_: Report) -> Point:
            record = await shared_run.record(label)
            base = read_value(shared_run.first_record()) if relative else 1.0
            group = (series or {}).get(label, "")
            return Point(x, label, read_value(record) / base, (record,), series=group)

        return MeasuringStep(label, read, seconds if label == shared_run.first_label else 0.0)

    return tuple(step(label, x) for label, x in spots.items())


@dataclass
class _SharedRun:
    """One run of a function that gives the results of all labels; the first label runs it."""

    run: Callable[[], Awaitable[RankResults]]
    function_name: str
    first_label: str
    link: str | None
    _results: RankResults | None = None

    async def record(self, label: str) -> Measurement:
        """Return the record of a label, after the run that it needs."""
        if label == self.first_label or self._results is None:
            self._results = await self.run()
        return _record_of(self._results, self.function_name, label, self.link)

    def first_record(self) -> Measurement:
        """Return the first label's record of the last run, which `record` has made."""
        assert self._results is not None
        return _record_of(self._results, self.function_name, self.first_label, self.link)


def _numbered_spots(spots: Mapping[str, float] | Sequence[str]) -> Mapping[str, float]:
    """The place of each label; labels without places are numbered in their order."""
    labels = list(spots)
    places = list(spots.values()) if isinstance(spots, Mapping) else list(range(len(labels)))
    are_labels = bool(labels) and all(isinstance(label, str) for label in labels)
    if not are_labels or not all(isinstance(place, int | float) for place in places):
        raise WrongArgument(
            f'together takes labels for `spots`, as ("a", "b"), or labels with their x, as '
            f'{{"a": 1, "b": 2}}, not {spots!r:.60}.'
        )
    return dict(zip(labels, map(float, places), strict=True))


@public
def computed_step(
    label: str, x: float, function: Callable[..., float], *arguments: Any
) -> MeasuringStep:
    """A point that is counted or computed, not measured; the evidence says so.

    It runs in this process; what the student's code raises becomes a `StudentError`.
    """

    def computed() -> float:
        try:
            return float(function(*arguments))
        except Exception as error:  # outermost frame around the student's function
            sentence = error_sentence(describe_error(error), f"in {label}")
            raise StudentError(sentence) from error

    async def run(_: Report) -> Point:
        return Point(x, label, await asyncio.to_thread(computed))

    return MeasuringStep(label, run, 1.0)


SHOWS = {"gain": ("alone", "together"), "slowdown": ("crowded", "alone"), "rate": ()}
"""Windows whose rates are compared, the second over the first; none for the rates themselves."""


def _value_and_records(
    turns: Turns, windows: Sequence[str]
) -> tuple[float, tuple[Measurement, ...]]:
    if not windows:
        facts = {"calls per second": list(turns.each_per_s)}
        return sum(turns.each_per_s), (turns.record("calls of all copies", facts=facts),)
    base, rate = (statistics.median(getattr(turns, name)) for name in windows)
    return rate / base, tuple(map(turns.series, windows))


@public
def shared_step(
    label: str,
    x: float,
    function: Callable[..., Any],
    way: Way | str,
    *,
    shows: str = "gain",
    series: str = "",
    **options: Any,
) -> MeasuringStep:
    """A step in which copies of a function share a device, all together and one alone in turns.

    Args:
        label: the point's name on the axis.
        x: where it is drawn.
        function: as for `labkit.measure`.
        way: how the copies share the device.
        shows: "gain", the work of all together over that of one alone; "slowdown", how much longer
            a call takes while neighbours work; "rate", the calls per second of all together.
        series: which series of the plot the point belongs to.
        options: as for `turns_async`, and the function's own arguments.
    """
    if shows not in SHOWS:
        raise WrongArgument(f"shared_step shows {' or '.join(SHOWS)}, not {shows!r:.60}.")
    chosen_way = way_of(way)
    split_options("shared_step", turns_async, function, options)

    async def run(_: Report) -> Point:
        value, records = _value_and_records(
            await turns_async(function, chosen_way, **options), SHOWS[shows]
        )
        bound = " (CPU-bound)" if any(record.is_cpu_bound for record in records) else ""
        return Point(x, label + bound, value, records, series=series)

    return MeasuringStep(label, run, 2 * BUDGET_S)

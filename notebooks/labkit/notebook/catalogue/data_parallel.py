"""Notebook 4: gradients of several ranks, what they cost to reduce, and when a rank is worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import AskedPoint, Curves, Experiment, Look, Points, PublishedRow

WHOLE_GRADIENT, ONE_NUMBER = "the whole gradient", "one number"
ALL_REDUCE, REDUCE_SCATTER = "all-reduce", "reduce-scatter"


def ideal(points: Points) -> Curves:
    """The whole work shared by n, in steps small enough for any scale."""
    max_ranks = max(2.0, *(point.x for point in points))
    ranks = [max_ranks ** (step / 40) for step in range(41)]
    return {"ideal: 1/n": [(n, 1 / n) for n in ranks]}


def ends(points: Points, optimizer: str) -> tuple[float, float]:
    """The last loss of the run that adds, and that of the averaged run at the same step."""
    added = reading.at_the_end(f"{optimizer}, added")(points)
    averaged = (
        point for point in points if point.series == f"{optimizer}, averaged" and point.x == added.x
    )
    return added.value, next(averaged).value


def added_at_the_end(points: Points) -> Data:
    """The last loss with added gradients over that with averaged ones, by optimizer."""
    both = {name: ends(points, name) for name in ("Adam", "SGD")}
    suffix = "added over averaged, at the end"
    return {f"loss with {name}, {suffix}": [a / b] for name, (a, b) in both.items()}


def views(points: Points) -> Point:
    """What the views need, at the number of ranks at which the copies come first."""
    return next(p for p in points if p.series == "views" and p.label == points[0].label)


def at_the_small_batch(points: Points) -> Data:
    """Seconds of a step with the smallest batch, by what is sent."""
    least = min(point.x for point in points)
    series: dict[str, Sequence[float]] = {
        point.series: point.records[0].samples_s for point in points if point.x == least
    }
    if counts := cast("Mapping[str, int]", reading.facts(points[0]).get("sent", {})):
        numbers = counts[WHOLE_GRADIENT] / counts[ONE_NUMBER]
        series["numbers of the whole gradient over one number"] = [numbers]
    return series


def by_message(points: Points) -> Data:
    """Seconds of each message under its label, and whether the longest had its bytes."""
    series = {**reading.by_label(points)}
    if megabytes := cast("Mapping[str, float]", reading.facts(points[0]).get("sent", {})):
        longest = points[-1]
        share = megabytes[longest.label] / longest.x
        series["share of its bytes that the longest message had"] = [share]
    return series


def longest_all_reduce(points: Points) -> Point:
    """The all-reduce of the longest message."""
    reduced = [point for point in points if point.series == ALL_REDUCE]
    return sorted(reduced, key=lambda point: point.x)[-1]  # other ways are measured first


def by_bytes_on_the_bus(points: Points) -> Data:
    """Seconds of the longest all-reduce and reduce-scatter, per share that each must send.

    An all-reduce must send each number twice as often.  Beside them, whether every collective's
    first result was right, and the longest message had the bytes of its label.
    """
    longest = max(point.x for point in points)
    samples = {point.series: point.records[0].samples_s for point in points if point.x == longest}
    series: dict[str, Sequence[float]] = {
        f"{ALL_REDUCE} per byte on the bus": [seconds / 2 for seconds in samples[ALL_REDUCE]],
        f"{REDUCE_SCATTER} per byte on the bus": samples[REDUCE_SCATTER],
    }
    known_facts = next(p for p in points if p.series == ALL_REDUCE).records[0].setting
    series["results that are right"] = [float(known_facts["right"])]
    megabytes = cast("float", known_facts["longest"])
    series["share of its bytes that the longest message had"] = [megabytes / longest]
    return series


def without_the_bytes(points: Points) -> Point:
    """At the smallest batch: the step that sends one number."""
    point_of_series = {point.series: point for point in points if point.x == points[0].x}
    return replace(point_of_series[WHOLE_GRADIENT], value=point_of_series[ONE_NUMBER].value)


def percent_of_a_step(points: Points) -> tuple[float, float]:
    """The scale of percents of a step: its height, and the change for a percent less."""
    step_height = next(point.value for point in points if point.series == WHOLE_GRADIENT)
    return step_height, -step_height / 100


def percent_of_sending(points: Points) -> tuple[float, float]:
    """The scale of percents of sending: the height without buckets, and a percent's change."""
    took = {point.label: point.value for point in points}
    return took["flat"], (took["no sync"] - took["flat"]) / 100


def with_buckets(points: Points) -> Point | None:
    """The step with buckets; None where there is no sending that buckets could hide."""
    return reading.at("buckets")(points) if percent_of_sending(points)[1] < 0 else None


EXPERIMENTS = (
    Experiment(
        key="DP-1",
        title="Distance to the whole batch's gradient",
        question="What is the relative error of one rank's own gradient?",
        x_label="which gradient",
        y_label="relative difference (0 is drawn as 10⁻¹²)",
        unit="",
        asked=reading.at("one rank's own"),
        look=Look.BARS | Look.LOG_Y,
    ),
    Experiment(
        key="DP-12",
        title="Two ranks: gradients averaged and added, with SGD and with Adam",
        question="With Adam, how many times as large is the loss with adding as with averaging?",
        x_label="training step",
        y_label="loss",
        unit="x",
        asked=AskedPoint(
            reading.at_the_end("Adam, added"), lambda points: (0.0, ends(points, "Adam")[1]), "loss"
        ),
        data=added_at_the_end,
        look=Look.LOG_Y,
    ),
    Experiment(
        key="DP-2",
        title="Time of an all-reduce",
        question="How many ms do 16 MB take?",
        x_label="megabytes",
        y_label="ms",
        unit="ms",
        asked=reading.at("16 MB"),
        published=PublishedRow("Dettmers 2014, one transfer", {"dettmers.dp.six.step": 4}),
        data=by_message,
        look=Look.LOG_X | Look.LOG_Y,
    ),
    Experiment(
        key="DP-5",
        title="What a rank sends in your ring",
        question="In a ring of 8, how many times S does a rank send?",
        x_label="ranks",
        y_label="sent, in units of S (counted)",
        unit="S",
        curves=lambda points: {"the naive way: n - 1": [(p.x, p.x - 1) for p in points]},
    ),
    Experiment(
        key="DP-5-time",
        title="4 MB reduced by {ranks} ranks{crowd}",
        question="How many ms will your ring take?",
        x_label="all-reduce",
        y_label="ms",
        unit="ms",
        asked=reading.at("ring"),
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-3",
        title="Time of a step over the time with one rank",
        question="What fraction of one rank's time do two ranks need?",
        x_label="ranks, relative to the fewest",
        y_label="time, relative to the fewest ranks",
        unit="x",
        asked=reading.first,
        published=PublishedRow(
            "CERN part 6, an epoch at a fixed batch per GPU, MIG off",
            {f"cern6.epoch.full.{n}": n / 4 for n in (4, 8, 16, 32)},
            base="cern6.epoch.full.4",
        ),
        data=reading.on_free_cores(reading.pair("two ranks", "one rank")),
        curves=ideal,
    ),
    Experiment(
        key="DP-3-cern",
        title="How far T = a + b/n misses CERN's rows",
        question="By what percentage does it miss the worst MIG-off point?",
        x_label="CERN's row",
        y_label="largest miss (%)",
        unit="%",
        asked=reading.first,
        curves=lambda _: {"CERN's own scatter between placements: 14 %": [(0, 14.0)]},
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-4",
        title="A step of two ranks, by what they send",
        question="With the small batch, what percentage of a step do the gradient's bytes take?",
        x_label="batch of both ranks together",
        y_label="ms a step",
        unit="%",
        asked=AskedPoint(without_the_bytes, percent_of_a_step, "ms"),
        data=reading.on_free_cores(at_the_small_batch),
        look=Look.LOG_X | Look.LOG_Y,
    ),
    Experiment(
        key="DP-6",
        title="A step on a simulated network, and on the real one",
        question="What percentage of flat's sending do your buckets hide on the simulated network?",
        x_label="how gradients are sent",
        y_label="ms",
        unit="%",
        asked=AskedPoint(with_buckets, percent_of_sending, "ms"),
        data=reading.on_free_cores(reading.by_label),
        look=Look.BARS,
    ),
    Experiment(
        key="DP-15",
        title="Bus bandwidth of four collectives",
        question="How many GB/s is the bus bandwidth of the longest all-reduce?",
        x_label="megabytes of the whole array",
        y_label="bus bandwidth (GB/s)",
        unit="GB/s",
        asked=longest_all_reduce,
        data=by_bytes_on_the_bus,
        look=Look.LOG_X | Look.LOG_Y | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-7",
        title="Throughput against the batch",
        question="From small to big batches, do samples per second rise, stay flat, or fall?",
        x_label="batch",
        y_label="samples per second",
        look=Look.LOG_X | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-8",
        title="A step with one slow rank",
        question="How many ms does a step take when one rank has twice the work?",
        x_label="the last rank's work",
        y_label="ms",
        unit="ms",
        asked=reading.at("one slow rank"),
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-9",
        title="Independent trainings on one device",
        question="From one training to two, does the total rise, stay flat, or fall?",
        x_label="trainings",
        y_label="steps per second, in all",
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-10",
        title="Peak memory of a DDP step, copies and views",
        question="How many MiB do the views save? (The gradients are 64 MiB.)",
        x_label="ranks",
        y_label="peak MiB (on a CPU: RSS)",
        unit="MiB",
        asked=AskedPoint(views, lambda points: (points[0].value, -1.0)),
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="DP-11",
        title="The same training, three runs",
        question="From run to run, do the medians rise, stay flat, or fall?",
        x_label="run",
        y_label="ms per step",
        look=Look.BARS | Look.OPTIONAL,
    ),
    *reading.small_model(
        "DP-13",
        "DP-14",
        "two ranks",
        "one rank",
        ("the pair of ranks", "one rank", "ranks"),
        {"distance of the ranks' weights": "apart"},
    ),
)

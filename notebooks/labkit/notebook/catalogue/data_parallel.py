"""Notebook 4: gradients of several ranks, what they cost to reduce, and when a rank is worth it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Curves, Experiment, Points, PublishedRow


def four_times(points: Points) -> Data:
    """The two biggest sizes."""
    return {
        "four times": points[-1].records[0].samples_s,
        "bytes": points[-2].records[0].samples_s,
    }


def over_the_ring(points: Points) -> Data:
    """What is sent, in units of what a ring needs."""
    sent = [point.value / (2 * (point.x - 1) / point.x) for point in points]
    return {"bytes over 2(n-1)/n S": sent}


def everyone_to_everyone(points: Points) -> Curves:
    """What the naive way sends."""
    return {"the naive way: n - 1": [(point.x, point.x - 1) for point in points]}


def ideal(points: Points) -> Curves:
    """The whole work shared by n."""
    most = max(2.0, *(point.x for point in points))
    ends = [replace(points[0], x=x) for x in (1.0, most)]
    return {"ideal: 1/n": reading.line(ends, lambda n: 1 / n)}


def added_over_averaged(points: Points, optimizer: str) -> list[float]:
    """The loss with added gradients over that with averaged ones, at every step that was kept."""
    loss = {(point.series, point.x): point.value for point in points}
    added, averaged = f"{optimizer}, added", f"{optimizer}, averaged"
    places = sorted(x for series, x in loss if series == averaged and (added, x) in loss)
    return [loss[added, x] / loss[averaged, x] for x in places]


def adam_at_the_end(points: Points) -> Point | None:
    """With Adam, the last loss of the run that adds over that of the run that averages."""
    found = added_over_averaged(points, "Adam")
    return replace(points[-1], value=found[-1]) if found else None


def times_the_mean(points: Points, times: float) -> float:
    """How high so many times the averaged run's last loss is drawn."""
    return times * next(p.value for p in reversed(points) if p.series == "Adam, averaged")


def hidden_by_adam(points: Points) -> Data:
    """At the end with SGD, at every step with Adam."""
    return {
        "loss with SGD, added over averaged, at the end": added_over_averaged(points, "SGD")[-1:],
        "loss with Adam, added over averaged": added_over_averaged(points, "Adam"),
    }


def saved(points: Points) -> Point | None:
    """How much less the views need, at the same number of ranks."""
    kinds = {point.series: point for point in points if point.label == points[0].label}
    if not {"copies", "views"} <= kinds.keys():
        return None
    return replace(kinds["views"], value=kinds["copies"].value - kinds["views"].value)


def sent_early(points: Points) -> Data:
    """How far each way is from DDP's gradients, and how many all-reduces left before the end."""
    facts = cast("Mapping[str, Mapping[str, float]]", reading.facts(points[0]))
    early = facts["early"]
    return {
        "difference from DDP's gradients": list(facts["difference"].values()),
        "flat all-reduces before the backward pass is over": [early["flat"]],
        "buckets that leave before it is over": [early["buckets"]],
    }


EXPERIMENTS = (
    Experiment(
        key="DP-1",
        title="Distance to the whole batch's gradient",
        question="What is the relative error of one rank's own gradient?",
        steps=(),
        x_label="which gradient",
        y_label="relative difference (0: 10⁻¹²)",
        unit="",
        asked=reading.at("one rank's own"),
        check="DP-1",
        data=reading.values("relative difference", "yours"),
        is_categorical=True,
        log_y=True,
    ),
    Experiment(
        key="DP-12",
        title="Two ranks: gradients averaged and added, with SGD and with Adam",
        question="With Adam, how many times as large as the averaged run's loss is the other's?",
        steps=(),
        x_label="training step",
        y_label="loss",
        points_unit="loss",
        unit="x",
        asked=adam_at_the_end,
        height=times_the_mean,
        check="DP-12",
        data=hidden_by_adam,
        log_y=True,
    ),
    Experiment(
        key="DP-2",
        title="Time of an all-reduce",
        question="How many ms do 16 MB take?",
        steps=(),
        x_label="megabytes",
        y_label="ms",
        unit="ms",
        asked=reading.at("16 MB"),
        published=PublishedRow("Dettmers 2014, one transfer", {"dettmers.dp.six.step": 4}),
        check="DP-2",
        data=four_times,
        log_x=True,
        log_y=True,
    ),
    Experiment(
        key="DP-5",
        title="What a rank sends in your ring",
        question="In a ring of 8, how many times S does a rank send?",
        steps=(),
        x_label="ranks",
        y_label="sent, in units of S (counted)",
        unit="S",
        check="DP-5",
        data=over_the_ring,
        curves=everyone_to_everyone,
    ),
    Experiment(
        key="DP-5-time",
        title="4 MB reduced by {ranks} ranks{crowd}",
        question="How many ms will your ring take?",
        steps=(),
        x_label="all-reduce",
        y_label="ms",
        unit="ms",
        asked=reading.at("ring"),
        is_categorical=True,
    ),
    Experiment(
        key="DP-3",
        title="Time of a step over the time with one rank",
        question="What fraction of one rank's time do two ranks need?",
        steps=(),
        x_label="ranks over the fewest",
        y_label="time over that with the fewest",
        unit="x",
        asked=reading.first,
        published=PublishedRow(
            "CERN part 6, an epoch at a fixed batch per GPU, MIG off",
            {f"cern6.epoch.full.{n}": n / 4 for n in (4, 8, 16, 32)},
            base="cern6.epoch.full.4",
        ),
        check="DP-3",
        data=reading.on_free_cores(reading.pair("two ranks", "one rank")),
        curves=ideal,
    ),
    Experiment(
        key="DP-3-cern",
        title="How far T = a + b/n misses CERN's rows",
        question="By what percentage does it miss the worst MIG-off point?",
        steps=(),
        x_label="CERN's row",
        y_label="largest miss (%)",
        unit="%",
        asked=reading.first,
        is_categorical=True,
        is_optional=True,
        curves=lambda _: {"CERN's own scatter between placements: 14 %": [(0, 14.0)]},
    ),
    Experiment(
        key="DP-4",
        title="Speed-up of two ranks",
        question="From small to big batches, does it rise, stay flat, or fall?",
        steps=(),
        x_label="batch of both ranks together",
        y_label="one rank's time over two ranks'",
        check="DP-4",
        data=reading.pair("one rank", "two ranks"),
        curves=lambda _: {"no gain": [(0, 1.0)]},
        log_x=True,
    ),
    Experiment(
        key="DP-6",
        title="A step without sending, three ways by hand, and DDP",
        question="How many ms does the step with your buckets take?",
        steps=(),
        x_label="how gradients are sent",
        y_label="ms",
        unit="ms",
        asked=reading.at("buckets"),
        check="DP-6",
        data=sent_early,
        is_categorical=True,
    ),
    Experiment(
        key="DP-7",
        title="Throughput against the batch",
        question="From small to big batches, do samples per second rise, stay flat, or fall?",
        steps=(),
        x_label="batch",
        y_label="samples per second",
        is_optional=True,
        log_x=True,
    ),
    Experiment(
        key="DP-8",
        title="A step with one slow rank",
        question="How many ms does a step take when one rank has twice the work?",
        steps=(),
        x_label="the last rank's work",
        y_label="ms",
        unit="ms",
        asked=reading.at("one slow rank"),
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="DP-9",
        title="Independent trainings on one device",
        question="From one training to two, does the total rise, stay flat, or fall?",
        steps=(),
        x_label="trainings",
        y_label="steps per second, in all",
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="DP-10",
        title="Peak memory of a DDP step, copies and views",
        question="How many MiB do the views save? (The gradients are 64 MiB.)",
        steps=(),
        x_label="ranks",
        y_label="peak MiB (on a CPU: RSS)",
        unit="MiB",
        asked=saved,
        height=lambda points, saves: points[0].value - saves,
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="DP-11",
        title="The same training, three runs",
        question="From run to run, do the medians rise, stay flat, or fall?",
        steps=(),
        x_label="run",
        y_label="ms per step",
        is_categorical=True,
        is_optional=True,
    ),
)

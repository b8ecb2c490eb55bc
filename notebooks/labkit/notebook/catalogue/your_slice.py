"""Notebook 1: what is timed, how small a difference shows, and what no program can exceed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import AskedPoint, Curves, Experiment, Look, Points, PublishedRow

LIMIT = "limit of "
MEMORY, FP32 = f"{LIMIT}memory", f"{LIMIT}fp32"


def upper_end(points: Points) -> Point | None:
    """The point with the upper end of its interval as its value."""
    if not points or points[0].high is None:
        return None
    return replace(points[0], value=points[0].high, label="the interval's upper end")


def rates(points: Points) -> Data:
    """Every sample's rate of a product, axpy's, and axpy's risen as the operations per byte do."""
    points_by_label = {point.label: point for point in points if not point.series}
    low, high = points_by_label["axpy"], points_by_label["matmul"]
    as_far_up = [rate * high.x / low.x for rate in _every_rate(low)]
    return {
        "matmul rate": _every_rate(high),
        "axpy rate": _every_rate(low),
        "axpy rate as far up": as_far_up,
    }


def roof(points: Points) -> Curves:
    """One roof for each format: slanted up to the ridge, flat after it."""
    best_points: dict[str, Point] = {}
    for point in sorted(points, key=lambda p: p.value):  # of several sizes, the best stays
        best_points[point.label.partition(", ")[0]] = point
    if MEMORY not in best_points:
        return {}
    slant, end = best_points[MEMORY], max(point.x for point in points)
    formats = [label for label in best_points if label.startswith(LIMIT) and label != MEMORY]
    roofs = {f"the roof in {label.removeprefix(LIMIT)}": best_points[label] for label in formats}
    return {name: _roof(slant, flat.value, end) for name, flat in roofs.items()}


def _roof(slant: Point, peak: float, end: float) -> list[tuple[float, float]]:
    widest = slant.value / slant.x
    return [(x, min(peak, widest * x)) for x in sorted({slant.x, peak / widest, end})]


def roofs_by_part(points: Points) -> Curves:
    """The roof in fp32 over each part."""
    limits = {(point.label.rpartition(", ")[0], point.series): point for point in points}
    parts = dict.fromkeys(point.series for point in points)
    both = {part: (limits.get((MEMORY, part)), limits.get((FP32, part))) for part in parts}
    end = max(point.x for point in points)
    return {
        f"the roof in fp32, {part}": _roof(slant, flat.value, end)
        for part, (slant, flat) in both.items()
        if slant and flat
    }


def roof_of_part(points: Points) -> Point:
    """The roof of the first part in fp32, which its slant meets at the ridge."""
    return next(point for point in points if point.label.rpartition(", ")[0] == FP32)


def slant_of_part(points: Points) -> tuple[float, float]:
    """How high the first part's slant begins, and how much it rises for an operation a byte."""
    slant = next(point for point in points if point.label.startswith(MEMORY))
    return 0.0, slant.value / slant.x


def ridges(points: Points) -> Data:
    """The operations per byte at the ridge of the first part and of the whole, every round."""
    limits = {(point.label.rpartition(", ")[0], point.series): point for point in points}
    both = {"the part's ridge": points[0].series, "the whole's ridge": points[-1].series}
    return {name: _ridge(limits[MEMORY, part], limits[FP32, part]) for name, part in both.items()}


def _ridge(slant: Point, flat: Point) -> list[float]:
    widest = [rate / slant.x for rate in _every_rate(slant)]
    return [rate / slope for rate, slope in zip(_every_rate(flat), widest, strict=True)]


def _every_rate(point: Point) -> list[float]:
    record = point.records[0]
    return [point.value * record.median_s / seconds for seconds in record.samples_s]


def busy_shares(points: Points) -> Data:
    """In every trace, the share of the step during which something computes, by batch."""
    shares_by_label: dict[str, list[float]] = {}
    for point in points:
        facts = cast("Mapping[str, Any]", reading.facts(point))
        shares_by_label[f"{point.label}'s busy share"] = list(facts["shares"])
    return shares_by_label


EXPERIMENTS = (
    Experiment(
        key="T-1",
        title="The same function against itself",
        question="What is the upper end of the interval of the ratio?",
        x_label="comparison",
        y_label="time over time",
        unit="x",
        asked=upper_end,
        data=reading.pair("first", "second"),
        curves=lambda _: {"5 % more": [(0, 1.05)], "5 % less": [(0, 0.95)]},
        look=Look.BARS | Look.ZOOMED,
    ),
    Experiment(
        key="T-2",
        title="The naive and the honest timer",
        question="From the naive to the honest timer, does the time rise, stay flat, or fall?",
        x_label="timer",
        y_label="ms",
        data=reading.by_label,
        look=Look.BARS,
    ),
    Experiment(
        key="T-3",
        title="Your timer and labkit's",
        question="What is the ratio of your timer's time to labkit's?",
        x_label="timer",
        y_label="ms",
        unit="x",
        asked=reading.ratio("own", "labkit", "ms"),
        data=reading.by_label,
        look=Look.BARS,
    ),
    Experiment(
        key="T-4",
        title="Rate against intensity",
        question="From axpy to matmul, does the rate rise, stay flat, or fall?",
        x_label="operations per byte",
        y_label="GFLOP/s",
        data=rates,
        curves=roof,
        look=Look.UNJOINED | Look.LOG_X | Look.LOG_Y,
    ),
    Experiment(
        key="T-6",
        title="Where the time of a training step goes",
        question="During what percentage of the small batch's step does anything compute?",
        x_label="step",
        y_label="% of the step",
        unit="%",
        asked=reading.at("small batch"),
        published=PublishedRow("Habr, utilisation of an A100", {"habr.utilisation.a100": None}),
        data=busy_shares,
        also={"computes": None, "only launches": "only launches", "neither": "neither"},
        look=Look.BARS | Look.STACKED,
    ),
    Experiment(
        key="T-7",
        title="The roofs of a part, and of all",
        question="At how many FLOP/byte is the part's ridge in fp32?",
        x_label="operations per byte",
        y_label="GFLOP/s",
        unit="FLOP/byte",
        asked=AskedPoint(roof_of_part, slant_of_part, "GFLOP/s"),
        data=ridges,
        curves=roofs_by_part,
        look=Look.UNJOINED | Look.LOG_X | Look.LOG_Y | Look.OPTIONAL,
    ),
    Experiment(
        key="T-5",
        title="Rate against size",
        question="As the matrices grow, does the rate rise, stay flat, or fall?",
        x_label="n",
        y_label="GFLOP/s",
        look=Look.LOG_X | Look.LOG_Y | Look.OPTIONAL,
    ),
)

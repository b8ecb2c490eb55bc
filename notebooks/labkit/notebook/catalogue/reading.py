"""How experiments read their points: a check's series, and what a prediction is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from labkit.evidence.check import ALL_WORK_ALONE, ALL_WORK_TOGETHER, CORE_SHARE
from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.panel.experiment import AskedPoint, Experiment, Look, Points

Pair = tuple[Experiment, Experiment]


def at(label: str) -> Callable[[Points], Point]:
    """The point with this label."""
    return lambda points: next(point for point in points if point.label == label)


def ratio(label: str, base: str, unit: str, factor: float = 1.0) -> AskedPoint:
    """The asked point of a question about the ratio of two points' values.

    Args:
        label: of the point.
        base: the label of the other.
        unit: of both.
        factor: 100 for percent.
    """
    return AskedPoint(at(label), lambda points: (0.0, at(base)(points).value / factor), unit)


def first(points: Points) -> Point:
    """The first point."""
    return points[0]


def lowest(points: Points) -> Point | None:
    """The point with the smallest value, once there are several."""
    return min(points, key=lambda point: point.value) if len(points) > 1 else None


def by_label(points: Points) -> Data:
    """Each point's samples under its label."""
    return {point.label: point.records[0].samples_s for point in points}


def pair(first_name: str, second_name: str, index: int = 0) -> Callable[[Points], Data]:
    """Both sides of one compared point, under the names that the check wants."""

    def read(points: Points) -> Data:
        a, b = points[index].records
        return {first_name: a.samples_s, second_name: b.samples_s}

    return read


def on_free_cores(series: Callable[[Points], Data]) -> Callable[[Points], Data]:
    """The same series, and beside them what one rank and all ranks got done in the same rounds."""

    def read(points: Points) -> Data:
        record = points[0].records[0] if points and points[0].records else None
        if record is None or not record.side_by_side:
            return series(points)
        both = record.side_by_side
        return {
            **series(points),
            ALL_WORK_ALONE: [record.ranks * seconds for seconds in both["alone_s"]],
            ALL_WORK_TOGETHER: both["together_s"],
            CORE_SHARE: both["core_share"],
        }

    return read


def at_the_end(series: str) -> Callable[[Points], Point]:
    """The last point of a series."""
    return lambda points: [point for point in points if point.series == series][-1]


def _bits_at_the_end(
    name: str, base: str, facts_of_way: Mapping[str, str]
) -> Callable[[Points], Data]:
    """Read the final bits per byte of every training over those of the base with the same seed.

    Args:
        name: the series of the trainings.
        base: the series that they are compared with.
        facts_of_way: series of a check, and the fact of the way's last point that each has.
    """

    def read(points: Points) -> Data:
        way_end, base_end = (at_the_end(series)(points) for series in (name, base))
        series = {f"bits of {name} over {base}": _ratios(way_end, base_end)}
        firsts = [next(p for p in points if p.series == end.series) for end in (way_end, base_end)]
        learned = [_ratios(way_end, firsts[0]), _ratios(base_end, firsts[1])]
        series["bits at the end over the first mark"] = [*learned[0], *learned[1]]
        known_facts = facts(way_end)
        series |= {key: [known_facts[f]] for key, f in facts_of_way.items() if f in known_facts}
        return series

    return read


def _ratios(point: Point, base: Point) -> list[float]:
    """Every seed's bits per byte at one point over those at another."""
    bits, base_bits = (cast("Sequence[float]", facts(p)["each"]) for p in (point, base))
    return [a / b for a, b in zip(bits, base_bits, strict=True)]


def small_model(
    learns: str,
    timed: str,
    way: str,
    base: str,
    phrases: tuple[str, str, str],
    facts_of_way: Mapping[str, str],
) -> Pair:
    """The two experiments in which a small model is trained in two ways.

    Args:
        learns: the key of the one that draws its loss.
        timed: the key of the one that draws the time to a loss.
        way: the series whose end is asked for.
        base: the series that it is compared with.
        phrases: for way and base in a sentence, and for what tells them apart.
        facts_of_way: series of the check, and the fact of the way's last point that each has.
    """
    way_phrase, base_phrase, kind = phrases
    return (
        Experiment(
            key=learns,
            title="A small model reads Python: bits per byte on held-out modules",
            question=f"How many bits per byte does {way_phrase} end with?",
            x_label="training step",
            y_label="bits per byte",
            unit="bits",
            asked=at_the_end(way),
            data=_bits_at_the_end(way, base, facts_of_way),
            look=Look.ZOOMED,
        ),
        Experiment(
            key=timed,
            title="Seconds to the lowest loss that every run reaches",
            question=f"How many times as long does {way_phrase} take as {base_phrase} "
            "to reach that loss?",
            x_label=kind,
            y_label="seconds of training",
            unit="x",
            asked=ratio(way, base, "s"),
            look=Look.BARS,
        ),
    )


def facts(point: Point) -> Mapping[str, float]:
    """The facts that a point's function returned beside its times."""
    return point.records[0].setting

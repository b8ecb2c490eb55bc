"""How experiments read their points: a check's series, and what a prediction is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from labkit.evidence.check import ALL_WORK_ALONE, ALL_WORK_TOGETHER, CORE_SHARE
from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.panel.experiment import Points


def at(label: str) -> Callable[[Points], Point | None]:
    """The point with this label."""

    def find(points: Points) -> Point | None:
        return next((point for point in points if point.label == label), None)

    return find


@dataclass(frozen=True)
class AskedRatio:
    """What a question asks for where it is the value of one point over that of another.

    Attributes:
        label: of the point.
        base: the label of the other.
        factor: 100 for percent.
    """

    label: str
    base: str
    factor: float = 1.0

    def asked(self, points: Points) -> Point | None:
        """The point, with the ratio as its value, once both are measured."""
        found, base = at(self.label)(points), at(self.base)(points)
        if found is None or base is None:
            return None
        return replace(found, value=self.factor * found.value / base.value)

    def height(self, points: Points, ratio: float) -> float:
        """How high the point is drawn if the ratio is this; both must be measured."""
        base = at(self.base)(points)
        assert base is not None
        return base.value * ratio / self.factor


def first(points: Points) -> Point | None:
    """The first point."""
    return points[0] if points else None


def lowest(points: Points) -> Point | None:
    """The point with the smallest value, once there are several."""
    return min(points, key=lambda point: point.value) if len(points) > 1 else None


def by_label(points: Points) -> Data:
    """Each point's samples under its label."""
    return {point.label: point.records[0].samples_s for point in points}


def pair(first_name: str, second_name: str, index: int = 0) -> Callable[[Points], Data]:
    """Both sides of one compared point, under the names that the check wants."""

    def read(points: Points) -> Data:
        if not points or len(points[index].records) < 2:
            return {first_name: (), second_name: ()}
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


def values(name: str, *labels: str) -> Callable[[Points], Data]:
    """What is drawn, of some points or of all, as one series."""

    def read(points: Points) -> Data:
        return {name: [point.value for point in points if not labels or point.label in labels]}

    return read


def at_the_end(series: str) -> Callable[[Points], Point | None]:
    """The last point of a series, once it is there."""

    def find(points: Points) -> Point | None:
        own = [point for point in points if point.series == series]
        return own[-1] if own else None

    return find


def bits_at_the_end(name: str, base: str) -> Callable[[Points], Data]:
    """Bits per byte at the end of every training, over those of another way with the same seed."""

    def read(points: Points) -> Data:
        ends = [at_the_end(series)(points) for series in (name, base)]
        own, others = (one.records[0].setting["each"] if one else () for one in ends)
        return {f"bits of {name} over {base}": [a / b for a, b in zip(own, others, strict=True)]}

    return read


def facts(point: Point) -> Mapping[str, float]:
    """What a point's function found out beside its times."""
    return point.records[0].setting


def line(points: Points, height: Callable[[float], float]) -> list[tuple[float, float]]:
    """A curve over the points' range, in steps small enough for any scale."""
    low, high = min(point.x for point in points), max(point.x for point in points)
    if low <= 0 or high <= low:
        return [(x, height(x)) for x in sorted({low, high})]
    steps = [low * (high / low) ** (step / 40) for step in range(41)]
    return [(x, height(x)) for x in steps]

"""Where values lie in a plot's picture: axes with numbers, and axes with categories."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.panel import plot_layout
from labkit.panel.plot import Mark, Plot, SeriesKind, number

WIDTH, HEIGHT = 760, 432  # it grows downwards where labels, legend or caption need more lines
RIGHT, TOP, BOTTOM = 24, 44, 122
WIDEST_BAR = 90.0


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels."""

    low: float
    high: float
    first: float
    last: float
    log: bool

    def at(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn at the edge."""
        low, high, here = (self._scaled(item) for item in (self.low, self.high, value))
        share = (here - low) / (high - low)
        return self.first + (self.last - self.first) * min(1.0, max(0.0, share))

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self) -> list[float]:
        """About five round values inside the axis."""
        if self.log:
            found = _log_ticks(self.low, self.high)
            if len(found) >= 2:
                return found
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) <= 3 else (1,)
    every = max(1, len(decades) // 7)
    values = [step * 10.0**power for power in decades[::every] for step in steps]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)


@dataclass(frozen=True)
class Scales:
    """Both axes of a plot, and its categories where it has them.

    Attributes:
        left: the pixel at which the plot begins.
        slots: for each drawn series its slot within a category, by the series' index.
    """

    plot: Plot
    x: Axis
    y: Axis
    left: float
    slots: dict[int, int]

    @property
    def beyond(self) -> str:
        """Where a predicted number lies that this scale does not reach; empty for all others."""
        said = self.plot.prediction
        if said is None or self.y.low <= said <= self.y.high:
            return ""
        return "above" if said > self.y.high else "below"

    @property
    def is_categorical(self) -> bool:
        """Whether the x axis has names in place of numbers."""
        return bool(self.plot.categories)

    @property
    def has_bars(self) -> bool:
        """Bars are for names on a scale with a zero."""
        return self.is_categorical and not self.plot.log_y and not self.plot.is_zoomed

    def base(self, mark: Mark, index: int) -> float:
        """Where a bar begins: at zero, or on the bars of the series before it."""
        if not self.plot.is_stacked:
            return 0.0
        below = [i for i in self.slots if i < index]
        return sum(
            one.y for i in below for one in self.plot.series[i].marks if one.label == mark.label
        )

    @property
    def room(self) -> float:
        """The pixels of one category."""
        return (WIDTH - RIGHT - self.left) / max(1, len(self.plot.categories))

    @property
    def bar_width(self) -> float:
        """The pixels of one bar."""
        beside = 1 if self.plot.is_stacked else len(self.slots)
        return min(WIDEST_BAR, 0.8 * self.room / max(1, beside))

    @property
    def tick_rows(self) -> int:
        """How many rows the x axis's labels take."""
        return max((len(lines) for _, lines in self.x_ticks()), default=1)

    @property
    def are_ticks_tight(self) -> bool:
        """Whether categories stand so close that their labels are set smaller."""
        lines = [words for _, lines in self.x_ticks() for words in lines]
        return self.is_categorical and plot_layout.is_tight(lines, self.room)

    def of(self, place: float | str) -> float | None:
        """The pixel of an x or of a category; None where the plot has no such category."""
        if not isinstance(place, str):
            return self.x.at(place) if not self.is_categorical else None
        if place not in self.plot.categories:
            return None
        return self.left + self.room * (self.plot.categories.index(place) + 0.5)

    def shows(self, mark: Mark) -> bool:
        """Whether a mark has a place: a category's label must be one of the axis's."""
        return not self.is_categorical or mark.label in self.plot.categories

    def place(self, mark: Mark, index: int) -> float:
        """The pixel of a mark; series of one category stand side by side, or on one another."""
        middle = self.of(mark.label) if self.is_categorical else self.x.at(mark.x)
        if self.plot.is_stacked:
            return middle or 0.0
        aside = self.slots.get(index, 0) - (len(self.slots) - 1) / 2
        width = self.bar_width if self.has_bars else 0.0
        return (middle or 0.0) + aside * width

    def x_ticks(self) -> list[tuple[float, list[str]]]:
        """Pixels and the lines of each label."""
        if self.is_categorical:
            room = self.room - 6
            labels = self.plot.categories
            return [(self.of(one) or 0.0, plot_layout.wrapped(one, room)) for one in labels]
        return [(pixel, [words]) for pixel, words in self._number_ticks()]

    def _number_ticks(self) -> list[tuple[float, str]]:
        """The marks' places where they are few, measured first, else round values."""
        drawn = [series for series in self.plot.series if series.kind is not SeriesKind.CURVE]
        ordered = sorted(drawn, key=lambda series: series.kind is SeriesKind.PUBLISHED)
        marks = [mark for series in ordered for mark in series.marks]
        places = {mark.x: mark.label or number(mark.x) for mark in reversed(marks)}
        ticks = [(place, places[place]) for place in dict.fromkeys(mark.x for mark in marks)]
        if not 0 < len(ticks) <= 8 or any(len(words) > 12 for _, words in ticks):
            ticks = [(value, number(value)) for value in self.x.ticks()]
        return plot_layout.clear_of_each_other((self.x.at(value), words) for value, words in ticks)


def scales(plot: Plot) -> Scales:
    """Axes that hold every point, dot, interval and the prediction; a linear y begins at zero."""
    y = _axis(list(_heights(plot)), HEIGHT - BOTTOM, TOP, plot.log_y, from_zero=not plot.is_zoomed)
    left = plot_layout.left_of_ticks(number(value) for value in y.ticks())
    xs = [mark.x for series in plot.series if not series.is_level for mark in series.marks]
    if isinstance(plot.prediction_at, float | int):
        xs.append(plot.prediction_at)
    x = _axis(xs, left, WIDTH - RIGHT, plot.log_x, from_zero=False)
    drawn = [
        i for i, one in enumerate(plot.series) if one.marks and one.kind is not SeriesKind.CURVE
    ]
    return Scales(plot, x, y, left, {index: slot for slot, index in enumerate(drawn)})


def _heights(plot: Plot) -> Iterator[float]:
    """Every height that must be seen; a prediction far off is drawn at the edge."""
    highest = 0.0
    if plot.is_stacked:
        totals: dict[str, float] = {}
        for mark in (mark for series in plot.series for mark in series.marks):
            totals[mark.label] = totals.get(mark.label, 0.0) + mark.y
        highest = max(totals.values(), default=0.0)
        yield from totals.values()
    for series in plot.series:
        for mark in series.marks:
            found = (mark.y, mark.low, mark.high, *(() if plot.is_zoomed else mark.dots))
            seen = [value for value in found if value is not None and math.isfinite(value)]
            highest = max([highest, *seen])
            yield from seen
    if plot.prediction is not None and plot.prediction_at is not None and highest:
        yield min(plot.prediction, highest * (1e3 if plot.log_y else 3.0))


def _axis(values: Sequence[float], first: float, last: float, log: bool, from_zero: bool) -> Axis:
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if log:
        room = max(1.2, (high / low) ** 0.07)
        return Axis(low / room, high * room, first, last, True)
    if from_zero and low >= 0:
        return Axis(0.0, high * 1.12 or 1.0, first, last, False)
    pad = (high - low) * 0.07 or abs(high) * 0.1 or 1.0
    return Axis(low - pad, high + pad, first, last, False)

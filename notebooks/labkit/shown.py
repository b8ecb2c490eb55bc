"""What a notebook's cell shows: numbers, tables, measurements as bars with intervals and ratios.

HTML alone, in the page's colours, so that it is drawn without a kernel and without a widget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

BAR = "#0b84c4"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
ROOM = 1.1  # the longest bar or interval, and a little air


@dataclass(frozen=True)
class Showable:
    """What a notebook shows as HTML, and a terminal as text."""

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True)
class ShapeBar:
    """One measurement: its name, its median with the interval in milliseconds, what else is known.

    Attributes:
        waited_s: for a borrowed slice; None where nothing was waited for.
        caption: on what it was measured.
        samples_ms: every sample, shown when unfolded.
    """

    name: str
    median_ms: float
    low_ms: float | None
    high_ms: float | None
    caption: str
    samples_ms: tuple[float, ...]
    waited_s: float | None = None


def number(value: float) -> str:
    """A number with three figures, without needless zeros or exponents."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, power = f"{value:.2e}".split("e")
    raised = f"10{str(int(power)).translate(SUPERSCRIPT)}"
    return raised if float(mantissa) == 1 else f"{float(mantissa):g} · {raised}"


def table(rows: Iterable[Sequence[str]], caption: str, heads: Sequence[str] = ()) -> str:
    """An HTML table of text cells; the first cell of a row is its heading."""
    alignment = 'style="text-align:left"'
    head = "".join(f'<th scope="col" {alignment}>{escape(heading)}</th>' for heading in heads)
    body = "".join(
        f'<tr><th scope="row" {alignment}>{escape(first)}</th>'
        + "".join(f"<td {alignment}>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def bars_html(bars: Sequence[ShapeBar]) -> str:
    """An HTML table with a row for each bar; several bars also show their ratio to the first.

    A column for the wait appears where at least one measurement waited for its slice.
    """
    longest = max((bar.high_ms or bar.median_ms for bar in bars), default=1.0) * ROOM or 1.0
    has_ratio, has_wait = len(bars) > 1, any(bar.waited_s is not None for bar in bars)
    heads = ["", "", "median", "interval", "samples"]
    heads += ["over the first"] * has_ratio + ["waited"] * has_wait
    head = "".join(f'<th scope="col">{heading}</th>' for heading in heads)
    rows = "".join(_bar_row(bar, bars[0], longest, has_ratio, has_wait) for bar in bars)
    raw = "".join(
        f"<p><b>{escape(bar.name)}</b> on {escape(bar.caption)}: "
        + ", ".join(f"{value:.4g}" for value in bar.samples_ms)
        + " ms</p>"
        for bar in bars
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<details><summary>On what, and every sample</summary>{raw}</details>"
    )


def _bar_row(
    bar: ShapeBar, first: ShapeBar, longest: float, has_ratio: bool, has_wait: bool
) -> str:
    interval = "" if bar.low_ms is None else f"{bar.low_ms:.4g} – {bar.high_ms:.4g} ms"
    cells = [
        _bar_and_interval(bar, longest),
        f"{bar.median_ms:.4g} ms",
        interval,
        str(len(bar.samples_ms)),
    ]
    cells += [f"{bar.median_ms / first.median_ms:.3g} ×"] * (has_ratio and first.median_ms > 0)
    cells += ["" if bar.waited_s is None else f"{bar.waited_s:.0f} s"] * has_wait
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(bar.name)}</th>{body}</tr>'


def _bar_and_interval(bar: ShapeBar, longest: float) -> str:
    """A bar from zero, and over it the interval in the text's colour, as HTML."""
    box = "position:relative;width:14em;max-width:30vw;height:1.1em"
    bar_style = (
        f"position:absolute;height:100%;width:{100 * bar.median_ms / longest:.2f}%;background:{BAR}"
    )
    marks = f'<div style="{bar_style};opacity:.5"></div>'
    if bar.low_ms is not None and bar.high_ms is not None:
        ends = 100 * bar.low_ms / longest, 100 * (bar.high_ms - bar.low_ms) / longest
        line = f"position:absolute;top:.15em;height:.8em;left:{ends[0]:.2f}%;width:{ends[1]:.2f}%"
        edge = "border:solid currentColor;border-width:0 2px"
        middle = "background:linear-gradient(currentColor,currentColor) center/100% 2px no-repeat"
        marks += f'<div style="{line};min-width:1px;{edge};{middle}"></div>'
    return f'<div style="{box}" aria-hidden="true">{marks}</div>'

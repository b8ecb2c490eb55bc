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
    """Rows of words, of which the first heads its row."""
    left = 'style="text-align:left"'
    head = "".join(f'<th scope="col" {left}>{escape(word)}</th>' for word in heads)
    body = "".join(
        f'<tr><th scope="row" {left}>{escape(first)}</th>'
        + "".join(f"<td {left}>{escape(word)}</td>" for word in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def html(bars: Sequence[ShapeBar]) -> str:
    """A row a bar; with several the ratio to the first, and the wait where there was one."""
    longest = max((one.high_ms or one.median_ms for one in bars), default=1.0) * ROOM or 1.0
    has_ratio, has_wait = len(bars) > 1, any(one.waited_s is not None for one in bars)
    heads = ["", "", "median", "interval", "samples"]
    heads += ["over the first"] * has_ratio + ["waited"] * has_wait
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    rows = "".join(_row(one, bars[0], longest, has_ratio, has_wait) for one in bars)
    raw = "".join(
        f"<p><b>{escape(one.name)}</b> on {escape(one.caption)}: "
        + ", ".join(f"{value:.4g}" for value in one.samples_ms)
        + " ms</p>"
        for one in bars
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<details><summary>On what, and every sample</summary>{raw}</details>"
    )


def _row(one: ShapeBar, first: ShapeBar, longest: float, has_ratio: bool, has_wait: bool) -> str:
    interval = "" if one.low_ms is None else f"{one.low_ms:.4g} – {one.high_ms:.4g} ms"
    cells = [_drawn(one, longest), f"{one.median_ms:.4g} ms", interval, str(len(one.samples_ms))]
    cells += [f"{one.median_ms / first.median_ms:.3g} ×"] * (has_ratio and first.median_ms > 0)
    cells += ["" if one.waited_s is None else f"{one.waited_s:.0f} s"] * has_wait
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(one.name)}</th>{body}</tr>'


def _drawn(one: ShapeBar, longest: float) -> str:
    """A bar from zero, and over it the interval in the text's colour."""
    box = "position:relative;width:14em;max-width:30vw;height:1.1em"
    bar = (
        f"position:absolute;height:100%;width:{100 * one.median_ms / longest:.2f}%;background:{BAR}"
    )
    drawn = f'<div style="{bar};opacity:.5"></div>'
    if one.low_ms is not None and one.high_ms is not None:
        ends = 100 * one.low_ms / longest, 100 * (one.high_ms - one.low_ms) / longest
        line = f"position:absolute;top:.15em;height:.8em;left:{ends[0]:.2f}%;width:{ends[1]:.2f}%"
        edge = "border:solid currentColor;border-width:0 2px"
        middle = "background:linear-gradient(currentColor,currentColor) center/100% 2px no-repeat"
        drawn += f'<div style="{line};min-width:1px;{edge};{middle}"></div>'
    return f'<div style="{box}" aria-hidden="true">{drawn}</div>'

"""A timeline: one lane for what can go on at the same time, one box for each operation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.machine.spans import (
    KERNELS,
    LAUNCHES,
    MESSAGES,
    OPERATORS,
    Span,
    busy_ms,
    hidden_ms,
    outermost,
)
from labkit.notebook.pictures import FIRST, SECOND, WIDE, Picture, box, text

ARITHMETIC = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|sdpa|flash|fmha|conv|aten::(addmm|mm|bmm|baddbmm|linear)$"
    r"|mkldnn|scaled_dot_product",
    re.IGNORECASE,
)
"""Products, convolutions and attention, by name: for the colour of a span, and nothing else."""

LEFT, RIGHT, TOP, LANE, GAP = 120.0, 20.0, 44.0, 30.0, 12.0
THIRD = "#009e73"  # as in plots
LANES = (OPERATORS, LAUNCHES, KERNELS, MESSAGES)
LEGEND = (("products of matrices", FIRST), ("other operations", SECOND), ("messages", THIRD))
TICKS = 6
MERGED = 0.6  # pixels: neighbours as near as this are one box


@public
def timeline(spans: Sequence[Span], title: str) -> Picture:
    """The operations of one step, as `labkit.spans_of` found them.

    Args:
        spans: lane, name, begin and end in milliseconds.
        title: what they are of.

    Raises:
        WrongArgument: there are none, or they are something else.
    """
    try:
        read = [(str(a), str(b), float(c), float(d)) for a, b, c, d in spans]
    except (TypeError, ValueError) as error:
        raise WrongArgument("timeline takes what labkit.spans_of returned for `spans`.") from error
    known = list(outermost(read))
    if not known:
        raise WrongArgument("timeline has nothing to draw: no operation was seen.")
    lanes = [lane for lane in LANES if any(one[0] == lane for one in known)]
    ends = max(ended for *_, ended in known)
    bottom, says = TOP + len(lanes) * (LANE + GAP), _says(title, known, lanes, ends)
    hidden = says.partition("Of ")[2]
    parts = [text(8, 22, title, "start"), *_axis(ends, bottom)]
    parts += [text(WIDE - RIGHT, 22, f"of {hidden}", "end")] if hidden else []
    for row, lane in enumerate(lanes):
        own = [one for one in known if one[0] == lane]
        parts += _lane(lane, own, TOP + row * (LANE + GAP), ends)
    parts += _legend(bottom + 46)
    return Picture(says, int(bottom + 60), tuple(parts))


def _lane(lane: str, spans: list[Span], top: float, ends: float) -> Iterator[str]:
    share = busy_ms(spans, lane) / ends if ends else 0.0
    yield text(LEFT - 8, top + 13, lane, "end")
    yield text(LEFT - 8, top + 28, f"{share:.0%} busy", "end")
    for begun, ended, colour in _boxes(spans, ends):
        yield box(begun, top, max(0.8, ended - begun), LANE, "", colour)


def _boxes(spans: Iterable[Span], ends: float) -> Iterator[tuple[float, float, str]]:
    """Pixels and colour; neighbours of a colour that nothing parts are one box."""
    scale = (WIDE - LEFT - RIGHT) / (ends or 1.0)
    last: tuple[float, float, str] | None = None
    for lane, name, begun, ended in sorted(spans, key=lambda one: one[2]):
        here = (LEFT + begun * scale, LEFT + ended * scale, _colour(lane, name))
        if last is not None and last[2] == here[2] and here[0] - last[1] < MERGED:
            last = (last[0], max(last[1], here[1]), last[2])
            continue
        if last is not None:
            yield last
        last = here
    if last is not None:
        yield last


def _colour(lane: str, name: str) -> str:
    if lane == MESSAGES:
        return THIRD
    return FIRST if ARITHMETIC.search(name) else SECOND


def _axis(ends: float, bottom: float) -> Iterator[str]:
    scale = (WIDE - LEFT - RIGHT) / (ends or 1.0)
    for tick in _round_ticks(ends):
        x = LEFT + tick * scale
        yield (
            f'<line x1="{x:.0f}" y1="{TOP - 6:.0f}" x2="{x:.0f}" y2="{bottom:.0f}" '
            'stroke="currentColor" stroke-opacity="0.16"/>'
        )
        yield text(x, bottom + 14, f"{tick:g}" if tick else "0 ms")


def _round_ticks(ends: float) -> list[float]:
    """At most `TICKS` times of a round distance, from 0."""
    power = 10.0 ** math.floor(math.log10(ends / TICKS)) if ends > 0 else 1.0
    step = next((size * power for size in (1, 2, 5, 10) if size * power * TICKS >= ends), power)
    return [round(number * step, 9) for number in range(TICKS + 1) if number * step <= ends]


def _legend(y: float) -> Iterator[str]:
    for number, (words, colour) in enumerate(LEGEND):
        left = LEFT + 190 * number
        yield box(left, y - 11, 14, 12, "", colour)
        yield text(left + 20, y, words, "start")


def _says(title: str, spans: list[Span], lanes: list[str], ends: float) -> str:
    shares = ", ".join(f"{lane} {busy_ms(spans, lane) / (ends or 1.0):.0%}" for lane in lanes)
    said = f"{title}: {ends:.3g} ms, of which busy: {shares}."
    sent = busy_ms(spans, MESSAGES)
    if not sent:
        return said
    return f"{said} Of {sent:.3g} ms of messages, {hidden_ms(spans):.3g} ms pass while it computes."

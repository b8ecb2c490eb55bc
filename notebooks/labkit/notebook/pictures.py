"""The notebooks' fixed drawings: an A100's slices, a ring, a split product, a split pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.exercises.packing import A100

FIRST, SECOND = "#0b84c4", "#d55e00"  # as in plots: at least 3:1 on white and on #111
WIDE = 700
STYLE = (
    "width:100%;max-width:46rem;height:auto;color:var(--jp-content-font-color0,CanvasText);"
    "font:14px system-ui,sans-serif"
)


@dataclass(frozen=True)
class Picture:
    """A drawing, and in words what it shows."""

    says: str
    height: int
    parts: tuple[str, ...]

    def __repr__(self) -> str:
        return self.says

    def _repr_html_(self) -> str:
        return (
            f'<svg role="img" viewBox="0 0 {WIDE} {self.height}" style="{STYLE}" '
            'fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(self.says)}</title>{''.join(self.parts)}</svg>"
        )


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, wide: float, high: float, words: str = "", colour: str = "") -> str:
    fill = f'fill="{colour}" fill-opacity="0.25"' if colour else 'fill="none"'
    shape = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" {fill} '
        f'stroke="{colour or "currentColor"}" stroke-width="1.5"/>'
    )
    return shape + (text(x + wide / 2, y + high / 2 + 5, words) if words else "")


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A line with a head at its end."""
    turn = math.atan2(y2 - y1, x2 - x1)
    wings = ((x2 - 10 * math.cos(turn + a), y2 - 10 * math.sin(turn + a)) for a in (0.4, -0.4))
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x2, y2), *wings))
    line = f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'{line} stroke="currentColor" stroke-width="1.5"/><polygon points="{head}"/>'


def geometry() -> Picture:
    """What an A100 is cut from, and what each profile takes of it."""
    unit, left = 66.0, 100.0
    parts = [text(left - 8, 27, "SMs", "end"), text(left - 8, 61, "memory", "end")]
    parts += [box(left + unit * n, 8, unit - 4, 28, "14 SMs", FIRST) for n in range(7)]
    parts += [box(left + unit * n, 42, unit - 4, 28, "5 GB", SECOND) for n in range(8)]
    for row, profile in enumerate(A100.values()):
        top = 92 + row * 34
        parts.append(text(left - 8, top + 18, profile.name, "end"))
        parts.append(box(left, top, unit * profile.compute - 4, 12, "", FIRST))
        parts.append(box(left, top + 14, unit * profile.memory - 4, 12, "", SECOND))
    says = "An A100 has seven slices of 14 SMs and eight of 5 GB; profiles take: " + ", ".join(
        f"{one.name} {one.compute} and {one.memory}" for one in A100.values()
    )
    return Picture(says, 92 + 34 * len(A100), tuple(parts))


def ring() -> Picture:
    """Four ranks that pass one chunk each to the next."""
    places = [(WIDE / 2 + 210 * x, 110 + 75 * y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    parts = [
        box(x - 70, y - 22, 140, 44, f"rank {rank}", FIRST) for rank, (x, y) in enumerate(places)
    ]
    ways = ((-140, 35, 140, 35), (210, 57, 210, 163), (140, 185, -140, 185), (-210, 163, -210, 57))
    middle = WIDE / 2
    parts += [_arrow(middle + a, b, middle + c, d) for a, b, c, d in ways]
    words = ((0, 26, "chunk 0"), (250, 114, "chunk 1"), (0, 206, "chunk 2"), (-250, 114, "chunk 3"))
    parts += [text(middle + x, y, said) for x, y, said in words]
    parts.append(text(middle, 114, "step 1 of 3: all send at once, and add what comes"))
    return Picture(
        "A ring: every rank passes one chunk to the next, all at once.", 220, tuple(parts)
    )


def split() -> Picture:
    """The product of x and the weights, split by rows and by columns."""
    parts: list[str] = []
    for top, name in ((34, "rows"), (194, "columns")):
        parts.append(text(8, top - 12, f"split by {name}", "start"))
        parts += _product(top, by_rows=name == "rows")
    says = (
        "Split by rows each GPU gets half of x's columns and half of the weights' rows, and the "
        "results are added; split by columns each gets all of x and half of the weights' columns, "
        "and the results stand side by side."
    )
    return Picture(says, 330, tuple(parts))


def _product(top: float, *, by_rows: bool) -> Iterable[str]:
    yield from _halves(8, top, 200, 50, across=by_rows, is_split=by_rows)
    yield text(108, top + 72, "x: 128 × 1000")
    yield text(228, top + 56, "·")
    yield from _halves(250, top, 110, 108, across=not by_rows, is_split=True)
    yield text(305, top + 126, "weights: 1000 × 500")
    yield text(382, top + 56, "=")
    if by_rows:
        yield box(404, top, 110, 50, "128 × 500", FIRST)
        yield text(535, top + 30, "+")
        yield box(556, top, 110, 50, "128 × 500", SECOND)
        yield text(535, top + 72, "add")
    else:
        yield box(404, top, 62, 50, "", FIRST)
        yield box(468, top, 62, 50, "", SECOND)
        yield text(467, top + 72, "two of 128 × 250: stack")


def _halves(
    x: float, y: float, wide: float, high: float, *, across: bool, is_split: bool
) -> Iterable[str]:
    """A matrix in two colours, side by side or one over the other; or whole, in none."""
    if not is_split:
        yield box(x, y, wide, high, "on both")
    elif across:
        yield box(x, y, wide / 2 - 1, high, "", FIRST)
        yield box(x + wide / 2 + 1, y, wide / 2 - 1, high, "", SECOND)
    else:
        yield box(x, y, wide, high / 2 - 1, "", FIRST)
        yield box(x, y + high / 2 + 1, wide, high / 2 - 1, "", SECOND)


def pair() -> Picture:
    """Two products of one rank: the first split by columns, the second by rows, then one sum."""
    parts: list[str] = []
    for rank, (top, colour) in enumerate(((20, FIRST), (140, SECOND))):
        parts += [
            text(8, top + 30, f"rank {rank}", "start"),
            box(70, top, 70, 50, "all of x"),
            text(155, top + 30, "·"),
            box(170, top - 5, 46, 60, "", colour),
            text(193, top + 72, "half of W1's columns"),
            text(240, top + 30, "ReLU"),
            _arrow(262, top + 25, 290, top + 25),
            box(296, top, 60, 50, "", colour),
            text(326, top + 72, "its part"),
            text(371, top + 30, "·"),
            box(386, top + 10, 90, 30, "", colour),
            text(431, top + 72, "half of W2's rows"),
            text(492, top + 30, "="),
            box(508, top, 70, 50, "a part", colour),
            _arrow(580, top + 25, 612, 110),
        ]
    parts.append(box(616, 85, 80, 50, "add: y"))
    says = (
        "Each rank multiplies all of x with half of the first matrix's columns, takes ReLU of its "
        "part, and multiplies that with half of the second matrix's rows; the ranks' results are "
        "added, in one all-reduce."
    )
    return Picture(says, 226, tuple(parts))


PICTURES: Mapping[str, Callable[[], Picture]] = MappingProxyType(
    {"geometry": geometry, "ring": ring, "split": split, "pair": pair}
)


@public
def picture(name: str) -> Picture:
    """One of the notebooks' drawings: "geometry", "ring", "split" or "pair".

    Raises:
        WrongArgument: there is no such drawing.
    """
    if name not in PICTURES:
        raise WrongArgument(f"No picture {name!r} is known; there are {', '.join(PICTURES)}.")
    return PICTURES[name]()

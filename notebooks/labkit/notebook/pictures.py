"""The notebooks' fixed drawings: an A100's slices, a ring, a split product, a split pair."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape, unescape
from importlib import resources

from labkit.arguments import public
from labkit.errors import WrongArgument

FIRST, SECOND = "#0b84c4", "#d55e00"  # as in plots: at least 3:1 on white and on #111
WIDE = 700
FOLDER = resources.files("labkit").joinpath("drawn")
TITLE = re.compile("<title>(.*?)</title>", re.DOTALL)
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


@dataclass(frozen=True)
class FixedDrawing:
    """A drawing that is a file."""

    svg: str

    def __repr__(self) -> str:
        return unescape(TITLE.findall(self.svg)[0])

    def _repr_html_(self) -> str:
        return self.svg


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, wide: float, high: float, words: str = "", colour: str = "") -> str:
    fill = f'fill="{colour}" fill-opacity="0.25"' if colour else 'fill="none"'
    shape = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" {fill} '
        f'stroke="{colour or "currentColor"}" stroke-width="1.5"/>'
    )
    return shape + (text(x + wide / 2, y + high / 2 + 5, words) if words else "")


def pictures() -> list[str]:
    """The names of the notebooks' drawings."""
    return sorted(file.name.removesuffix(".svg") for file in FOLDER.iterdir())


@public
def picture(name: str) -> FixedDrawing:
    """One of the notebooks' drawings: "geometry", "ring", "split" or "pair".

    Raises:
        WrongArgument: there is no such drawing.
    """
    if name not in pictures():
        raise WrongArgument(f"No picture {name!r} is known; there are {', '.join(pictures())}.")
    return FixedDrawing(FOLDER.joinpath(f"{name}.svg").read_text(encoding="utf-8"))

"""The notebooks' fixed drawings: an A100's slices, a ring, a split product, a split pair."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from importlib import resources

from labkit.arguments import public
from labkit.errors import WrongArgument

FOLDER = resources.files("labkit").joinpath("drawn")
TITLE = re.compile("<title>(.*?)</title>", re.DOTALL)


@dataclass(frozen=True)
class FixedDrawing:
    """A drawing that is a file."""

    svg: str

    def __repr__(self) -> str:
        return unescape(TITLE.findall(self.svg)[0])

    def _repr_html_(self) -> str:
        return self.svg


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

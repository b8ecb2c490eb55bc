"""The notebooks' fixed drawings: an A100's slices, a ring, a split product, a split pair."""

from __future__ import annotations

import re
from html import unescape
from importlib import resources

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.shown import Showable

FOLDER = resources.files("labkit").joinpath("drawn")
TITLE = re.compile("<title>(.*?)</title>", re.DOTALL)


def pictures() -> list[str]:
    """The names of the notebooks' drawings."""
    return sorted(file.name.removesuffix(".svg") for file in FOLDER.iterdir())


@public
def picture(name: str) -> Showable:
    """One of the notebooks' drawings: "geometry", "ring", "split" or "pair".

    Raises:
        WrongArgument: there is no such drawing.
    """
    if name not in pictures():
        raise WrongArgument(f"No picture {name!r} is known; there are {', '.join(pictures())}.")
    svg = FOLDER.joinpath(f"{name}.svg").read_text(encoding="utf-8")
    return Showable(unescape(TITLE.findall(svg)[0]), svg)

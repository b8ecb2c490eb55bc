"""The parts of the pool's page, each drawn anew only when what it is made of is another.

A full lab changes often and in one place: of seven GPUs and 200 who wait, one GPU.  What each
viewer was shown last is kept here, with what it was made of, and compared by value.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast
from zlib import crc32

from markupsafe import Markup

from miglab_pool.http.access.principal import Principal
from miglab_pool.http.pages.frame import render_part

VIEWERS = 64
AGED_S = 30.0  # "42 min left" is drawn anew as often; browsers count on by themselves
Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class Part(Generic[Drawn]):
    """A part of the page.

    Attributes:
        name: its element's name.
        drawn: what its template showed.
        html: what is in it.
        version: another one for other HTML.
    """

    name: str
    drawn: Drawn
    html: Markup
    version: str


class PartsCache:
    """What one viewer was shown last."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, Part[object]]] = {}

    def part(
        self, name: str, template: str, made_of: object, draw: Callable[[], Drawn], now: float
    ) -> Part[Drawn]:
        """The part, as it was if it would be the same.

        Args:
            name: its element's name.
            template: of its HTML; finds what is drawn as ``drawn``, and ``now``.
            made_of: all that it follows from but the time of day.
            draw: makes what the template shows.
            now: seconds since the epoch.
        """
        key = (int(now // AGED_S), made_of)
        before = self._kept.get(name)
        if before is not None and before[0] == key:
            return cast("Part[Drawn]", before[1])
        part = _part(name, template, draw(), now)
        self._kept[name] = (key, cast("Part[object]", part))
        return part


def _part(name: str, template: str, drawn: Drawn, now: float) -> Part[Drawn]:
    html = render_part(template, drawn=drawn, now=now)
    markup = Markup(html)  # noqa: S704 -- Jinja has escaped what is in it
    return Part(name, drawn, markup, f"{crc32(html.encode()):08x}")


class Shelves:
    """A shelf for each viewer; whoever has not looked for the longest time gives way."""

    def __init__(self, limit: int = VIEWERS) -> None:
        self._limit = limit
        self._shelves: OrderedDict[object, PartsCache] = OrderedDict()

    def of(self, principal: Principal) -> PartsCache:
        """The viewer's: the same for all their browsers, another when their rights are."""
        key = (
            principal.kind,
            principal.name,
            principal.admin,
            principal.instructs,
            principal.assists,
        )
        shelf = self._shelves.pop(key, None) or PartsCache()
        self._shelves[key] = shelf
        while len(self._shelves) > self._limit:
            self._shelves.popitem(last=False)
        return shelf

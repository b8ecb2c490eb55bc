"""Who published a figure: author, title and link, for the notebook that draws it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.evidence import published


@dataclass(frozen=True)
class Citations:
    """Some sources, as a list in a notebook or as text."""

    cited: tuple[published.Publication, ...]

    def __repr__(self) -> str:
        return "\n".join(str(one) for one in self.cited)

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<li>{escape(one.author)}: <a href='{escape(one.link)}'>{escape(one.title)}</a>"
            f"{escape(one.where)}</li>"
            for one in self.cited
        )
        return f"<p>Sources:</p><ul>{lines}</ul>"


@public
def cite(*names: str) -> Citations:
    """The sources of published figures: "cern5", "cern6", "dettmers", "habr", "nvidia".

    Raises:
        WrongArgument: there is no such source.
    """
    known = published.publications()
    for name in names:
        if name not in known:
            raise WrongArgument(f"No source {name!r} is known; there are {', '.join(known)}.")
    return Citations(tuple(one for name in names for one in known[name]))

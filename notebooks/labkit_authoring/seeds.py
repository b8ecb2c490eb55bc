"""Where every published figure is shown: the docs' table is made of it."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.evidence import published
from labkit.notebook.catalogue import EXPERIMENTS

SOURCES = Path(__file__).parent.parent / "src"
NAMED = re.compile(
    r"f?\"((?:cern5|cern6|dettmers|habr)\.[^\"]+|(?:nvidia\.)?(?:finetune|infer)\.[^\"]+)\""
)


def shown_in() -> dict[str, list[str]]:
    """By figure, the panels over which the catalogue draws it, then the notebooks that name it."""
    found: dict[str, list[str]] = {}
    for key, experiment in EXPERIMENTS.items():
        row = experiment.published
        for name in filter(None, (*row.places, row.base)) if row else ():
            found.setdefault(name, []).append(key)
    for source in sorted(SOURCES.glob("[1-9]*_*.py")):
        for name in set(NAMED.findall(source.read_text(encoding="utf-8"))):
            whole = name if name.split(".")[0] in published.SHORT else f"nvidia.{name}"
            pattern = re.sub(r"\\{[^}]*\\}", r"[^.]+", re.escape(whole))  # braces: any part of it
            for figure in filter(re.compile(pattern).fullmatch, published.figures()):
                found.setdefault(figure, []).append(f"{source.name[0]}: printed")
    return found

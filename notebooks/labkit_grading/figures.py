"""Plots as SVG files, for the gallery and for graders; needs vl-convert, which students do not."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.errors import LabError
from labkit.panel import vega
from labkit.panel.plot import Plot

WIDTH = 640
SUFFIX = ".vl.json"
PADDING = {"left": 20, "top": 5, "right": 5, "bottom": 5}
"""Pixels around a drawing: readers' fonts may be wider than what vl-convert measures by."""


def renderer() -> ModuleType:
    """Return vl-convert.

    Raises:
        LabError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise LabError("Figures are drawn by vl-convert: pip install vl-convert-python.") from error
    module: ModuleType = vl_convert
    return module


def svg(plot: Plot) -> str:
    """A plot with title and caption; `renderer` says what it raises."""
    return drawn(vega.spec(plot, WIDTH, titled=True))


def drawn(spec: dict[str, Any]) -> str:
    """A specification as SVG; `renderer` says what it raises."""
    padded = json.dumps({**spec, "padding": PADDING})
    text: str = renderer().vegalite_to_svg(padded, vl_version="5.8")
    return text.strip() + "\n"


def write_spec(plot: Plot, file: Path) -> None:
    """Save a plot's specification, which `drawn` can draw where vl-convert is installed."""
    text = json.dumps(vega.spec(plot, WIDTH, titled=True), ensure_ascii=False)
    file.write_text(text, encoding="utf-8")

"""The code cells of a notebook, each with the section it is in.

Sources are py:percent with marks: between `# <solution>` and `# </solution>` stands what
the student shall write, between `# <student>` and `# </student>` what the student finds instead. A
source is read with its solutions kept. An .ipynb is read as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import jupytext

from labkit.errors import LabError
from make_notebooks import build_text, marked

EXPERIMENT = re.compile(r"""\b[eE]xperiment\(\s*(?:key\s*=\s*)?["']([^"']+)["']""")
HEADING = re.compile(r"^#{1,2} +(.+)$", re.MULTILINE)
START = "start"


@dataclass(frozen=True)
class Cell:
    """One code cell: its number among the code cells, its text, the heading it stands under."""

    number: int
    text: str
    section: str


def read_cells(path: Path) -> list[Cell]:
    """The code cells of a .py or .ipynb in order.

    Raises:
        LabError: there is no such file, it is neither kind, or it is not whole.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{path} cannot be read: {error}") from error
    if path.suffix == ".ipynb":
        return notebook_cells(text, path.name)
    if path.suffix == ".py":
        source = jupytext.reads(build_text(text, solutions=True), fmt="py:percent")
        return _numbered([(cell.cell_type, cell.source) for cell in source.cells])
    raise LabError(f"{path.name} is neither a .py source nor an .ipynb notebook")


def notebook_cells(text: str, name: str) -> list[Cell]:
    """The code cells of an .ipynb's text.

    Raises:
        LabError: it is no notebook.
    """
    try:
        cells = json.loads(text)["cells"]
        kinds_and_texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{name} is not a whole notebook: {error}") from error
    return _numbered(kinds_and_texts)


def solution_lines(text: str) -> set[int]:
    """The numbers, in the text with solutions, of the lines that are solutions."""
    blocks = [block for _, block in marked(text) if block != "student"]
    return {number for number, block in enumerate(blocks, 1) if block == "solution"}


def notebooks_of(sources: Path) -> dict[str, Path]:
    """The notebook of each experiment, by its key; empty where there are no sources."""
    notebook_of: dict[str, Path] = {}
    for source in sorted(sources.glob("*")):
        for cell in read_cells(source) if source.suffix in (".py", ".ipynb") else ():
            for match in EXPERIMENT.finditer(cell.text):
                notebook_of.setdefault(match[1], source)
    return notebook_of


def _numbered(cells: list[tuple[str, str]]) -> list[Cell]:
    section, code_cells = START, list[Cell]()
    for kind, text in cells:
        if kind == "markdown":
            headings = HEADING.findall(text)
            section = headings[-1].strip() if headings else section
        elif kind == "code" and text.strip():
            code_cells.append(Cell(len(code_cells) + 1, text, section))
    return code_cells

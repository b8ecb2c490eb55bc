"""Makes the notebooks from their only source, py:percent.

``make_notebooks.py [--solutions] SRC TARGET`` leaves out what stands between ``# <solution>`` and
``# </solution>`` and uncomments what stands between ``# <student>`` and ``# </student>``; with
``--solutions`` it is the other way round.

The same source gives the same bytes: cell ids are counted, not drawn, so that a notebook nobody
edited can be told from one that somebody did.  Needs jupytext.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
BLOCKS = ("solution", "student")


def build_text(text: str, *, solutions: bool) -> str:
    """The source of one build, its marks gone.

    Raises:
        ValueError: a mark is not closed, or closes nothing.
    """
    return "".join(
        line.replace("# ", "", 1) if block == "student" else line
        for line, block in marked(text)
        if block is None or (block == "solution") == solutions
    )


def marked(text: str) -> Iterator[tuple[str, str | None]]:
    """Every line but the marks, with the block it stands in; raises as `build_text`."""
    block = None
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        mark = line.strip().removeprefix("# ")
        if mark in [f"<{name}>" for name in BLOCKS]:
            if block:
                raise ValueError(f"line {number}: {mark} inside <{block}>")
            block = mark.strip("<>")
        elif mark in [f"</{name}>" for name in BLOCKS]:
            if mark != f"</{block}>":
                raise ValueError(f"line {number}: {mark} closes nothing")
            block = None
        else:
            yield line, block
    if block:
        raise ValueError(f"<{block}> is never closed")


def make(source: Path, target: Path, *, solutions: bool = False) -> None:
    """Write one notebook, without outputs.

    Raises:
        ValueError: the marks in the source do not match.
    """
    import jupytext  # not where a source is only read

    try:
        text = build_text(source.read_text(encoding="utf-8"), solutions=solutions)
    except ValueError as error:
        raise ValueError(f"{source.name}, {error}") from error
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = {"kernelspec": KERNEL}
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"{source.stem.replace('_', '-')[:40]}-{place}"
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    jupytext.write(notebook, target, fmt="ipynb")


def main() -> int:
    """Make every notebook of a folder."""
    parser = argparse.ArgumentParser(description="Make the notebooks from their source.")
    parser.add_argument("--solutions", action="store_true", help="keep the solutions")
    parser.add_argument("sources", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    options.target.mkdir(parents=True, exist_ok=True)
    for source in sorted(options.sources.glob("*.py")):
        make(source, options.target / f"{source.stem}.ipynb", solutions=options.solutions)
    return 0


if __name__ == "__main__":
    sys.exit(main())

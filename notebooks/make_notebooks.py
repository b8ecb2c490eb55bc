"""Makes the notebooks from their only source, py:percent: ``make_notebooks.py SRC TARGET``.

The same source gives the same bytes: cell ids are counted, not drawn, so that a notebook nobody
edited can be told from one that somebody did.  Needs jupytext.
"""

import sys
from pathlib import Path

import jupytext

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def make(source: Path, target: Path) -> None:
    """Write one notebook, without outputs."""
    notebook = jupytext.read(source)
    notebook.metadata = {"kernelspec": KERNEL}
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"{source.stem.replace('_', '-')[:40]}-{place}"
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    jupytext.write(notebook, target, fmt="ipynb")


def main() -> int:
    """Make every notebook of a folder."""
    sources, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted(sources.glob("*.py")):
        make(source, target / f"{source.stem}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())

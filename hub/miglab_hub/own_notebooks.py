"""Makes notebooks for local students from the lab's py:percent sources (an image has its own)."""

from pathlib import Path

import jupytext


def make_notebooks(sources: Path, target: Path) -> list[str]:
    """Convert what is new or has changed.

    Args:
        sources: the folder of the ``.py`` files; one that is not there has none.
        target: where the ``.ipynb`` files go; made if missing.

    Returns:
        The names of the notebooks made.
    """
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for source in sorted(sources.glob("*.py")):
        notebook = target / f"{source.stem}.ipynb"
        if notebook.exists() and notebook.stat().st_mtime >= source.stat().st_mtime:
            continue
        unfinished = notebook.with_suffix(".new.ipynb")
        jupytext.write(jupytext.read(source, fmt="py:percent"), unfinished)
        unfinished.replace(notebook)
        made.append(notebook.name)
    return made

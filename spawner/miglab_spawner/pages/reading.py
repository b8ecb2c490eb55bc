"""A notebook as a page to read while a server waits: rendered, and never executed.

Raw HTML in it is shown as text, and links have the schemes that markdown-it allows, so a notebook
brings nothing into the hub's pages that runs.
"""

import json
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("js-default")  # with tables, without raw HTML


def first_notebook(folder: str) -> Path | None:
    """Return the first notebook of a folder by name; None if there is none."""
    return min(Path(folder).glob("[!.]*.ipynb"), default=None) if folder else None


def render_notebook(notebook: Path) -> str:
    """Return a notebook's texts and code as HTML, without outputs.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no notebook.
    """
    status = notebook.stat()
    return _render(notebook, (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=1)  # a class reads the same notebook, and the hub has one thread for everybody
def _render(notebook: Path, _version: tuple[int, int]) -> str:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    try:
        return "\n".join(map(_cell, content["cells"]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{notebook} is no notebook.") from error


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return str(_MARKDOWN.render(text))
    code = f'<pre tabindex="0"><code>{escape(text)}</code></pre>'  # it scrolls, also by keyboard
    if cell.get("metadata", {}).get("jupyter", {}).get("source_hidden"):
        return f"<details><summary>Code</summary>{code}</details>"
    return code

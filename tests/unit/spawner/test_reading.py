"""A notebook to read on a page of the hub: whole, and nothing in it runs."""

import json
from pathlib import Path

import pytest

from miglab_spawner.pages.reading import first_notebook, render_notebook

HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(1)> [go](javascript:alert(1)) "
    "[here](data:text/html,x)"
)


def write(folder: Path, name: str, *cells: dict[str, object]) -> Path:
    """Write a notebook of these cells."""
    file = folder / name
    file.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    return file


def markdown(text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "source": text, "metadata": {}}


def code(text: str, **metadata: object) -> dict[str, object]:
    return {"cell_type": "code", "source": [text], "metadata": metadata, "outputs": [{}]}


def test_texts_and_code_are_shown(tmp_path: Path) -> None:
    """Headings and tables as such, code as it stands, and closed where JupyterLab closes it."""
    file = write(
        tmp_path,
        "1.ipynb",
        markdown("# Your slice\n\n| a | b |\n|---|---|\n| 1 | 2 |"),
        code("x = 1 < 2"),
        code("y = 3", jupyter={"source_hidden": True}),
    )
    html = render_notebook(file)
    assert "<h1>Your slice</h1>" in html and "<td>1</td>" in html
    assert '<pre tabindex="0"><code>x = 1 &lt; 2</code></pre>' in html
    assert "<summary>Code</summary>" in html.partition("1 &lt; 2")[2]


@pytest.mark.parametrize("cell", [markdown(HOSTILE), code(HOSTILE)], ids=["markdown", "code"])
def test_nothing_in_it_runs(tmp_path: Path, cell: dict[str, object]) -> None:
    """Raw HTML is text, and a link with a scheme that runs is none."""
    html = render_notebook(write(tmp_path, "1.ipynb", cell))
    assert "<script" not in html and "<img" not in html and "<a " not in html


def test_the_first_by_name_and_as_it_is_now(tmp_path: Path) -> None:
    """Without notebooks there is none; a changed one is rendered anew."""
    assert first_notebook("") is None and first_notebook(str(tmp_path)) is None
    write(tmp_path, "2.ipynb", markdown("two"))
    file = write(tmp_path, "1.ipynb", markdown("one"))
    assert first_notebook(str(tmp_path)) == file
    assert "one" in render_notebook(file)
    write(tmp_path, "1.ipynb", markdown("once more"))
    assert "once more" in render_notebook(file)


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    """It is said, and no page is made of it."""
    (tmp_path / "1.ipynb").write_text("[]")
    with pytest.raises(ValueError, match="no notebook"):
        render_notebook(tmp_path / "1.ipynb")

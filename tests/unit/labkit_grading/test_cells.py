"""A notebook's code cells, read without Jupyter."""

import json

import pytest

from labkit.errors import LabError
from labkit_grading import cells
from make_notebooks import build_text

TEXT = """# %% [markdown]
# # 1. Title
# words

# %%
one = 1
# <solution>
one += 1
# </solution>
# <student>
# one = None
# </student>

# %% [markdown]
# ## T-1: a part
# ### detail

# %% tags=["x"]
two = 2
# %%

"""


def test_percent_cells_have_their_sections(tmp_path):
    """Code cells are numbered, empty ones left out, and each stands under the last big heading."""
    file = tmp_path / "one.py"
    file.write_text(TEXT)
    first, second = cells.read_cells(file)
    assert (first.number, first.section, first.text) == (1, "1. Title", "one = 1\none += 1")
    assert (second.number, second.section, second.text) == (2, "T-1: a part", "two = 2")


def test_a_notebook_is_read_as_it_is(tmp_path):
    """The same cells come from an .ipynb, whose source may be a list of lines."""
    notebook_cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"]},
    ]
    file = tmp_path / "one.ipynb"
    file.write_text(json.dumps({"cells": notebook_cells}))
    assert cells.read_cells(file) == [cells.Cell(1, "a = 1\nb = 2", "Title")]


def test_solution_lines_count_in_the_text_with_solutions():
    """The numbers point at the solution, not at the line of the source."""
    (number,) = cells.solution_lines(TEXT)
    assert build_text(TEXT, solutions=True).splitlines()[number - 1] == "one += 1"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.ipynb", "{}", "not a whole notebook"),
        ("a.ipynb", "", "not a whole notebook"),
        ("a.txt", "x", "neither"),
        ("a.py", None, "cannot be read"),
    ],
)
def test_what_is_no_notebook_is_refused_with_a_sentence(tmp_path, name, text, message):
    """Other kinds, cut files and missing ones."""
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(LabError, match=message):
        cells.read_cells(file)

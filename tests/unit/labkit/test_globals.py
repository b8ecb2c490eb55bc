"""A name of a notebook means one thing, so that a report run late reads what it was about."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

CELL = re.compile(r"^# %%.*$", re.MULTILINE)
SOURCES = sorted((Path(__file__).parents[3] / "notebooks/src").glob("*.py"))
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def global_names(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds in the notebook's own namespace; imports mean the same."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    if not isinstance(node, SCOPES + COMPREHENSIONS):
        for child in ast.iter_child_nodes(node):
            yield from global_names(child)


@pytest.mark.parametrize("notebook", SOURCES, ids=lambda path: path.stem)
def test_no_cell_binds_a_name_of_another_cell(notebook: Path) -> None:
    """DP-4's report lost figures after Run All, since DP-7 had bound the name that it looked up."""
    cells_by_name = defaultdict(set)
    for number, cell in enumerate(CELL.split(notebook.read_text())):
        for name in global_names(ast.parse(cell)):
            cells_by_name[name].add(number)
    assert {name: cells for name, cells in cells_by_name.items() if len(cells) > 1} == {}

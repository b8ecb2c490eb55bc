"""What a notebook defines on a machine, without running what it measures.

Statements that only make something are executed, as a kernel does it; loops, output and whatever
measures are left out. `controls` finds the experiments that it runs twice so.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from labkit.measuring import sharing
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel
from labkit.records import Place
from labkit_grading.cells import read_cells

MEASURING = frozenset({"measure", "compare", "ranks", "settle", "where", "below"})
RUNS_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def define(
    notebook: Path,
    place: Place,
    *,
    probing: bool = False,
    changes: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """A notebook's names on a machine, solutions kept; nothing is measured to find out.

    Args:
        notebook: its source.
        place: the machine.
        probing: whether ways to share a GPU are tried; else none but time sharing works.
        changes: by the name of a function or class, what makes another of it.
    """
    untried = mock.patch.object(sharing, "why_not", return_value="not tried")
    with contextlib.nullcontext() if probing else untried:
        return _names(notebook, place, changes)


def _names(
    notebook: Path, place: Place, changes: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Any]:
    names = vars(types.ModuleType("__main__"))
    names["place"] = place
    for cell in read_cells(notebook):
        file = f"<{notebook.name}, cell {cell.number}>"
        linecache.cache[file] = (len(cell.text), None, cell.text.splitlines(keepends=True), file)
        for statement in ast.parse(cell.text).body:
            if _defines(statement):
                code = compile(ast.Module([statement], []), file, "exec")
                # What needs a result fails, and only words for the student are made of results.
                with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                    exec(code, names)  # noqa: S102  the project's own notebook
                defined = getattr(statement, "name", "")
                if defined in changes:
                    names[defined] = changes[defined](names[defined])
    return names


def experiments(names: dict[str, Any]) -> Iterator[Experiment]:
    """The experiments among a notebook's names."""
    yield from (value.experiment for value in names.values() if isinstance(value, Panel))


def _defines(statement: ast.stmt) -> bool:
    """Whether a statement only makes something: no loop, no output, nothing that measures."""
    if isinstance(statement, RUNS_LATER):
        return True
    if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.If):
        return False
    return not any(_measures(node) for node in ast.walk(statement))


def _measures(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Await)
    called: Any = node.func
    return getattr(called, "attr", getattr(called, "id", "")) in MEASURING

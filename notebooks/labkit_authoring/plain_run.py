"""Runs a notebook's code cells in order in this process, where no Jupyter is installed.

`python -m labkit_authoring.plain_run NOTEBOOK REPORT` executes in the current folder, with
top-level await and every cell inside a running loop, as a kernel does. The report is JSON: seconds
per section, what was left unfinished, and beside it the figures of all panels. Exit status 1 when a
cell raised.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import linecache
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.panel.panel import Panel
from labkit_grading import figures
from labkit_grading.cells import Cell, read_cells


class PlainRun:
    """One notebook under way."""

    def __init__(self, name: str) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: str | None = None
        self._name = name
        self._main = types.ModuleType("__main__")
        vars(self._main)["display"] = print

    async def run(self, cells: list[Cell]) -> None:
        """Run the cells until one raises."""
        sys.modules["__main__"] = self._main  # where the notebook's classes look for themselves
        for cell in cells:
            begun = time.monotonic()
            try:
                await self._cell(cell)
            except Exception as error:  # outermost frame: a notebook's cell may raise anything
                self.failed = f"cell {cell.number} ({cell.section}): {_words(error)}"
                return
            finally:
                took = time.monotonic() - begun
                self.seconds[cell.section] = self.seconds.get(cell.section, 0.0) + took

    async def _cell(self, cell: Cell) -> None:
        file = f"<{self._name}, cell {cell.number}>"
        linecache.cache[file] = (len(cell.text), None, cell.text.splitlines(keepends=True), file)
        tree = ast.parse(cell.text, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        await self._execute(tree, file, "exec")
        if isinstance(last, ast.Expr):
            shown = await self._execute(ast.Expression(last.value), file, "eval")
            if shown is not None:
                print(shown, flush=True)

    async def _execute(self, tree: ast.AST, file: str, mode: str) -> Any:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, file, mode, flags=flags)  # type: ignore[call-overload]
        found = eval(code, vars(self._main))  # noqa: S307  the notebook's own code, as a kernel runs it
        return await found if code.co_flags & inspect.CO_COROUTINE else found

    def panels(self) -> Iterator[Panel]:
        """The panels the notebook made, each once."""
        seen: dict[str, Panel] = {}
        for value in vars(self._main).values():
            inside = value if isinstance(value, list | tuple) else [value]
            seen.update({one.experiment.key: one for one in inside if isinstance(one, Panel)})
        yield from seen.values()

    def keep_figures(self, folder: Path) -> None:
        """Write the plot of every panel that measured."""
        for panel in self.panels():
            if panel.evidence.points:
                folder.mkdir(exist_ok=True)
                figures.write_spec(
                    panel.plots()[0], folder / f"{panel.experiment.key}{figures.SUFFIX}"
                )

    def unfinished(self) -> dict[str, str]:
        """Which experiments ended early, and why."""
        ended = {panel.experiment.key: panel.evidence.stopped for panel in self.panels()}
        return {key: why for key, why in ended.items() if why}


def _words(error: Exception) -> str:
    if isinstance(error, LabError):
        return str(error)
    own = [f for f in traceback.extract_tb(error.__traceback__) if ", cell " in f.filename]
    place = f"line {own[-1].lineno}: {own[-1].line}: " if own else ""
    return f"{place}{type(error).__name__}: {error}"


def main(arguments: list[str] | None = None) -> int:
    """Run one notebook here and write the report."""
    notebook, report = (Path(one) for one in (arguments or sys.argv[1:]))
    run = PlainRun(notebook.name)
    asyncio.run(run.run(read_cells(notebook)))
    run.keep_figures(Path("figures"))
    said = {"seconds": run.seconds, "failed": run.failed, "unfinished": run.unfinished()}
    report.write_text(json.dumps(said), encoding="utf-8")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())

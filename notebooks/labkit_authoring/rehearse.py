"""Rehearse notebooks on this slice: how long each section takes, and what it leaves behind.

Each notebook runs in a kernel of its own, in a folder of its own, marked headless.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode, v4

from labkit.errors import LabError
from labkit.machine.parts import EMULATE
from labkit.panel.panel import Panel
from labkit.run.child import child_env
from labkit_grading import figures
from labkit_grading.cells import Cell, read_cells

SLICE = "sms=16,memory_mib=4352"  # what a 1g.5gb leaves a process, with an SM count Hopper can give
END_S = 15  # for what was interrupted, and to keep what was measured
KEEP = "import labkit_authoring.rehearse\nprint(labkit_authoring.rehearse.keep_plots(globals()))"
RAISED = re.compile(r"-+> (\d+) (.*)")  # the cell's line in a traceback
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Rehearsal:
    """The result of running one notebook.

    Attributes:
        seconds: per section, in order.
        failed: what stopped it, or None.
        unfinished: experiments that ended early, with the reason.
        folder: where its `evidence` and `figures` lie.
    """

    notebook: str
    folder: Path
    seconds: Mapping[str, float] = field(default_factory=dict)
    failed: str | None = None
    unfinished: Mapping[str, str] = field(default_factory=dict)
    total_s: float = 0.0

    def __str__(self) -> str:
        rows = [f"{took / 60:6.1f} min  {name}" for name, took in self.seconds.items()]
        rows += [f"unfinished: {key}: {reason}" for key, reason in self.unfinished.items()]
        rows += [f"failed: {self.failed}"] if self.failed else []
        head = f"{self.notebook}: {self.total_s / 60:.1f} min of machine time"
        return "\n".join([head, *(f"  {row}" for row in rows)])


def rehearse(notebook: Path, folder: Path, *, emulate: bool = False, limit_s: float) -> Rehearsal:
    """Run one notebook, solutions kept, in `folder`.

    Args:
        notebook: a py:percent source or an .ipynb.
        folder: made if needed; what the notebook writes, and what it shows, lies there afterwards.
        emulate: confine it to a make-believe slice; every record then says so.
        limit_s: after this it is ended, and what it measured until then stays in the folder.
    """
    if not notebook.is_file():
        raise LabError(f"There is no notebook {notebook}")
    folder.mkdir(parents=True, exist_ok=True)
    added = {"LAB_HEADLESS": "1", **({EMULATE: SLICE} if emulate else {})}
    started_s = time.monotonic()
    cells = read_cells(notebook)
    client = NotebookClient(
        _notebook([*(cell.text for cell in cells), KEEP]),
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        timeout_func=lambda _: max(1, round(started_s + limit_s - time.monotonic())),
        interrupt_on_timeout=True,
        error_on_timeout={
            "ename": "TimeoutError",
            "evalue": f"ended after {limit_s:g} s, its limit",
            "traceback": [],
        },
    )
    seconds, failed, unfinished = asyncio.run(
        _run_cells(client, cells, child_env(os.environ, added))
    )
    (folder / f"{notebook.stem}.ipynb").write_text(json.dumps(client.nb), encoding="utf-8")
    took = time.monotonic() - started_s
    return Rehearsal(notebook.name, folder, seconds, failed, unfinished, took)


def _notebook(texts: Sequence[str]) -> NotebookNode:
    new: Any = v4  # which is untyped
    notebook: NotebookNode = new.new_notebook(cells=[new.new_code_cell(text) for text in texts])
    return notebook


async def _run_cells(
    client: NotebookClient, cells: Sequence[Cell], env: Mapping[str, str]
) -> tuple[dict[str, float], str | None, dict[str, str]]:
    """Run the cells until one fails, then keep what was measured; as `Rehearsal` has it."""
    seconds: dict[str, float] = {}
    failed, unfinished = None, "{}"
    async with client.async_setup_kernel(env=env):
        try:
            for cell in cells:
                started_s = time.monotonic()
                try:
                    at = cell.number - 1
                    await client.async_execute_cell(client.nb.cells[at], at)
                except CellExecutionError as error:
                    failed = f"cell {cell.number} ({cell.section}): {_error_in_words(error)}"
                    break
                finally:
                    took = time.monotonic() - started_s
                    seconds[cell.section] = seconds.get(cell.section, 0.0) + took
            client.timeout_func = lambda _: END_S
            kept_cell = await client.async_execute_cell(client.nb.cells[-1], len(cells))
            unfinished = kept_cell.outputs[0].text
        except (CellExecutionError, DeadKernelError) as error:
            failed = failed or str(error)
    return seconds, failed, json.loads(unfinished)


def _error_in_words(error: CellExecutionError) -> str:
    place = RAISED.search(COLOUR.sub("", error.traceback))
    error_text = f"{error.ename}: {error.evalue}"
    return f"line {place[1]}: {place[2].strip()}: {error_text}" if place else error_text


def keep_plots(names: Mapping[str, Any]) -> str:
    """Save the plots of all panels that measured; return as JSON which ended early, and why."""
    values = list(names.values())
    inside = (value if isinstance(value, list | tuple) else [value] for value in values)
    panels = {p.experiment.key: p for part in inside for p in part if isinstance(p, Panel)}
    Path("figures").mkdir(exist_ok=True)
    for key, panel in panels.items():
        if panel.evidence.points:
            figures.write_spec(panel.plots()[0], Path("figures", f"{key}{figures.SUFFIX}"))
    ended = {key: panel.evidence.stopped for key, panel in panels.items()}
    return json.dumps({key: reason for key, reason in ended.items() if reason})

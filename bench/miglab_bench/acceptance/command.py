"""`./lab check`: an acceptance run of a whole lab, over HTTP as students and staff use it."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Annotated, TypeVar

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from websocket import WebSocketException

from miglab_bench.acceptance.run import SHAPE, Run
from miglab_bench.acceptance.steps import MORE, POOL, STEPS, TESTING
from miglab_bench.harness.student import CheckFailed
from miglab_bench.harness.temporary import temporary_lab

START = "a temporary lab starts"
END = "the lab ends and leaves no process"
L = TypeVar("L")
R = TypeVar("R")
app = typer.Typer()
EXPECTED = (CheckFailed, httpx.HTTPError, WebSocketException, OSError)


@dataclass(frozen=True)
class ReportLine:
    """One line of the report: what held or did not, what was seen, how long it took."""

    name: str
    ok: bool
    detail: str
    took_s: float


class Report:
    """The steps so far, each with the time since the one before."""

    def __init__(self) -> None:
        self.steps: list[ReportLine] = []
        self._began = time.monotonic()

    def add(self, name: str, ok: bool, detail: str) -> None:
        """A step is over."""
        now = time.monotonic()
        self.steps.append(ReportLine(name, ok, detail, round(now - self._began, 1)))
        self._began = now


def say(steps: list[ReportLine], *, as_json: bool) -> int:
    """Print the steps as a table or as JSON.

    Returns:
        0 only if all held.
    """
    is_ok = all(step.ok for step in steps)
    if as_json:
        print(json.dumps({"ok": is_ok, "steps": [asdict(step) for step in steps]}))
    else:
        _print_table(steps)
    return 0 if is_ok else 1


def run_steps(
    temporary: AbstractContextManager[L],
    run_on: Callable[[L], R],
    steps: Iterable[tuple[str, Callable[[R], str]]],
) -> list[ReportLine]:
    """The steps with what came of them; after one that failed, none is tried."""
    report, name = Report(), START
    try:
        with temporary as lab:
            run = run_on(lab)
            report.add(START, True, "ready")
            for name, step in steps:
                report.add(name, True, step(run))
            name = END
        report.add(END, True, "none left")
    except EXPECTED as error:
        report.add(name, False, str(error) or type(error).__name__)
    return report.steps


def _print_table(steps: list[ReportLine]) -> None:
    table = Table("step", "held", "seconds", "seen")
    for step in steps:
        held = "yes" if step.ok else "NO"
        table.add_row(step.name, held, f"{step.took_s:.1f}", escape(step.detail))
    Console().print(table)


@app.command()
def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    docker: Annotated[
        bool, typer.Option("--docker", help="Start students' servers in containers.")
    ] = False,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Start them as jobs of a temporary Slurm; needs root."),
    ] = False,
) -> None:
    """Check a temporary lab with twenty students on one simulated GPU; status 0 if all is well."""
    if slurm:
        raise typer.Exit(say(_steps_on_slurm(), as_json=as_json))
    lab = temporary_lab(docker=docker, pool=POOL, more=MORE, testing=TESTING, lent=(SHAPE,))
    raise typer.Exit(say(run_steps(lab, Run, STEPS), as_json=as_json))


def _steps_on_slurm() -> list[ReportLine]:
    """The steps that a checkout adds, with a Slurm of its own."""
    (point,) = entry_points(group="miglab.checks", name="slurm")
    on_slurm = point.load()
    if absent := on_slurm.missing():
        print(f"--slurm needs {absent}: apt-get install slurmctld slurmd munge slurm-client")
        raise typer.Exit(2)
    return run_steps(on_slurm.lab(), on_slurm.SlurmRun, on_slurm.STEPS)

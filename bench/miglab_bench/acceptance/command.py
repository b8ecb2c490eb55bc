"""`./lab check`: an acceptance run of a whole lab, over HTTP as students and staff use it.

Each step returns what it saw, or raises `CheckFailed`.  Times are shortened by the lab's own
settings.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from typing import Annotated, NoReturn, TypeVar

import httpx
import typer
from websocket import WebSocketException

from miglab_bench.acceptance import borrowing, probing, sharing
from miglab_bench.acceptance.run import Run
from miglab_bench.acceptance.sharing import COURSE, MEMBER
from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.results import say, table_of
from miglab_bench.harness.temporary import temporary_lab
from miglab_hub.errors import StartError

# The first estimates are made of the ends that are set.
POOL = """
lease_s = 600
extension_s = 300
borrow_s = 120
reserve_lead_s = 20
"""
TESTING = """
pool.borrow_linger_s = 5
reclaim.every_s = 1
reclaim.report_s = 2
reclaim.stale_s = 10
reclaim.cpu_busy_pct = 50
"""
MORE = f"""
[reclaim]
idle_wanted_s = 12
warning_s = 15

[courses.{COURSE}]
title = "Practical"
shapes = ["{SHAPE}"]
default = "{SHAPE}"
lends = ["{SHAPE}"]
members = ["student-{MEMBER}"]
"""

STEPS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("nine students sign in", sharing.sign_in),
    ("seven get a slice each, all different", sharing.seven_get_slices),
    ("each cell prints its own slice", sharing.cells_print_slices),
    ("two wait, with positions 1 and 2 and an estimated wait", sharing.two_wait),
    ("idle students are warned, busy ones are not", sharing.idle_are_warned),
    ("“I am still here” keeps a slice", sharing.still_here_keeps_it),
    ("one in the queue starts on CPU and keeps the position", sharing.starts_on_cpu),
    ("an idle slice goes to the next in the queue", sharing.next_is_served),
    ("one stops, and the one on CPU moves to the slice", sharing.moves_to_the_slice),
    ("one comes back and waits", sharing.one_comes_back),
    ("hub and pool are killed: every lease and position is right", sharing.survives_kill),
    ("a reservation goes before the queue", sharing.class_is_served),
    ("its no-show goes to the queue", sharing.no_show_goes_to_the_queue),
    ("all leave and the GPU is empty", sharing.all_leave),
    ("the slices of a reservation are made before it begins", sharing.promise_is_kept),
    ("twenty start servers that borrow", borrowing.twenty_borrow),
    ("all measure at once, each on a slice of its own", borrowing.all_measure_at_once),
    ("afterwards every slice is free", borrowing.all_is_free),
    ("a grant", probing.time_grant),
    ("an offer", probing.time_offer),
    ("an update of the pool's page", probing.time_page_update),
    ("a reclaim: from the decision to a free slice", probing.time_reclaim),
)
START = "a temporary lab starts"
END = "the lab ends and leaves no process"
L = TypeVar("L")
R = TypeVar("R")
app = typer.Typer()
EXPECTED = (StartError, httpx.HTTPError, WebSocketException, OSError)


@dataclass(frozen=True)
class ReportLine:
    """One line of the report: the step, whether it passed, what was observed, and its duration."""

    name: str
    ok: bool
    detail: str
    took_s: float


def run_steps(
    temporary: AbstractContextManager[L],
    run_on: Callable[[L], R],
    steps: Iterable[tuple[str, Callable[[R], str]]],
) -> list[ReportLine]:
    """Run the steps until the first that fails, and return a line of the report for each."""
    steps_done: list[ReportLine] = []
    name, started_at = START, time.monotonic()

    def add(name: str, detail: str, *, ok: bool = True) -> None:
        nonlocal started_at
        before, started_at = started_at, time.monotonic()
        steps_done.append(ReportLine(name, ok, detail, round(started_at - before, 1)))

    try:
        with temporary as lab:
            run = run_on(lab)
            add(START, "ready")
            for name, step in steps:
                add(name, step(run))
            name = END
        add(END, "none left")
    except EXPECTED as error:
        add(name, str(error) or type(error).__name__, ok=False)
    return steps_done


def report(steps: list[ReportLine], *, as_json: bool) -> NoReturn:
    """Print the steps as a table or as JSON, and end with status 0 only if all held."""
    is_ok = all(step.ok for step in steps)
    rows = [
        {"step": step.name, "held": "yes" if step.ok else "NO", "seconds": step.took_s,
         "seen": step.detail}
        for step in steps
    ]  # fmt: skip
    figures = {"ok": is_ok, "steps": [asdict(step) for step in steps]}
    say(figures, table_of(rows), as_json=as_json)
    raise typer.Exit(0 if is_ok else 1)


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
    if slurm:  # the steps that a checkout adds, with a Slurm of its own
        (point,) = entry_points(group="miglab.checks", name="slurm")
        on_slurm = point.load()
        if absent := on_slurm.missing():
            print(f"--slurm needs {absent}: apt-get install slurmctld slurmd munge slurm-client")
            raise typer.Exit(2)
        report(run_steps(on_slurm.lab(), on_slurm.SlurmRun, on_slurm.STEPS), as_json=as_json)
    lab = temporary_lab(docker=docker, pool=POOL, more=MORE, testing=TESTING, lent=(SHAPE,))
    report(run_steps(lab, Run, STEPS), as_json=as_json)

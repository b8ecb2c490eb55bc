"""`./lab bench slurm-class`: thirty students on eight slices of a real Slurm, as browsers would.

A lab as `./lab up` starts it, over two nodes.  Everybody chooses on the spawn page and gets a
server of their own; who waits reads a position, and every third starts on CPU meanwhile and moves
when the slice is offered.  Then they run notebook 1, or a cell of it, and do nothing more: they are
warned, the slice is reclaimed, and the next one starts.
"""

import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from miglab_bench.harness.student import CheckFailed, Student, wait_for
from miglab_hub.checkout import make_notebooks
from miglab_slurm_bench.cluster import require_slurm
from miglab_slurm_bench.lab import SlurmLab, slurm_lab

SHAPE, GRES = "1g.5gb", {"1g.5gb": 4}
SLICES = 8
NOTEBOOK = "notebooks/1_your_slice.ipynb"
PATIENCE_S = 1800.0
"""A class may be long where the machine is slow: nothing here is about time."""
MORE = """
[reclaim]
idle_wanted_s = 20
idle_s = 60
warning_s = 30
"""
TESTING = (
    "reclaim = {every_s = 1, report_s = 4, stale_s = 60, "
    "holding_factor = 1, unused_s = 30, cpu_busy_pct = 50}"
)
WHERE = "import os; print(os.environ['SLURM_JOB_ID'], os.environ.get('SLURM_JOB_GPUS', 'none'))"


@dataclass
class Seat:
    """What one student went through."""

    name: str
    position: str = ""
    on_cpu: bool = False
    job: int = 0
    ran_notebook: bool = False
    warned: bool = False
    message: str = ""
    failed: str = ""

    @property
    def is_well(self) -> bool:
        """Whether all of it happened."""
        return bool(self.job and self.warned and self.message) and not self.failed


def bench_slurm_class(
    students: Annotated[int, typer.Option(min=2, help="How many students.")] = 30,
    notebooks: Annotated[
        int, typer.Option(min=0, help="How many of them run all of notebook 1.")
    ] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """A class on Slurm over HTTP, until everybody had a slice and gave it back; needs root."""
    require_slurm("slurm-class")
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, _lab(Path(folder)) as on:
        lesson = SlurmLessonOverHttp(on, notebooks)
        seats = lesson.run(students)
        jobs_left = _jobs_left(on)
    results = {
        "students": students,
        "well": sum(seat.is_well for seat in seats),
        "waited": sum(bool(seat.position) for seat in seats),
        "on_cpu": sum(seat.on_cpu for seat in seats),
        "ran_notebook": sum(seat.ran_notebook for seat in seats),
        "most_at_a_time": lesson.most,
        "jobs_left": jobs_left,
        "took_s": round(time.monotonic() - began_at),
    }
    rows = [asdict(seat) for seat in seats]
    print(json.dumps({**results, "seats": rows}) if as_json else results)
    if results["well"] != students or lesson.most > SLICES or jobs_left:
        raise typer.Exit(1)


def _jobs_left(on: SlurmLab) -> int:
    """How many jobs Slurm still has when it had time to end them."""
    with suppress(CheckFailed):
        wait_for(lambda: not on.cluster.command("squeue", "-h"), "no job left")
    return len(on.cluster.command("squeue", "-h").splitlines())


def _lab(folder: Path) -> AbstractContextManager[SlurmLab]:
    make_notebooks(folder)
    return slurm_lab(gres=GRES, notebooks=str(folder), tables=MORE, testing=TESTING)


class SlurmLessonOverHttp:
    """Everybody at once, each in a thread of their own."""

    def __init__(self, on: SlurmLab, notebooks: int) -> None:
        self._on, self._notebooks = on, notebooks
        self.most = 0

    def run(self, students: int) -> list[Seat]:
        """All of them, until the last slice is given back."""
        with ThreadPoolExecutor(students) as people:
            return list(people.map(self._one, range(students)))

    def _one(self, number: int) -> Seat:
        seat = Seat(f"student-{number}")
        try:
            with closing(self._on.lab.signed_in(seat.name)) as student:
                student.ask(SHAPE)
                self._until_slice(student, seat, likes_cpu=number % 3 == 0)
                self._work(student, seat, is_whole=number < self._notebooks)
                _patiently(partial(_is_warned, student, seat), "the warning")
                _patiently(student.has_no_server, "the slice to be reclaimed")
                seat.message = student.news()
        except Exception as error:
            seat.failed = f"{type(error).__name__}: {error}"[:300]
        return seat

    def _until_slice(self, student: Student, seat: Seat, *, likes_cpu: bool) -> None:
        _patiently(lambda: student.is_ready() or bool(student.waiting()), "an answer")
        if view := student.waiting():
            seat.position = str(view["message"])
        if seat.position and likes_cpu:
            student.start_alternative("cpu")
            seat.on_cpu = True
            _patiently(student.is_ready, "a server on CPU")
            student.run_cell("")
            _patiently(student.is_offered, "the offer")
            student.move()
            _patiently(lambda: not self._is_on_cpu(student), "the server on CPU to be over")
        _patiently(student.is_ready, "a server with the slice")

    def _is_on_cpu(self, student: Student) -> bool:
        comments = self._on.cluster.command("squeue", "-h", "-p", "labcpu", "-o", "%k")
        return f'"user":"{student.name}"' in comments

    def _work(self, student: Student, seat: Seat, *, is_whole: bool) -> None:
        job, gpu = student.run_cell(WHERE).split()
        if gpu == "none":
            raise CheckFailed("its job has no slice")
        seat.job = int(job)
        running = self._on.cluster.command("squeue", "-h", "-t", "RUNNING", "-p", "lab", "-o", "%i")
        self.most = max(self.most, len(running.split()))
        if is_whole:
            student.run_notebook(NOTEBOOK)
            seat.ran_notebook = True


def _patiently(look: Callable[[], bool], event: str) -> None:
    wait_for(look, event, PATIENCE_S)


def _is_warned(student: Student, seat: Seat) -> bool:
    if student.has_no_server():
        return True
    seat.warned = student.is_warned()
    return seat.warned

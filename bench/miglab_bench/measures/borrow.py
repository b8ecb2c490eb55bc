"""`./lab bench borrow`: how long a measurement on a borrowed slice waits for its first sample.

One student at a time measures twice in a row: in a new runner, and in the one that lingers.  Then
seven at once, then on a held slice and on a borrowed one in turns, and last the hub answers while
many streams pass through it, and before and after.  What is found is said as it comes.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from miglab_api.offers import BORROW
from miglab_bench.harness.in_server import run_in_server
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_bench.measures.ratio import p95

SHAPE = "1g.5gb"
SLICES = 7
LINGER_S = 3
POOL = f"borrow_linger_s = {LINGER_S}"
NEW_S, LINGERING_S, HUB_RATIO, SAMPLES_APART = 6.0, 0.5, 1.1, 0.02
PROBE_S, PROBE_EVERY_S = 20.0, 0.05
AT_A_TIME = 4  # servers that start together, before anything is measured
LIMIT_S = 900.0  # until every stream runs, and the hub has answered
IN_A_ROW = 5  # measurements on each kind of slice before it is the other's turn

MEASURE = """
import json, time
from labkit.measuring.measure import measure_async

def product(size=128):
    import torch
    torch.set_num_threads(1)
    a = torch.ones(size, size)
    return lambda: a @ a

async def once():
    first, began = [], time.perf_counter()
    def look(readings):
        if readings.count() and not first:
            first.append(time.perf_counter() - began)
    record = await measure_async(product, samples=40, on_update=look)
    return {"first_s": first[0], "median_s": record.median_s}

print(json.dumps([await once() for _ in range(TIMES)]))
"""
STREAM = """
import asyncio, json
from pathlib import Path
from labkit.measuring.measure import measure_async

def naps():
    import time
    return lambda: time.sleep(0.05)

def look(readings):
    if readings.count():
        Path("streams").touch()

stream = asyncio.create_task(
    measure_async(naps, samples=10**6, budget_s=LIMIT_S, timeout_s=LIMIT_S, on_update=look)
)
while not Path("enough").exists() and not stream.done():
    await asyncio.sleep(0.2)
if stream.done():
    stream.result()  # it failed, and says why
stream.cancel()
print(json.dumps(None))
"""
STREAMS = """
import json
from pathlib import Path
print(json.dumps(Path("streams").exists()))
"""
ENOUGH = """
from pathlib import Path
Path("enough").touch()
print("null")
"""


@dataclass(frozen=True)
class BorrowFigures:
    """What came of it; seconds.

    Attributes:
        new_s: from the call to the first sample in a new runner, median of the rounds.
        lingering_s: the same in a runner that lingers.
        at_once_p50_s: seven students at once, each in a new runner: the median.
        at_once_s: the same: the longest.
        sample_ratio: a borrowed slice's time of a sample over a held one's, median of the rounds.
        hub_p95_s: of the hub's answers while nobody measures: the mean of before and after.
        streams_p95_s: the same while so many measurements pass through it.
        streams: how many.
    """

    new_s: float
    lingering_s: float
    at_once_p50_s: float
    at_once_s: float
    sample_ratio: float
    hub_p95_s: float
    streams_p95_s: float
    streams: int

    @property
    def holds(self) -> bool:
        """Whether all that was asked for is met."""
        is_quick = self.new_s <= NEW_S and self.lingering_s <= LINGERING_S
        is_alike = abs(self.sample_ratio - 1) <= SAMPLES_APART
        return is_quick and is_alike and self.streams_p95_s <= HUB_RATIO * self.hub_p95_s


def bench_borrow(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements one at a time.")] = 20,
    streams: Annotated[int, typer.Option(min=1, help="Measurements at once for the hub.")] = 20,
    docker: Annotated[bool, typer.Option(help="In containers, or in local processes.")] = True,
) -> None:
    """Borrow: from `measure()` to the first sample, and what the hub bears meanwhile."""
    with temporary_lab(
        docker=docker, pool=POOL, lent=(SHAPE,), gpus=-(-streams // SLICES) or 1
    ) as lab:
        figures = _measure(lab, rounds, streams)
    how = (
        f"{rounds} rounds, {'containers' if docker else 'local processes'}, simulated GPUs: every "
        f"sample is of this machine's CPU; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores "
        "at the end"
    )
    said = {**asdict(figures), "holds": figures.holds}
    if as_json:
        print(json.dumps({**said, "how": how}))
        return
    table = Table("what", "figure")
    for name, value in said.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table, how)


def _measure(lab: TemporaryLab, rounds: int, streams: int) -> BorrowFigures:
    students = [_student(lab, number) for number in range(1, max(streams, SLICES) + 2)]
    first, holder = students[0], students.pop()
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        list(threads.map(lambda student: _start(student, BORROW), students))
    pairs = [_alone(lab, first.name, times=2) for _ in range(rounds + 1)][1:]  # pages are warm then
    _say("first sample, new and lingering", pairs)
    at_once = sorted(
        one[0]["first_s"] for one in _each(students[:SLICES], lambda name: _run(lab, name, 1))
    )
    _say("seven at once", at_once)
    ratio = _sample_ratio(lab, first.name, holder, rounds)
    before_s = _probe(lab)
    busy_s = _with_streams(lab, students[:streams])
    quiet_s = (before_s + _probe(lab)) / 2
    _say("hub's p95 before, during, after", [before_s, busy_s, 2 * quiet_s - before_s])
    return BorrowFigures(
        new_s=median(new["first_s"] for new, _ in pairs),
        lingering_s=median(again["first_s"] for _, again in pairs),
        at_once_p50_s=median(at_once),
        at_once_s=at_once[-1],
        sample_ratio=ratio,
        hub_p95_s=quiet_s,
        streams_p95_s=busy_s,
        streams=streams,
    )


def _student(lab: TemporaryLab, number: int) -> Student:
    student = Student(lab.settings.public_url, f"student-{number}", lab.password)
    student.sign_in()
    return student


def _start(student: Student, shape: str) -> None:
    student.ask(shape)
    student.wait_until_ready()


def _run(lab: TemporaryLab, name: str, times: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = run_in_server(lab, name, f"TIMES = {times}\n{MEASURE}")
    return found


def _alone(lab: TemporaryLab, name: str, times: int) -> list[dict[str, float]]:
    """Measure while nobody holds anything, not even a runner that lingers."""
    wait_for(lambda: name not in lab.leases(), f"the runner of {name} to be gone")
    return _run(lab, name, times)


def _sample_ratio(lab: TemporaryLab, name: str, holder: Student, rounds: int) -> float:
    """On a borrowed slice and on a held one, in turns."""
    _start(holder, SHAPE)
    ratios = []
    for _ in range(-(-rounds // IN_A_ROW)):
        lent, held = (_run(lab, one, IN_A_ROW) for one in (name, holder.name))
        pairs = zip(lent, held, strict=True)
        ratios += [one["median_s"] / other["median_s"] for one, other in pairs]
    _say("samples, borrowed over held", ratios)
    holder.leave()
    return median(ratios)


def _say(what: str, figures: object) -> None:
    print(f"{what}: {json.dumps(figures)}", file=sys.stderr, flush=True)


def _each(students: Sequence[Student], do: Callable[[str], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(students)) as threads:
        return list(threads.map(do, [student.name for student in students]))


def _with_streams(lab: TemporaryLab, students: Sequence[Student]) -> float:
    """The hub's p95 once every measurement of the students streams."""
    text = f"LIMIT_S = {LIMIT_S}\n{STREAM}"
    with ThreadPoolExecutor(len(students)) as threads:
        runs = [threads.submit(run_in_server, lab, one.name, text) for one in students]
        try:
            for one in students:
                wait_for(partial(_streams, lab, one, runs), "every stream", LIMIT_S)
            return _probe(lab)
        finally:
            for one in students:
                run_in_server(lab, one.name, ENOUGH)
            for run in runs:
                run.result()


def _streams(lab: TemporaryLab, student: Student, runs: Sequence[Future[Any]]) -> bool:
    for run in runs:
        if run.done():
            run.result()
    return bool(run_in_server(lab, student.name, STREAMS))


def _probe(lab: TemporaryLab) -> float:
    """The 95th percentile of the hub's answers, its sign-in page, asked at a steady pace."""
    took, until = list[float](), time.monotonic() + PROBE_S
    with httpx.Client(trust_env=False, timeout=60) as client:
        while time.monotonic() < until:
            began = time.perf_counter()
            client.get(f"{lab.settings.public_url}hub/login")
            took.append(time.perf_counter() - began)
            time.sleep(PROBE_EVERY_S)
    return p95(took)

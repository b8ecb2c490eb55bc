"""`./lab bench decisions`: what the pool's decisions and answers cost with 64 GPUs and a queue.

Each side is a process of its own (`decisions_probe.py`) over its own simulated GPUs, so that a
checkout of another commit can be timed beside this one: the two take turns, question by question.
What is told is processor time of one thread, after one GPU has changed and a second has passed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.measures import decisions_probe

SCENES = {"plain": "plain", "start": "three classes begin"}
QUESTIONS = {
    "match": "a grant that finds nothing",
    "offers": "offers, five courses",
    "snapshot": "snapshot",
    "leases": "all leases",
    "cases": "the reclaimer's leases",
}
ROUNDS = 15
PACKAGES = ("api", "pool", "spawner", "hub")


@dataclass(frozen=True)
class Row:
    """One question in one scene: medians, milliseconds.

    Attributes:
        locked_ms: of them with the pool's lock held.
        other_ms: the other checkout's; None without one.
    """

    scene: str
    question: str
    took_ms: float
    locked_ms: float
    other_ms: float | None = None
    other_locked_ms: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours by the other's."""
        return None if not self.other_ms else self.took_ms / self.other_ms


class CheckoutProbe:
    """A process that answers how long something took."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._answer()

    def ask(self, scene: str, question: str) -> tuple[float, float]:
        """Milliseconds, and how many of them the lock was held."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([scene, question]) + "\n")
        self._process.stdin.flush()
        took_ms, locked_ms = json.loads(self._answer())
        return took_ms, locked_ms

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the probe ended; what it said is above")
        return line


@contextmanager
def probe(checkout: Path, scenes: Sequence[str] = tuple(SCENES)) -> Iterator[CheckoutProbe]:
    """A probe over the packages of a checkout."""
    folders = [str(checkout / name) for name in PACKAGES if (checkout / name).is_dir()]
    process = subprocess.Popen(
        [sys.executable, decisions_probe.__file__, *scenes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    try:
        yield CheckoutProbe(process)
    finally:
        process.kill()
        process.communicate()


def compare(
    ours: CheckoutProbe,
    other: CheckoutProbe | None = None,
    rounds: int = ROUNDS,
    scenes: Sequence[str] = tuple(SCENES),
) -> list[Row]:
    """Every question in every scene, the sides in turns; the first answer of each is dropped."""
    rows = []
    for scene in scenes:
        for question in QUESTIONS:
            pairs = [
                (ours.ask(scene, question), other.ask(scene, question) if other else None)
                for _ in range(rounds + 1)
            ][1:]
            theirs = [pair for _, pair in pairs if pair is not None]
            figures = (
                *_medians([pair for pair, _ in pairs]),
                *(_medians(theirs) if theirs else ()),
            )
            rows.append(Row(scene, question, *figures))
    return rows


def _medians(answers: Sequence[tuple[float, float]]) -> tuple[float, float]:
    took_ms, locked_ms = (round(median(column), 2) for column in zip(*answers, strict=True))
    return took_ms, locked_ms


def bench_decisions(
    against: Annotated[
        Path | None, typer.Option(help="A checkout of another commit to alternate with.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each question is asked.")] = ROUNDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Decisions: cost of grants, offers and snapshots; 64 GPUs, 300 leases, 200 in the queue."""
    here = Path(__file__).resolve().parents[3]
    with ExitStack() as opened:
        ours = opened.enter_context(probe(here))
        other = opened.enter_context(probe(against.resolve())) if against else None
        rows = compare(ours, other, rounds)
    how = (
        f"how: medians of {rounds}, processor time of one thread after one GPU has changed; "
        f"64 simulated GPUs without a free slice, 300 leases, 200 queued; "
        f"Python {sys.version.split()[0]}"
    )
    if as_json:
        typer.echo(json.dumps({"rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}))
        typer.echo(how, err=True)
        return
    console = Console()
    console.print(_table(rows))
    console.print(how)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="what the pool's decisions and answers cost, ms")
    for column in ("scene", "question"):
        table.add_column(column)
    for column in ("took", "under the lock", "other took", "under the lock", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = (row.took_ms, row.locked_ms, row.other_ms, row.other_locked_ms, row.ratio)
        cells = ("" if figure is None else f"{figure:.2f}" for figure in figures)
        table.add_row(SCENES[row.scene], QUESTIONS[row.question], *cells)
    return table

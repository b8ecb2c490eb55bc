"""Measure some of a class's experiments again, drawn by lot, beside what was handed in.

Nobody can tell from a file whether its numbers were measured; this tells whether they could have
been. The course's own notebooks run here, with their solutions, on the slice that the marker
holds: never a student's code. The notebooks that hold what was drawn run whole, one after another.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import EvidenceDamaged, LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Point
from labkit_authoring.rehearse import Rehearsal, rehearse
from labkit_grading.cells import notebooks_of
from labkit_grading.submissions import Submission, read_folder, words_of
from labkit_grading.tables import write_table

Runner = Callable[[Path, Path], Rehearsal]


@dataclass(frozen=True)
class Draw:
    """One experiment of one student's, drawn to be measured again."""

    submission: Submission
    evidence: Evidence


@dataclass(frozen=True)
class RecheckRow:
    """One point, as it was handed in and as it was measured again; empty where it was not.

    Attributes:
        again_over_handed_in: the second value over the first, 1 where they agree.
        look_at: why the two cannot be compared, or what differs between the machines.
    """

    file: str
    claimed_student: str
    experiment: str
    point: str
    unit: str
    handed_in: float | None
    again: float | None
    again_over_handed_in: float | None
    device_handed_in: str
    device_again: str
    look_at: str


def draw(submissions: Sequence[Submission], count: int, luck: random.Random) -> list[Draw]:
    """Draw some of the class's experiments; whatever counts as a student's own may be drawn.

    Raises:
        LabError: there is none.
    """
    runs = [
        Draw(submission, evidence)
        for submission in submissions
        for evidence in submission.evidence.values()
        if evidence.is_students and evidence.points
    ]
    if not runs:
        raise LabError("No experiment in these zips counts as a student's own: nothing to draw.")
    return luck.sample(runs, min(count, len(runs)))


def measured_again(
    draws: Iterable[Draw], sources: Path, folder: Path, run: Runner
) -> dict[str, Evidence | str]:
    """Run the notebooks of what was drawn; by experiment its new evidence, or why there is none.

    Args:
        draws: what was drawn.
        sources: of the notebooks.
        folder: where they run, each in a folder of its own.
        run: runs a notebook in a folder.
    """
    notebook_of = notebooks_of(sources)
    keys = sorted({each.evidence.experiment for each in draws})
    again: dict[str, Evidence | str] = {key: "no notebook has it" for key in keys}
    for notebook in sorted({notebook_of[key] for key in keys if key in notebook_of}):
        rehearsal = run(notebook, folder / notebook.stem)
        print(rehearsal, flush=True)
        for key in (key for key in keys if notebook_of.get(key) == notebook):
            again[key] = _evidence_of(rehearsal, key)
    return again


def _evidence_of(rehearsal: Rehearsal, key: str) -> Evidence | str:
    try:
        return store.load(rehearsal.folder / store.FOLDER / f"{key}.json")
    except EvidenceDamaged as error:
        return rehearsal.failed or str(error)


def rows_of(draws: Iterable[Draw], again: Mapping[str, Evidence | str]) -> Iterator[RecheckRow]:
    """A row for each point that was handed in."""
    for drawn in draws:
        second = again[drawn.evidence.experiment]
        for point in drawn.evidence.points:
            yield _row(drawn, point, second)


def _row(drawn: Draw, point: Point, second: Evidence | str) -> RecheckRow:
    points = () if isinstance(second, str) else second.points
    twin = next((each for each in points if _name(each) == _name(point)), None)
    devices = _device_of(point), _device_of(twin) if twin else ""
    look_at = second if isinstance(second, str) else "" if twin else "this point was not measured"
    if twin and devices[0] != devices[1]:
        look_at = "another device"
    return RecheckRow(
        drawn.submission.file,
        drawn.submission.student,
        drawn.evidence.experiment,
        _name(point),
        drawn.evidence.unit,
        point.value,
        twin.value if twin else None,
        twin.value / point.value if twin and point.value else None,
        *devices,
        look_at,
    )


def _name(point: Point) -> str:
    return f"{point.label}, {point.series}" if point.series else point.label


def _device_of(point: Point) -> str:
    return ", ".join(sorted({each.label for record in point.records for each in record.devices}))


def recheck_folder(
    folder: Path, table: Path, sources: Path, *, count: int, seed: int | None, limit_s: float
) -> None:
    """Draw from a folder of zips, measure again here, and write both values side by side.

    Args:
        folder: of zips.
        table: the CSV to write.
        sources: of the notebooks.
        count: how many experiments to draw.
        seed: repeats a draw; None draws anew.
        limit_s: for each notebook; then it is ended.

    Raises:
        LabError: there is nothing to draw from.
    """
    luck = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311  a repeated draw
    draws = draw(read_folder(folder, sources), count, luck)
    for drawn in draws:
        print(
            f"drawn: {drawn.evidence.experiment} of {words_of(drawn.submission.file)}", flush=True
        )
    with tempfile.TemporaryDirectory(prefix="labkit-recheck-") as temporary:
        again = measured_again(
            draws,
            sources,
            Path(temporary),
            lambda notebook, place: rehearse(notebook, place, limit_s=limit_s),
        )
    rows = list(rows_of(draws, again))
    write_table(RecheckRow, rows, table)
    compared = [row for row in rows if row.again is not None]
    print(f"{len(draws)} experiments, {len(compared)} of {len(rows)} points beside a second value")
    print(f"in {table}. Where the two differ, ask the student before you judge.")

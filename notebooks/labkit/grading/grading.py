"""Mark a folder of handed-in zips: what a machine can judge, and empty columns for what it cannot.

Judged: the evidence's schema and consistency, the prediction before the measurement, the verdict
read rightly, code exact, samples that two students share. An explanation gets 0 to 3 by hand. A
prediction counts for being made, not for being right; no timing is ever run again.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from labkit.errors import LabError
from labkit.evidence import consistency
from labkit.evidence.evidence import Evidence
from labkit.grading import grade_code
from labkit.grading.submissions import Submission, read_folder
from labkit.panel.plot import Mark, Plot, Series
from labkit.panel.plot_svg import render

CAUTION = (
    "These checks deter forgery and cannot prevent it: "
    "who can run labkit can also write such a file. Ask students to explain their numbers."
)
YES, NO, ABSENT = "yes", "no", ""
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Row:
    """One line of the marks: an experiment or an exercise of one student.

    Attributes:
        machine_mark: 1 when everything a machine judged is in order, else 0.
        explanation_0_to_3: left empty, for the marker.
        look_at: what a person should see before believing the rest.
    """

    student: str
    item: str
    readable: str = ABSENT
    students_own: str = ABSENT
    predicted_before: str = ABSENT
    consistent: str = ABSENT
    verdict: str = ABSENT
    verdict_read: str = ABSENT
    code_exact: str = ABSENT
    machine_mark: int = 0
    explanation_0_to_3: str = ABSENT
    explanation: str = ABSENT
    look_at: str = ABSENT


def experiment_row(student: str, item: Evidence, twins: Sequence[str]) -> Row:
    """Judge one experiment's evidence."""
    faults = consistency.faults(item)
    predicted = item.prediction is not None and item.prediction.at <= item.started
    judged = item.judgement
    has_claim = judged is not None and judged.expected != "not applicable here"
    read = item.verdict_read == judged.verdict if judged and item.verdict_read else False
    look_at = [*faults, *([f"stopped: {item.stopped}"] if item.stopped else [])]
    look_at += [f"the same samples as {', '.join(twins)}"] if twins else []
    good = item.is_students and predicted and not faults and not twins and (read or not has_claim)
    return Row(
        student,
        item.experiment,
        readable=YES,
        students_own=_yes(item.is_students),
        predicted_before=_yes(predicted),
        consistent=_yes(not faults),
        verdict=judged.verdict.value if judged and has_claim else ABSENT,
        verdict_read=_yes(read) if has_claim else ABSENT,
        machine_mark=int(good),
        explanation=item.explanation,
        look_at="; ".join(look_at),
    )


def _yes(value: bool) -> str:
    return YES if value else NO


def rows_of(
    one: Submission,
    twins: Mapping[tuple[str, str], Sequence[str]],
    keys: Mapping[str, grade_code.Key],
) -> list[Row]:
    """All rows of one student: experiments, exercises, and what could not be read."""
    rows = [
        experiment_row(one.student, item, twins.get((one.file, key), ()))
        for key, item in one.evidence.items()
    ]
    for notebook, text in one.notebooks.items():
        key = keys.get(notebook.split(" (fresh")[0])
        rows += code_rows(one.student, notebook, text, key) if key else []
    rows += [Row(one.student, what, readable=NO, look_at=why) for what, why in one.problems.items()]
    return rows


def code_rows(student: str, notebook: str, text: str, key: grade_code.Key) -> list[Row]:
    """One row an exercise of a notebook."""
    try:
        marked = grade_code.mark(text, key)
    except LabError as error:
        return [Row(student, f"{notebook}: code", readable=NO, look_at=str(error))]
    return [
        Row(
            student,
            f"{notebook}: {one.verdict.removesuffix(grade_code.SUFFIX)}",
            readable=YES,
            code_exact=_yes(one.right),
            machine_mark=int(one.right),
            look_at="" if one.right else one.said,
        )
        for one in marked
    ]


def write_csv(rows: Iterable[Row], file: Path) -> None:
    """The marks, readable by a spreadsheet, in which no student's text becomes a formula."""
    names = [part.name for part in fields(Row)]
    with file.open("w", encoding="utf-8-sig", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows([_harmless(getattr(row, name)) for name in names] for row in rows)


def _harmless(value: object) -> object:
    is_formula = isinstance(value, str) and value.startswith(FORMULA)
    return f"'{value}" if is_formula else value


def class_plot(submissions: Sequence[Submission]) -> str:
    """Every student's last point over the class's median, an experiment a column, as SVG."""
    values: dict[str, list[float]] = {}
    for one in submissions:
        for key, item in one.evidence.items():
            if item.points and item.is_students:
                values.setdefault(key, []).append(item.points[-1].value)
    marks = []
    for place, (key, found) in enumerate(sorted(values.items())):
        middle = statistics.median(found)
        dots = tuple(value / middle for value in found) if middle else ()
        if dots:
            marks.append(Mark(float(place), 1.0, key, min(dots), max(dots), dots))
    return render(
        Plot(
            title="The class's results",
            x_label="experiment",
            y_label="last point over the class's median",
            series=(Series("median of the class; each dot is a student", tuple(marks)),),
            caption=f"{len(submissions)} zips; only runs that count as a student's own",
        )
    )


def grade_folder(
    folder: Path, table: Path, plot: Path | None, sources: Path | None, *, with_code: bool = True
) -> int:
    """Grade every zip of a folder, write the marks and the plot, and say what was found.

    Args:
        folder: of zips.
        table: the CSV to write.
        plot: the SVG to write, or None.
        sources: of the notebooks' .py sources; None takes those of this checkout.
        with_code: whether to run the students' code against the exact checks.

    Returns:
        The exit status, 0.

    Raises:
        LabError: there is nothing to grade, or no sources for the code.
    """
    submissions = read_folder(folder)
    keys = grade_code.keys_of(sources or own_sources()) if with_code else {}
    twins = consistency.twins({one.file: one.evidence.values() for one in submissions})
    rows = [row for one in submissions for row in rows_of(one, twins, keys)]
    write_csv(rows, table)
    if plot is not None:
        plot.write_text(class_plot(submissions) + "\n", encoding="utf-8")
    flagged = sum(bool(row.look_at) for row in rows)
    print(f"{len(submissions)} zips, {len(rows)} rows in {table}, {flagged} to look at")
    print(CAUTION)
    return 0


def own_sources() -> Path:
    """Where a checkout keeps the notebooks' sources."""
    return Path(__file__).parents[2] / "src"

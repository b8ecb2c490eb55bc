"""Mark a folder of handed-in zips: what a machine can judge, and empty columns for what it cannot.

Judged: the evidence's schema and digest, the prediction before the measurement, the verdict
read rightly, code exact. What looks odd is flagged, and takes no mark. An explanation gets 0 to 3
by hand. A prediction counts for being made, not for being right; no timing is run again here.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from labkit.evidence import evidence as store
from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import Evidence, Judgement, Point
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.panel.plot import Mark, Plot, Series
from labkit.records import now_text
from labkit_grading import figures, grade_code
from labkit_grading.flags import flags_of
from labkit_grading.sandbox import Isolation
from labkit_grading.submissions import (
    Submission,
    error_text,
    read_folder,
    same_claims,
    words_of,
)
from labkit_grading.tables import write_table

CAUTION = (
    "These checks deter forgery and cannot prevent it: "
    "anybody who can run labkit can write such a file. Ask students to explain their numbers."
)
CLASS_LEAST = 3  # runs, so that nobody's own can be told
YES, NO, ABSENT = "yes", "no", ""


@dataclass(frozen=True)
class MarkRow:
    """One line of the marks: an experiment or an exercise of one student.

    Attributes:
        file: the zip; it says whose row this is.
        claimed_student: who the zip itself says handed it in.
        printed: the beginning of what the student's code printed while it was judged.
        machine_mark: 1 when everything a machine judged is in order, else 0.
        explanation_0_to_3: left empty, for the marker.
        look_at: what a person should see before believing the rest.
    """

    file: str
    claimed_student: str
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
    printed: str = ABSENT
    look_at: str = ABSENT


def experiment_rows(
    submission: Submission, evidence: Evidence, flags: Sequence[str]
) -> list[MarkRow]:
    """Judge one experiment's evidence, which would not have been read if it contradicted itself."""
    judged = judged_again(evidence)
    has_claim = judged is not None and judged.expected != store.NOT_APPLICABLE
    read = evidence.verdict_read == judged.verdict if judged and evidence.verdict_read else False
    look_at = [f"stopped: {evidence.stopped}"] if evidence.stopped else []
    look_at += flags
    is_judged = judged is not None or evidence.experiment not in CHECKS
    is_whole = evidence.stopped is None and is_judged
    good = evidence.is_students and is_whole and (read or not has_claim)
    return [
        MarkRow(
            submission.file,
            submission.student,
            evidence.experiment,
            readable=YES,
            students_own=_yes_or_no(evidence.is_students),
            predicted_before=_yes_or_no(evidence.prediction is not None),
            consistent=YES,
            verdict=judged.verdict.value if judged and has_claim else ABSENT,
            verdict_read=_yes_or_no(read) if has_claim else ABSENT,
            machine_mark=int(good),
            explanation=evidence.explanation,
            look_at="; ".join([*look_at, *(f"later: {a}" for a in evidence.later_answers)]),
        )
    ]


def judged_again(evidence: Evidence) -> Judgement | None:
    """Judge the file's points anew; return its own verdict where nothing can judge them."""
    experiment = EXPERIMENTS.get(evidence.experiment)
    if experiment is None or evidence.judgement is None:
        return evidence.judgement
    return experiment.judge(evidence) or evidence.judgement


def _yes_or_no(value: bool) -> str:
    return YES if value else NO


def rows_of(
    submission: Submission,
    flags: Mapping[tuple[str, str], Sequence[str]],
    keys: Mapping[str, grade_code.Key],
    isolation: Isolation | None = None,
) -> list[MarkRow]:
    """All rows of one zip: experiments, exercises, and what could not be read.

    Args:
        submission: the zip.
        flags: by zip and experiment, what the marker should look at.
        keys: the answer keys, by notebook.
        isolation: how students' code runs; exercises have no rows without it.
    """
    rows: list[MarkRow] = []
    for name, evidence in submission.evidence.items():
        judge = partial(
            experiment_rows, submission, evidence, flags.get((submission.file, name), ())
        )
        rows += _rows_or_problem(submission, name, judge)
    for notebook, text in submission.notebooks.items():
        key = keys.get(notebook.split(" (fresh")[0])
        if key and isolation:
            judge = partial(code_rows, submission, notebook, text, key, isolation)
            rows += _rows_or_problem(submission, f"{notebook}: code", judge)
    problems = submission.problems.items()
    return rows + [_unreadable(submission, part, problem) for part, problem in problems]


def _rows_or_problem(
    submission: Submission, item: str, make: Callable[[], list[MarkRow]]
) -> list[MarkRow]:
    """Make the rows of an item; an error of any kind costs that item's row and no other."""
    try:
        return make()
    except Exception as error:  # outermost frame around what a stranger handed in
        return [_unreadable(submission, item, f"cannot be judged: {error_text(error)}")]


def _unreadable(submission: Submission, item: str, problem: str) -> MarkRow:
    return MarkRow(submission.file, submission.student, item, readable=NO, look_at=problem)


def code_rows(
    submission: Submission, notebook: str, text: str, key: grade_code.Key, isolation: Isolation
) -> list[MarkRow]:
    """One row an exercise of a notebook."""
    return [
        MarkRow(
            submission.file,
            submission.student,
            f"{notebook}: {marked.verdict.removesuffix(grade_code.SUFFIX)}",
            readable=YES,
            code_exact=_yes_or_no(marked.right),
            machine_mark=int(marked.right),
            printed=marked.printed,
            look_at="" if marked.right else marked.message,
        )
        for marked in grade_code.mark(text, key, isolation)
    ]


def class_plot(submissions: Sequence[Submission]) -> str:
    """Every student's last point over the class's median, an experiment a column, as SVG."""
    values: dict[str, list[float]] = {}
    for submission in submissions:
        for key, evidence in submission.evidence.items():
            last_value = evidence.points[-1].value if evidence.points else math.nan
            if evidence.is_students and math.isfinite(last_value):
                values.setdefault(key, []).append(last_value)
    marks = []
    for place, (key, last_values) in enumerate(sorted(values.items())):
        middle = statistics.median(last_values)
        dots = tuple(value / middle for value in last_values) if middle else ()
        if dots:
            marks.append(Mark(float(place), 1.0, key, min(dots), max(dots), dots))
    return figures.svg(
        Plot(
            title="The class's results",
            x_label="experiment",
            y_label="last point over the median",
            series=(Series("median of the class; each dot is a student", tuple(marks)),),
            categories=tuple(mark.label for mark in marks),
            is_zoomed=True,
            caption=f"{len(submissions)} zips; only runs that count as a student's own",
        )
    )


def class_points(submissions: Sequence[Submission]) -> dict[str, Evidence]:
    """For each experiment the medians of the students' own complete runs, to be shown to them."""
    runs: dict[str, list[Evidence]] = {}
    for submission in submissions:
        for key, evidence in submission.evidence.items():
            if evidence.points and evidence.is_students and evidence.stopped is None:
                runs.setdefault(key, []).append(evidence)
    large_enough = {
        key: evidences for key, evidences in runs.items() if len(evidences) >= CLASS_LEAST
    }
    return {key: _median_run(key, evidences) for key, evidences in large_enough.items()}


def _median_run(key: str, runs: Sequence[Evidence]) -> Evidence:
    """Medians and quartiles of the points that most runs have, and the words that most have.

    A run counts once for each point, so no run's words become the class's by repetition.  The title
    is the experiment's key: the course's own title is the panel's to add.
    """
    values: dict[tuple[float, str, str], list[float]] = {}
    for run in runs:
        of_run = {(point.x, point.label, point.series): point.value for point in run.points}
        for place, value in of_run.items():
            values.setdefault(place, []).append(value)
    points = []
    for (x, label, series), point_values in values.items():
        if 2 * len(point_values) > len(runs):
            low, middle, high = statistics.quantiles(point_values, n=4, method="inclusive")
            name, series_name = words_of(label), words_of(series)
            points.append(Point(x, name, middle, low=low, high=high, series=series_name))
    origin = f"the class, median of {len(runs)}"
    return Evidence(
        key,
        key,
        words_of(statistics.mode(run.unit for run in runs)),
        origin,
        words_of(statistics.mode(run.tier for run in runs)),
        now_text(),
        points=tuple(points),
        headless=True,
        ended=now_text(),
        replayed_from=origin,
    )


def grade_folder(
    folder: Path,
    table: Path,
    plot: Path | None,
    sources: Path | None,
    *,
    isolation: Isolation | None = None,
    class_folder: Path | None = None,
    machines: Collection[str] = (),
) -> None:
    """Grade every zip of a folder, write the marks and the plot, and say what was found.

    Args:
        folder: of zips.
        table: the CSV to write.
        plot: the SVG to write, or None.
        sources: of the notebooks' .py sources; None takes those of this checkout.
        isolation: how to run the students' code for the exact checks; None runs none of it.
        class_folder: where the class's medians are put, for the panels to draw; or None.
        machines: the names of the lab's devices, as evidence has them; others are flagged.

    Raises:
        LabError: there is nothing to grade, no sources for the code, or nothing that isolates it.
    """
    if isolation:
        isolation.require()
    sources = sources or own_sources()
    submissions = read_folder(folder, sources)
    keys = grade_code.keys_of(sources) if isolation else {}
    flags, claims = flags_of(submissions, machines), same_claims(submissions)
    rows: list[MarkRow] = []
    for number, submission in enumerate(submissions, 1):
        if isolation:
            print(f"{number} of {len(submissions)}: {words_of(submission.file)}", file=sys.stderr)
        other_zips = ", ".join(claims.get((submission.file, ""), ()))
        claim = f"{other_zips} claims the same student" if other_zips else ""
        rows += (
            replace(row, look_at="; ".join(filter(None, (row.look_at, claim))))
            for row in rows_of(submission, flags, keys, isolation)
        )
    write_table(MarkRow, rows, table)
    if plot is not None:
        plot.write_text(class_plot(submissions), encoding="utf-8", errors="replace")
    if class_folder is not None:
        for evidence in class_points(submissions).values():
            store.save(evidence, class_folder)
    flagged = sum(bool(row.look_at) for row in rows)
    print(f"{len(submissions)} zips, {len(rows)} rows in {table}, {flagged} to look at")
    if not (rows or isolation):
        print("Nobody handed in an experiment; --run-code marks the exercises.")
    print(CAUTION)


def own_sources() -> Path:
    """Where a checkout keeps the notebooks' sources."""
    return Path(__file__).parents[1] / "src"

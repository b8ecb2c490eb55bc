"""What is missing in a notebook and its evidence, told to the student before they hand in.

An exercise counts as solved if its check said so when the notebook was saved.  The sections that
are called optional lack nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.evidence.evidence import Evidence

EXPERIMENT = re.compile(r"""\b[eE]xperiment\(\s*(?:key\s*=\s*)?["']([\w.+-]+)["']""")
CHECK = re.compile(r"\blabkit\.exercises\.check_\w+")
HEADING = re.compile(r"^(#{1,2})\s+(.+)$", re.MULTILINE)
CODE_VERDICT = re.compile(  # as a `CodeVerdict` reads, behind a name where there are several
    r"^(?:[\w ]+: +)?(right|not yet right): ", re.MULTILINE
)


@dataclass(frozen=True)
class NotebookTasks:
    """What a notebook asks of its student, outside of its optional sections.

    Attributes:
        experiments: their keys, in order.
        exercises: the heading of each, and whether its checks all said "right"; None if they said
            nothing.
    """

    experiments: tuple[str, ...]
    exercises: Mapping[str, bool | None]


def read_tasks(cells: Sequence[Mapping[str, Any]]) -> NotebookTasks:
    """Read the tasks from a saved notebook's cells, with their outputs."""
    experiments: list[str] = []
    answers: dict[str, list[str]] = {}
    headings = {"#": "", "##": ""}
    for cell in cells:
        text = _joined(cell.get("source"))
        if cell.get("cell_type") == "markdown":
            for level, heading in HEADING.findall(text):
                headings.update({"#": heading, "##": ""} if level == "#" else {"##": heading})
        elif not any("optional" in heading.lower() for heading in headings.values()):
            experiments += EXPERIMENT.findall(text)
            heading = headings["##"].strip() or "Exercise"
            if CHECK.search(text) and heading.startswith("Exercise"):
                printed_verdicts = answers.setdefault(heading, [])
                printed_verdicts += CODE_VERDICT.findall(_printed(cell))
    exercises = {
        heading: {*printed_verdicts} == {"right"} if printed_verdicts else None
        for heading, printed_verdicts in answers.items()
    }
    return NotebookTasks(tuple(dict.fromkeys(experiments)), exercises)


def _joined(text: Any) -> str:
    """Return a text as a notebook's file holds it: a string, or a list of lines."""
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


def _printed(cell: Mapping[str, Any]) -> str:
    """Return what a cell printed, or showed as text; outputs of another form say nothing."""
    outputs = cell.get("outputs")
    return "\n".join(
        _output_text(output)
        for output in (outputs if isinstance(outputs, list) else ())
        if isinstance(output, dict)
    )


def _output_text(output: Mapping[str, Any]) -> str:
    data = output.get("data")
    return _joined(output.get("text") or (data.get("text/plain") if isinstance(data, dict) else ""))


def list_missing(
    notebooks: Mapping[str, NotebookTasks],
    evidence: Mapping[str, Evidence],
    damaged: Collection[str],
) -> Iterator[str]:
    """Yield what is missing, a sentence each.

    Args:
        notebooks: the tasks of each notebook that is handed in, by its name.
        evidence: what was measured, by experiment.
        damaged: the experiments whose files are damaged; they count as measured.
    """
    measured = {*evidence, *damaged}
    if evidence and not any(run.is_students for run in evidence.values()):
        yield "No experiment counts as your own work yet."
    untouched = [name for name, tasks in notebooks.items() if _is_untouched(tasks, measured)]
    for name, tasks in notebooks.items():
        if name not in untouched:
            yield from _missing_in(name, tasks, measured)
    if untouched:
        yield f"Not begun: {', '.join(untouched)}."
    for run in evidence.values():
        yield from _missing_of(run)


def _is_untouched(tasks: NotebookTasks, measured: set[str]) -> bool:
    """Return whether a notebook asks for something, and nothing of it was tried."""
    has_tasks = tasks.experiments or tasks.exercises
    is_tried = any(answer is not None for answer in tasks.exercises.values())
    return bool(has_tasks) and not is_tried and measured.isdisjoint(tasks.experiments)


def _missing_in(name: str, tasks: NotebookTasks, measured: set[str]) -> Iterator[str]:
    unmeasured = [key for key in tasks.experiments if key not in measured]
    if unmeasured:
        yield f"{name}: not measured: {', '.join(unmeasured)}."
    for heading, is_right in tasks.exercises.items():
        if not is_right:
            state = (
                "not checked in the notebook as it is saved" if is_right is None else "not solved"
            )
            yield f"{name}: {heading}: {state}."


def _missing_of(run: Evidence) -> Iterator[str]:
    """Yield what an experiment that was run lacks."""
    if not run.is_students:
        yield f"{run.experiment} ran without your prediction: it does not count as yours."
        return
    if run.stopped is not None:
        yield f"{run.experiment} was stopped before its end: {run.stopped}"
    if run.is_open_to_claims:
        yield f"{run.experiment}: you have not said whether your data support the claim."
    if not run.explanation:
        yield f"{run.experiment} has no explanation yet."

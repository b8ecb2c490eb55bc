"""The `labkit` command: rehearse and record notebooks, grade what was handed in.

A checkout has it; what students get has not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import LabError
from labkit.measuring.place import where
from labkit.records import Tier, to_data

LIMIT_S = 900.0  # for one notebook
CLASS = "put the class's medians here; in a folder `class` beside the notebooks, panels draw them"
app = typer.Typer(add_completion=False, no_args_is_help=True, help=(__doc__ or "").split("\n")[0])

Notebooks = Annotated[list[Path], typer.Argument(metavar="NOTEBOOK...", help="sources or .ipynb")]
Emulated = Annotated[
    bool,
    typer.Option(
        "--emulate-slice", help="on a bigger GPU: 16 SMs, 4.25 GiB and MIG's out-of-memory error"
    ),
]
Limit = Annotated[float, typer.Option(help="per notebook; then it is ended")]
Sources = Annotated[Path | None, typer.Option(help="folder of the notebooks' .py sources")]


@app.command()
def rehearse(
    notebooks: Notebooks,
    keep: Annotated[
        Path | None, typer.Option(help="keep evidence, figures and output here")
    ] = None,
    emulate_slice: Emulated = False,
    limit_s: Limit = LIMIT_S,
) -> None:
    """Run notebooks here, and print how many minutes each section takes."""
    from labkit_authoring.rehearse import rehearse

    _refuse_without_gpu(emulate_slice)
    runs = []
    with tempfile.TemporaryDirectory(prefix="labkit-") as temporary:
        for notebook in notebooks:
            folder = (keep or Path(temporary)) / notebook.stem
            runs.append(rehearse(notebook, folder, emulate=emulate_slice, limit_s=limit_s))
            print(runs[-1], flush=True)
    print(f"{sum(run.total_s for run in runs) / 60:.1f} min in all")
    _exit(is_good=not any(run.failed for run in runs))


@app.command()
def record(
    notebooks: Notebooks,
    out: Annotated[Path, typer.Option(help="the gallery")],
    recorded: Annotated[Path | None, typer.Option(help="where runs to be replayed are put")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="experiments to be replayed; repeatable"),
    ] = None,
    emulate_slice: Emulated = False,
    limit_s: Limit = LIMIT_S,
) -> None:
    """Rehearse, and keep evidence and figures."""
    from labkit_authoring.gallery import record

    _refuse_without_gpu(emulate_slice)
    recording = record(
        notebooks,
        out,
        recorded=recorded,
        only=only or ["*"],
        emulate=emulate_slice,
        limit_s=limit_s,
    )
    for rehearsal in recording.rehearsals:
        print(rehearsal)
    print(f"Experiments drawn: {len(recording.drawn_keys)}, in {recording.folder}")
    if recorded:
        print(f"{len(recording.replayable)} to be replayed in {recorded}")
    _exit(is_good=recording.is_whole)


@app.command()
def controls(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY...]", help="experiments; all without")
    ] = None,
    in_json: Annotated[
        bool, typer.Option("--json", help="one JSON object instead of lines")
    ] = False,
    sources: Sources = None,
) -> None:
    """Run every experiment as it is and in its broken worlds; exit with 0 if all are noticed."""
    from labkit.evidence.checks import CHECKS
    from labkit_authoring.controls import Control, controls
    from labkit_grading.grading import own_sources

    if unknown := sorted(set(keys or ()) - CHECKS.keys()):
        raise LabError(f"There is no core experiment {', '.join(unknown)}.")
    notebooks = sorted((sources or own_sources()).glob("[1-7]*_*.py"))
    if not notebooks:
        raise LabError("There are no notebook sources here: say --sources.")
    ran, skipped = [], []
    for result in controls(notebooks, where(), keys or ()):
        if isinstance(result, Control):
            ran.append(result)
        else:
            skipped.append(result)
        print(result, file=sys.stderr, flush=True)
    if in_json:
        rows = [{**to_data(control), "is_noticed": control.is_noticed} for control in ran]
        print(json.dumps({"experiments": rows, "skipped": list(map(to_data, skipped))}))
    _exit(is_good=all(control.is_noticed for control in ran))


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="of zips")],
    csv: Annotated[Path, typer.Option(help="marks, a row an item")],
    plot: Annotated[Path | None, typer.Option(help="the class's results in one SVG")] = None,
    class_folder: Annotated[Path | None, typer.Option("--class", help=CLASS)] = None,
    sources: Sources = None,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="mark exercises, too: run students' code, isolated")
    ] = False,
    image: Annotated[
        str, typer.Option(help="run it in containers of this image instead of bubblewrap")
    ] = "",
    machine: Annotated[
        list[str] | None,
        typer.Option(help="a device of the lab, as evidence names it; repeatable: flags others"),
    ] = None,
    unprotected: Annotated[
        bool, typer.Option("--unprotected", help="run it with your own rights, isolated by nothing")
    ] = False,
) -> None:
    """Mark a folder of handed-in zips."""
    from labkit_grading import sandbox
    from labkit_grading.grading import grade_folder

    if image and unprotected:
        raise LabError("--image isolates students' code and --unprotected does not: say one.")
    isolation: sandbox.Isolation | None = None
    if run_code or image or unprotected:
        isolation = sandbox.Container(image) if image else sandbox.Bubblewrap()
        isolation = sandbox.Unprotected() if unprotected else isolation
    grade_folder(
        folder,
        csv,
        plot,
        sources,
        isolation=isolation,
        class_folder=class_folder,
        machines=machine or (),
    )


@app.command()
def recheck(
    folder: Annotated[Path, typer.Argument(help="of zips")],
    csv: Annotated[Path, typer.Option(help="both values, a row a point")],
    count: Annotated[int, typer.Option(min=1, help="experiments to draw")] = 5,
    seed: Annotated[int | None, typer.Option(help="repeats a draw")] = None,
    sources: Sources = None,
    limit_s: Limit = LIMIT_S,
) -> None:
    """Draw some of a class's experiments, and measure them again here."""
    from labkit_authoring.recheck import recheck_folder
    from labkit_grading.grading import own_sources

    recheck_folder(folder, csv, sources or own_sources(), count=count, seed=seed, limit_s=limit_s)


def _refuse_without_gpu(emulate_slice: bool) -> None:
    if emulate_slice and where().tier is Tier.CPU:
        raise LabError("--emulate-slice needs a GPU to make smaller, and torch sees none here.")


def _exit(*, is_good: bool) -> None:
    raise typer.Exit(0 if is_good else 1)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return 2 where it cannot run on this machine."""
    try:
        app(arguments, prog_name="labkit")
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0

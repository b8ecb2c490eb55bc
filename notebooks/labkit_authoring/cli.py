"""The `labkit` command: rehearse and record notebooks, grade what was handed in.

Only the standard library parses its arguments.  A checkout has it; what students get has not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from labkit.errors import LabError
from labkit.measuring.place import where
from labkit.records import Tier, to_data

LIMIT_S = 900.0  # for one notebook


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments; `docs/reference/labkit.md` describes them all."""
    parser = argparse.ArgumentParser(prog="labkit", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_rehearse(commands.add_parser("rehearse", help="run notebooks here, print minutes"))
    _add_record(commands.add_parser("record", help="rehearse, and keep evidence and figures"))
    _add_controls(commands.add_parser("controls", help="run every experiment's twin, too"))
    _add_grade(commands.add_parser("grade", help="mark a folder of handed-in zips"))
    return parser


def _add_notebooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument(
        "--emulate-slice",
        action="store_true",
        help="on a bigger GPU: 16 SMs, 4.25 GiB and MIG's out-of-memory error",
    )
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="per notebook; then it is ended"
    )


def _add_rehearse(parser: argparse.ArgumentParser) -> None:
    _add_notebooks(parser)
    parser.add_argument("--keep", type=Path, help="keep evidence, figures and output here")
    parser.set_defaults(run=_rehearse)


def _add_record(parser: argparse.ArgumentParser) -> None:
    _add_notebooks(parser)
    parser.add_argument("--out", type=Path, required=True, help="the gallery")
    parser.add_argument("--recorded", type=Path, help="where runs to be replayed are put")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="experiments to be replayed"
    )
    parser.set_defaults(run=_record)


def _add_controls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="*", metavar="KEY", help="experiments; all without")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--sources", type=Path, help="folder of the notebooks' .py sources")
    parser.set_defaults(run=_controls)


CLASS = "put the class's medians here; in a folder `class` beside the notebooks, panels draw them"


def _add_grade(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, required=True, help="marks, a row an item")
    parser.add_argument("--plot", type=Path, help="the class's results in one SVG")
    parser.add_argument("--class", type=Path, dest="class_folder", help=CLASS)
    parser.add_argument("--sources", type=Path, help="folder of the notebooks' .py sources")
    parser.add_argument(
        "--run-code",
        action="store_true",
        help="mark exercises, too: run students' code, isolated",
    )
    parser.set_defaults(run=_grade)


def _rehearse(asked: argparse.Namespace) -> int:
    from labkit_authoring.rehearse import rehearse

    _refuse_without_gpu(asked)
    with tempfile.TemporaryDirectory(prefix="labkit-") as temporary:
        folder = asked.keep or Path(temporary)
        runs = []
        for notebook in asked.notebooks:
            one = rehearse(
                notebook,
                folder / notebook.stem,
                emulate=asked.emulate_slice,
                limit_s=asked.limit_s,
            )
            print(one, flush=True)
            runs.append(one)
    print(f"{sum(one.total_s for one in runs) / 60:.1f} min in all")
    return 1 if any(one.failed for one in runs) else 0


def _record(asked: argparse.Namespace) -> int:
    from labkit_authoring.record import record

    _refuse_without_gpu(asked)
    made = record(
        asked.notebooks,
        asked.out,
        recorded=asked.recorded,
        only=asked.only,
        emulate=asked.emulate_slice,
        limit_s=asked.limit_s,
    )
    for one in made.rehearsals:
        print(one)
    print(f"Experiments drawn: {len(made.shown)}, in {made.folder}")
    if asked.recorded:
        print(f"{len(made.replayable)} to be replayed in {asked.recorded}")
    return 0 if made.is_whole else 1


def _controls(asked: argparse.Namespace) -> int:
    """0 only if every experiment that could be asked notices what is absent."""
    from labkit.evidence.checks import CHECKS
    from labkit_authoring.controls import Control, controls
    from labkit_grading.grading import own_sources

    if unknown := sorted(set(asked.keys) - CHECKS.keys()):
        raise LabError(f"There is no core experiment {', '.join(unknown)}.")
    notebooks = sorted((asked.sources or own_sources()).glob("[1-6]*_*.py"))
    if not notebooks:
        raise LabError("There are no notebook sources here: say --sources.")
    ran, skipped = [], []
    for one in controls(notebooks, where(), asked.keys):
        if isinstance(one, Control):
            ran.append({**to_data(one), "twin": one.absent, "notices": one.notices})
            said = f"{one.key}: {one.verdict}; without {one.absent}: {one.twin_verdict}"
            print(said, "" if one.notices else "NOT NOTICED", file=sys.stderr, flush=True)
        else:
            skipped.append(to_data(one))
            print(f"{one.key}: skipped: {one.reason}", file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps({"experiments": ran, "skipped": skipped}))
    return 0 if all(one["notices"] for one in ran) else 1


def _refuse_without_gpu(asked: argparse.Namespace) -> None:
    if asked.emulate_slice and where().tier is Tier.CPU:
        raise LabError("--emulate-slice needs a GPU to make smaller, and torch sees none here.")


def _grade(asked: argparse.Namespace) -> int:
    from labkit_grading.grading import grade_folder

    return grade_folder(
        asked.folder,
        asked.csv,
        asked.plot,
        asked.sources,
        run_code=asked.run_code,
        class_folder=asked.class_folder,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 2 is a question that cannot be answered here."""
    asked = build_parser().parse_args(arguments)
    try:
        status: int = asked.run(asked)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    return status

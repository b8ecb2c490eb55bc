"""`./lab check`: an acceptance run of a whole lab, over HTTP as students and staff use it."""

import json
from dataclasses import asdict, dataclass

import httpx
from rich.console import Console
from rich.table import Table
from websocket import WebSocketException

from miglab_hub.check.steps import STEPS, Run
from miglab_hub.check.student import CheckFailed
from miglab_hub.check.temporary import temporary_lab

START = "a temporary lab starts"
END = "the lab ends and leaves no process"
EXPECTED = (CheckFailed, httpx.HTTPError, WebSocketException, OSError)


@dataclass(frozen=True)
class Step:
    """One line of the report."""

    name: str
    ok: bool
    detail: str


def run_check(*, as_json: bool, docker: bool) -> int:
    """Run all steps, and print them as a table or as JSON.

    Returns:
        0 only if all held.
    """
    steps = run_steps(docker=docker)
    is_ok = all(step.ok for step in steps)
    if as_json:
        print(json.dumps({"ok": is_ok, "steps": [asdict(step) for step in steps]}))
    else:
        _print_table(steps)
    return 0 if is_ok else 1


def run_steps(*, docker: bool) -> list[Step]:
    """The steps with what came of them; after one that failed, none is tried."""
    done: list[Step] = []
    name = START
    try:
        with temporary_lab(docker=docker) as lab:
            done.append(Step(START, True, lab.settings.public_url))
            run = Run(lab)
            for name, step in STEPS:
                done.append(Step(name, True, step(run)))
            name = END
        done.append(Step(END, True, "none left"))
    except EXPECTED as error:
        done.append(Step(name, False, str(error) or type(error).__name__))
    return done


def _print_table(steps: list[Step]) -> None:
    table = Table("step", "held", "seen")
    for step in steps:
        table.add_row(step.name, "yes" if step.ok else "NO", step.detail)
    Console().print(table)

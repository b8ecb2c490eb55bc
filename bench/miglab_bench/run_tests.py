"""`./lab test`: pytest over the checkout's tests, and what was left out."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from miglab_hub.checkout import checkout

app = typer.Typer()
MOST_WORKERS = 8
SIDE_BY_SIDE = ("--dist", "loadfile", "--no-loadscope-reorder")
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def run_tests(pytest_args: Sequence[str], *, everything: bool) -> int:
    """Run the tests; all of them in several processes, file by file.

    Args:
        pytest_args: passed on to pytest; then it is one process.
        everything: the ones marked ``long`` too.

    Returns:
        pytest's exit status.
    """
    selected = [] if everything else ["-m", "not long"]
    # One a core; one more where no test measures at full length, as many wait for a lab.
    workers = len(os.sched_getaffinity(0)) + (not everything)
    arguments = pytest_args or [*SIDE_BY_SIDE, "-n", str(min(MOST_WORKERS, max(2, workers)))]
    command = [sys.executable, "-m", "pytest", *selected, *arguments]
    # Bytecode is kept: the tests start hundreds of Python processes.
    environment = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    completed = subprocess.run(command, cwd=checkout(), env=environment, stdin=subprocess.DEVNULL)
    if not everything:
        print("lab: the tests marked long were left out; ./lab test --all runs them too")
    return completed.returncode


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[--all]",
)
def test(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also run the long tests.")] = False,
) -> None:
    """Run the tests; other arguments go to pytest."""
    raise typer.Exit(run_tests(context.args, everything=everything))

"""`./lab test`: pytest over the checkout's tests, and what was left out."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from miglab_hub.checkout import checkout
from miglab_hub.errors import StartError

app = typer.Typer()
WITH_LABS = ("browser", "docker", "gpu", "hub")
"""The folders of tests that start labs and mostly wait for them; the others compute."""


def run_tests(pytest_args: Sequence[str], *, everything: bool) -> int:
    """Run the tests; all of them in two halves side by side.

    Args:
        pytest_args: passed on to pytest; then it is one run.
        everything: the ones marked ``long`` too.

    Returns:
        pytest's exit status; of two, the first that is not 0.

    Raises:
        StartError: there are no tests here.
    """
    folder = checkout()
    if not (folder / "tests").is_dir():
        raise StartError(f"{folder} has no tests: run ./lab test in a checkout")
    selected = [] if everything else ["-m", "not long"]
    command = [sys.executable, "-m", "pytest", *selected, *pytest_args]
    if pytest_args:
        status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL).returncode
    else:
        status = _side_by_side(command, folder)
    if not everything:
        print("lab: the tests marked long were left out; ./lab test --all runs them too")
    return status


def _side_by_side(command: Sequence[str], folder: Path) -> int:
    """Both halves; what computes is told of when the one that waits has ended."""
    waiting, computing = _halves(folder / "tests")
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [*command, *computing],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        ) as beside,
    ):
        try:
            run = subprocess.run([*command, *waiting], cwd=folder, stdin=subprocess.DEVNULL)
            beside.wait()
        finally:
            beside.terminate()
        said.seek(0)
        shutil.copyfileobj(said, sys.stdout.buffer)
    return run.returncode or beside.returncode


def _halves(tests: Path) -> tuple[list[str], list[str]]:
    """The folders of both halves; every folder of tests is in one."""
    folders = sorted(one for one in tests.iterdir() if any(one.glob("**/test_*.py")))
    waiting = [str(one) for one in folders if one.name in WITH_LABS]
    return waiting, [str(one) for one in folders if one.name not in WITH_LABS]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[--all]",
)
def test(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="The long ones too.")] = False,
) -> None:
    """Run the tests; what follows goes to pytest."""
    raise typer.Exit(run_tests(context.args, everything=everything))

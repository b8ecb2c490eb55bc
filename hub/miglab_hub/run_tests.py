"""`./lab test`: pytest over the checkout's tests, and what was left out."""

import subprocess
import sys
from collections.abc import Sequence

from miglab_hub.checkout import checkout
from miglab_hub.errors import StartError


def run_tests(pytest_args: Sequence[str], *, everything: bool) -> int:
    """Run the tests.

    Args:
        pytest_args: passed on to pytest.
        everything: the ones marked ``long`` too.

    Returns:
        pytest's exit status.

    Raises:
        StartError: there are no tests here.
    """
    folder = checkout()
    if not (folder / "tests").is_dir():
        raise StartError(f"{folder} has no tests: run ./lab test in a checkout")
    selected = [] if everything else ["-m", "not long"]
    command = [sys.executable, "-m", "pytest", *selected, *pytest_args]
    status = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL).returncode
    if not everything:
        print("lab: the tests marked long were left out; ./lab test --all runs them too")
    return status

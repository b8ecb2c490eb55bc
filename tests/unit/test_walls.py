"""The walls between the packages, and between the rooms of each, stand."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_import_breaks_a_contract() -> None:
    """Every contract of .importlinter is kept: no upward import, no ring, nothing heavy."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

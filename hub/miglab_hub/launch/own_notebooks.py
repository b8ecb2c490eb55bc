"""The lab's notebooks for local students, made from their sources (an image has its own)."""

import subprocess
import sys
from pathlib import Path

from miglab_hub.checkout import checkout
from miglab_hub.errors import StartError

MAKER = "notebooks/make_notebooks.py"
SOURCES = "notebooks/src"


def make_notebooks(target: Path) -> None:
    """Make them; the same sources give the same bytes, so that unedited copies are recognised.

    Raises:
        StartError: a source is not a notebook.
    """
    maker = checkout() / MAKER
    if not maker.exists():  # installed packages without a checkout bring no notebooks
        target.mkdir(parents=True, exist_ok=True)
        return
    words = [sys.executable, str(maker), str(checkout() / SOURCES), str(target)]
    made = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL)
    if made.returncode:
        raise StartError(f"{MAKER}: {made.stderr.decode(errors='replace').strip()}")

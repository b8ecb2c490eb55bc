"""Where the checkout is: its hub configuration, and its notebooks, which are made from sources."""

import os
import subprocess
import sys
from pathlib import Path

from miglab_hub.errors import StartError

ENV_CHECKOUT = "MIGLAB_CHECKOUT"
MAKER = "notebooks/make_notebooks.py"
SOURCES = "notebooks/src"


def checkout() -> Path:
    """Return the folder of `./lab`, which passes it on; else the one above this package."""
    return Path(os.environ.get(ENV_CHECKOUT) or Path(__file__).parents[2])


def hub_config() -> Path:
    """Return the path of JupyterHub's configuration file."""
    return checkout() / "jupyterhub_config.py"


def make_notebooks(target: Path, *options: str) -> None:
    """Make the notebooks; the same sources give the same bytes, so that edits are recognised.

    Raises:
        StartError: a source is not a notebook.
    """
    maker = checkout() / MAKER
    if not maker.exists():  # installed packages without a checkout bring no notebooks
        target.mkdir(parents=True, exist_ok=True)
        return
    command = [sys.executable, str(maker), *options, str(checkout() / SOURCES), str(target)]
    process = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    if process.returncode:
        raise StartError(f"{MAKER}: {process.stderr.decode(errors='replace').strip()}")

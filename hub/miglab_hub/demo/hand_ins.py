"""What simulated students hand in: their notebooks, with the exercises solved or not.

They measured nothing, so there is no evidence in the zips: figures are never made up.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from miglab_hub.checkout import checkout
from miglab_hub.demo.plan import SimulatedStudent
from miglab_hub.settings.lab_toml import Settings
from miglab_spawner.local import home_name

CODE = "import labkit; labkit.hand_in()"
HOW_MANY = 6
SOURCES = "notebooks/src"
MAKER = "notebooks/make_notebooks.py"


def folder(settings: Settings) -> Path:
    """Where the zips are collected, for `labkit grade`."""
    return settings.folder / "hand-ins"


def hand_in(settings: Settings, students: Iterable[SimulatedStudent]) -> None:
    """Hand in for the first students, in their homes and by labkit, as they would; and collect.

    Every second of them solved the exercises.
    """
    if folder(settings).exists() or not (checkout() / MAKER).exists():
        return
    solved = settings.state / "solved-notebooks"
    _run(sys.executable, str(checkout() / MAKER), "--solutions", str(checkout() / SOURCES), solved)
    collected = settings.state / "hand-ins.unfinished"
    collected.mkdir(exist_ok=True)
    for number, student in enumerate(list(students)[:HOW_MANY]):
        notebooks = settings.homes / home_name(student.name) / "notebooks"
        notebooks.mkdir(parents=True, exist_ok=True)
        for notebook in (settings.notebooks if number % 2 else solved).glob("*.ipynb"):
            shutil.copyfile(notebook, notebooks / notebook.name)
        _run(sys.executable, "-c", CODE, cwd=notebooks, user=student.name)
        shutil.copyfile(notebooks / "hand-in.zip", collected / f"{student.name}.zip")
    collected.rename(folder(settings))


def _run(*words: str | Path, cwd: Path | None = None, user: str = "") -> None:
    """Run a program, behind everything else that runs."""
    environ = {**os.environ, "JUPYTERHUB_USER": user}
    subprocess.run(["nice", *map(str, words)], cwd=cwd, env=environ, check=True)

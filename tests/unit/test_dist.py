"""`./lab dist` and the page that installs from what it makes, in an environment that is empty."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.wheels import ROOT

PAGE = (ROOT / "docs/howto/add-to-your-hub.md").read_text(encoding="utf-8")
FOLDER = "/srv/miglab"
OURS = {"api", "spawner", "pool", "hub", "slurm", "labkit", "jupyterlab"}
LOOK = """
from importlib.metadata import entry_points, version
import miglab_hub.service, miglab_hub.cli
spawner = entry_points(group="jupyterhub.spawners")["mig-docker"].load()
print(spawner.__name__, version("jupyterhub"))
"""
# The hub's own environment: it has a JupyterHub, and is given the spawner alone.
LOOK_IN_HUB = """
from importlib.metadata import entry_points
print(entry_points(group="jupyterhub.spawners")["mig-docker"].load().__name__)
"""

pytestmark = pytest.mark.long


def dist(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "lab", "dist", folder], capture_output=True, text=True)


def printed(part: str) -> str:
    """The page's only line that begins with a command."""
    (line,) = re.findall(rf"^ +({re.escape(part)}.*)$", PAGE, re.MULTILINE)
    return str(line)


def in_shell(command: str, folder: Path) -> None:
    """Run a printed command, in this folder instead of the page's."""
    process = subprocess.run(
        command.replace(FOLDER, str(folder)), shell=True, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


def output_of(python: Path, code: str) -> str:
    process = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, cwd="/")
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_the_page_installs_from_what_dist_makes(tmp_path: Path) -> None:
    """The pool service in an environment of its own, the spawner in the hub's."""
    process = dist(tmp_path / "dist")
    assert process.returncode == 0, process.stderr
    wheels = {file.name.split("-")[0] for file in (tmp_path / "dist").glob("*.whl")}
    assert wheels == {f"miglab_{name}" for name in OURS}

    in_shell(printed(f"python3 -m venv {FOLDER}/env"), tmp_path)
    in_shell(printed(f"{FOLDER}/env/bin/pip install"), tmp_path)
    constraints = (tmp_path / "dist/constraints.txt").read_text()
    (pinned,) = re.findall(r"^jupyterhub==(.*)$", constraints, re.MULTILINE)
    assert output_of(tmp_path / "env/bin/python", LOOK) == f"MIGDockerSpawner {pinned}"

    in_shell(f"python3 -m venv {FOLDER}/hub", tmp_path)
    in_shell(f"{FOLDER}/hub/bin/{printed('pip install')}", tmp_path)
    assert output_of(tmp_path / "hub/bin/python", LOOK_IN_HUB) == "MIGDockerSpawner"


def test_dist_adds_to_no_folder(tmp_path: Path) -> None:
    """Wheels of two versions in one folder would be installed together."""
    (tmp_path / "mine").touch()
    refused = dist(tmp_path)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]

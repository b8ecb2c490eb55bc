"""Each distribution, built and installed alone into a bare environment, is whole.

Its wheel has every file of the package, and what it says it depends on is all that it needs.
"""

import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.wheels import ROOT, build_wheels, offline_environment, pins, pip

SHIPPED = {
    "miglab_api": "api",
    "miglab_spawner": "spawner",
    "miglab_pool": "pool",
    "miglab_hub": "hub",
    "miglab_slurm": "slurm",
    "labkit": "notebooks",
    "miglab_jupyterlab": "images/student/jupyterlab",
}
"""Each package that is shipped, and the folder of its distribution."""

LOOK = """
import importlib, json, pkgutil, sys
from importlib.metadata import entry_points
package = importlib.import_module(sys.argv[1])
missing = {}
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    # Python, Alembic and JupyterHub run these
    if not module.name.endswith((".__main__", ".jupyterhub_config")):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
points = [point for group in ("jupyterhub.spawners", "console_scripts")
          for point in entry_points(group=group) if point.value.startswith(package.__name__)]
for point in points:
    point.load()
print(json.dumps([missing, sorted(point.name for point in points)]))
"""
USES = {
    "miglab_spawner": (
        "from miglab_spawner.pages import spawn_page as p; p.render(p.page_without_pool('', ''))"
    ),
    "miglab_pool": (
        "from pathlib import Path; from miglab_pool.ledger.ledger import Ledger;"
        "from miglab_pool.gpu.simulated.machine import SimulatedMachine;"
        "SimulatedMachine.create(Path('gpus'), 1); Ledger(Path('ledger.sqlite')).close()"
    ),
    "miglab_hub": (
        "from miglab_hub.settings import keys as k, lab_toml as l; k.reference(l.settings_model())"
    ),
}
POINTS = {
    "miglab_spawner": ["mig-docker", "mig-local"],
    "miglab_hub": ["miglab"],
    "miglab_slurm": ["mig-slurm"],
    "labkit": ["labkit"],
}

NAMED_OTHERWISE = {"ltiauthenticator": "jupyterhub-ltiauthenticator"}
"""Modules whose distribution has another name."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of each distribution, and of all that any of them depends on."""
    folder = tmp_path_factory.mktemp("wheels")
    build_wheels(folder, SHIPPED.values())
    pip("download", *pins(folder), "--dest", folder, *folder.glob("*.whl"))
    return folder


def wheel_of(wheels: Path, package: str) -> Path:
    name = "miglab_labkit" if package == "labkit" else package
    (wheel,) = wheels.glob(f"{name}-*.whl")
    return wheel


def files_of(package: str) -> Iterator[str]:
    """What git has of the package, as the wheel is to have it."""
    folder = ROOT / SHIPPED[package]
    command = ["git", "ls-files", package]
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return iter(listed.stdout.splitlines())


@pytest.mark.parametrize("package", SHIPPED)
def test_the_wheel_is_whole(wheels: Path, package: str) -> None:
    """Templates, figures and all: what is in the repository is in the wheel."""
    names = set(zipfile.ZipFile(wheel_of(wheels, package)).namelist())
    assert set(files_of(package)) <= names
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


@pytest.mark.parametrize("package", SHIPPED)
def test_what_it_depends_on_is_all_it_needs(wheels: Path, tmp_path: Path, package: str) -> None:
    """In an environment with the declared dependencies alone every module can be imported."""
    wheel = wheel_of(wheels, package)
    python = offline_environment(tmp_path / "env", wheels, wheel)
    missing, points = json.loads(_output_of(tmp_path, python, LOOK, package))
    distributions = {NAMED_OTHERWISE.get(name, name) for name in missing.values()}
    assert distributions <= _extras(wheel), missing
    assert points == POINTS.get(package, [])
    _output_of(tmp_path, python, USES.get(package, ""))


def _output_of(folder: Path, python: Path, code: str, *arguments: str) -> str:
    """What isolated Python prints: nothing of the repository is on its path."""
    command = [str(python), "-I", "-c", code, *arguments]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def _extras(wheel: Path) -> set[str]:
    """What the distribution can do without, by its own word."""
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(metadata).decode()
    return set(re.findall(r"^Requires-Dist: ([\w.-]+)[^;\n]*;.*extra ==", text, re.MULTILINE))

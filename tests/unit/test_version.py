"""Distributions, packages, the JupyterLab extension and the command are of one version."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.wheels import ROOT
from typer.testing import CliRunner

from miglab_hub import cli

DECLARED = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
WHERE = ("*", "images/student/*", "tests/slurm/*")
FRONT_END = ROOT / "images/student/jupyterlab/labextension/package.json"


def projects() -> list[Path]:
    """Every distribution's pyproject.toml; the repository's own has tools' settings alone."""
    return [file for folder in WHERE for file in sorted(ROOT.glob(f"{folder}/pyproject.toml"))]


def versions_of(project: Path) -> Iterator[tuple[str, str]]:
    """What a distribution and its packages say, by where they say it."""
    declared = tomllib.loads(project.read_text(encoding="utf-8"))
    yield str(project.relative_to(ROOT)), declared["project"]["version"]
    for package in declared["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        module = project.parent / package / "__init__.py"
        for version in DECLARED.findall(module.read_text(encoding="utf-8")):
            yield str(module.relative_to(ROOT)), version


def test_there_is_one_version() -> None:
    """An image has these packages, and `miglab --version` in it says which lab it is."""
    versions = dict(pair for project in projects() for pair in versions_of(project))
    assert len(projects()) == 9 and "hub/miglab_hub/__init__.py" in versions
    front_end = json.loads(FRONT_END.read_text(encoding="utf-8"))
    versions[str(FRONT_END.relative_to(ROOT))] = front_end["version"]
    versions["--version"] = CliRunner().invoke(cli.app, ["--version"]).stdout.strip()
    assert set(versions.values()) == {versions["hub/pyproject.toml"]}, versions

"""The launcher `./lab`: which parts of the environment a command installs first."""

import os
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

LAB = Path(__file__).parents[3] / "lab"


@pytest.fixture(scope="module")
def launcher() -> ModuleType:
    module = ModuleType("launcher")
    module.__file__ = str(LAB)
    exec(SourceFileLoader("launcher", str(LAB)).get_code("launcher"), module.__dict__)
    return module


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ("lab",)),
        (["up", "--port", "8000"], ("lab", "notebooks")),
        (["install"], ("lab", "notebooks")),
        (["install", "test"], ("lab", "notebooks", "sign-in", "nbgitpuller", "test")),
        (["test", "tests/unit"], ("lab", "notebooks", "sign-in", "nbgitpuller", "test")),
        (["bench", "labkit", "--json"], ("lab", "notebooks")),
        (["bench", "pool"], ("lab",)),
        (["pool", "status"], ("lab",)),
    ],
)
def test_parts(launcher: ModuleType, arguments: list[str], parts: tuple[str, ...]) -> None:
    """What measures with torch and numpy brings them, whatever is asked first."""
    assert launcher.parts(arguments) == parts


REQUIREMENTS = LAB.parent / "requirements"
PINNED = sorted([*REQUIREMENTS.glob("*.txt"), *LAB.parent.glob("images/student/wanted/*.txt")])


@pytest.mark.parametrize("file", PINNED, ids=lambda file: file.name)
def test_every_pin_has_hashes(file: Path) -> None:
    """Files that are not of the pinned release are refused."""
    logical = file.read_text().replace("\\\n", " ").splitlines()
    pins = [line.split() for line in logical if line and not line.lstrip().startswith("#")]
    assert pins
    assert [name for name, *hashes in pins if not hashes[0].startswith("--hash=sha256:")] == []
    assert [name for name, *_ in pins if "==" not in name] == []


def test_hashes_are_required() -> None:
    """What installs the files of pins insists on their hashes."""
    installing = re.findall(r'.*"--requirement".*', LAB.read_text())
    assert installing
    assert [call for call in installing if '"--require-hashes"' not in call] == []


def test_uv_installs_from_where_pip_would(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's settings are handed on; those of the environment come before those of a file."""
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://index.example/simple\nfind-links = /srv/files\n"
        "[install]\nextra-index-url = file:///srv/a file:///srv/b\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_FIND_LINKS", "/srv/wheels")
    monkeypatch.setattr(launcher, "PIP", (sys.executable, "-m", "pip"))
    settings = launcher.pip_settings()
    assert settings["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert settings["UV_INDEX"] == "file:///srv/a file:///srv/b"
    assert settings["UV_FIND_LINKS"] == "/srv/wheels"


def test_torch_is_pinned_in_both_builds() -> None:
    """A file for each build, of Linux on both architectures and four versions of Python."""
    (version,) = re.findall(
        r"^(torch==\S+)$", (REQUIREMENTS / "notebooks.in").read_text(), re.MULTILINE
    )
    text = (REQUIREMENTS / "torch.txt").read_text()
    assert f"\n{version} \\\n" in text
    assert len(set(re.findall(r"--hash=sha256:(\w{64})", text))) == 2 * 2 * 4

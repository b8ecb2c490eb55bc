"""The launcher `./lab`: which parts of the environment a command installs first."""

import re
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
    installing = re.findall(r'pip\(.*"--requirement"', LAB.read_text())
    assert installing
    assert [words for words in installing if '"--require-hashes"' not in words] == []


def test_torch_is_pinned_in_both_builds() -> None:
    """A file for each build, of Linux on both architectures and four versions of Python."""
    (version,) = re.findall(
        r"^(torch==\S+)$", (REQUIREMENTS / "notebooks.in").read_text(), re.MULTILINE
    )
    text = (REQUIREMENTS / "torch.txt").read_text()
    assert f"\n{version} \\\n" in text
    assert len(set(re.findall(r"--hash=sha256:(\w{64})", text))) == 2 * 2 * 4

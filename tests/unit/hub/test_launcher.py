"""The launcher `./lab`: which parts of the environment a command installs first."""

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
        (["test", "tests/unit"], ("lab", "notebooks", "sign-in", "test")),
        (["bench", "labkit", "--json"], ("lab", "notebooks")),
        (["bench", "pool"], ("lab",)),
        (["pool", "status"], ("lab",)),
    ],
)
def test_parts(launcher: ModuleType, arguments: list[str], parts: tuple[str, ...]) -> None:
    """What measures with torch and numpy brings them, whatever is asked first."""
    assert launcher.parts(arguments) == parts


PINNED = sorted(LAB.parent.glob("requirements/*.txt"))


@pytest.mark.parametrize("file", [file for file in PINNED if file.name != "torch.txt"], ids=str)
def test_every_pin_has_hashes(file: Path) -> None:
    """Files that are not of the pinned release are refused; each machine has its own torch."""
    logical = file.read_text().replace("\\\n", " ").splitlines()
    pins = [line.split() for line in logical if line and not line.lstrip().startswith("#")]
    assert pins
    assert [name for name, *hashes in pins if not hashes[0].startswith("--hash=sha256:")] == []
    assert [name for name, *_ in pins if "==" not in name] == []


def test_hashes_are_required() -> None:
    """What installs the files of pins insists on their hashes."""
    assert '"--require-hashes", "--requirement"' in LAB.read_text()

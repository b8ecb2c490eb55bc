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
        (["test", "tests/unit"], ("lab", "notebooks", "test")),
        (["bench", "labkit", "--json"], ("lab", "notebooks")),
        (["bench", "pool"], ("lab",)),
        (["pool", "status"], ("lab",)),
    ],
)
def test_parts(launcher: ModuleType, arguments: list[str], parts: tuple[str, ...]) -> None:
    """What measures with torch and numpy brings them, whatever is asked first."""
    assert launcher.parts(arguments) == parts

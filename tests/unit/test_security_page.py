"""The tests that the page on security rests on are there, and say what they show."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = tomllib.loads((ROOT / "docs/security_tests.toml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/explanation/security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("test", sorted({test for tests in NAMED.values() for test in tests}))
def test_it_is_there(test: str) -> None:
    """By this very name."""
    file, *names = test.split("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert all(f"def {name}(" in text or f"class {name}" in text for name in names)


def test_every_section_has_tests() -> None:
    """What the page says is defended is shown, by sections of the same names."""
    sections = [line[3:] for line in PAGE.splitlines() if line.startswith("## ")]
    assert [name for name in sections if name in NAMED] == list(NAMED)[1:]

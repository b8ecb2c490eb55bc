"""What the page on security says is shown by a test is shown by a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(long\))?", PAGE)))


@pytest.mark.parametrize(("file", "test", "marked"), NAMED)
def test_it_is_there(file: str, test: str, marked: str) -> None:
    """By this very name, and said to be long if it is."""
    text = (ROOT / file).read_text(encoding="utf-8")
    before, found, _ = text.partition(f"def {test}(")
    assert found
    marks = re.search(r"^pytestmark = (\[\n(.*\n)*?\]|.*$)", text, re.MULTILINE)
    is_long = "mark.long" in before.rsplit("\n\n\n", 1)[-1] + (marks[0] if marks else "")
    assert bool(marked) is is_long


def test_the_page_names_tests() -> None:
    """The pattern above finds them."""
    assert len(NAMED) > 30

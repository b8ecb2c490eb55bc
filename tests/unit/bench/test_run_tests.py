"""`./lab test` over a small checkout: both halves run, and neither hides the other's failure."""

from pathlib import Path

import pytest

from miglab_bench import run_tests

GOOD, BAD = "def test_it():\n    pass\n", "def test_it():\n    raise AssertionError('in here')\n"


@pytest.mark.parametrize(
    ("hub", "unit", "status"), [(GOOD, GOOD, 0), (BAD, GOOD, 1), (GOOD, BAD, 1)]
)
def test_two_halves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    hub: str,
    unit: str,
    status: int,
) -> None:
    """A failure in either is the whole's, and both say what they did."""
    monkeypatch.setattr(run_tests, "checkout", lambda: tmp_path)
    for folder, text in (("hub", hub), ("unit", unit)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(text)
    assert run_tests.run_tests([], everything=True) == status
    said = capfdbinary.readouterr().out
    assert b"test_hub.py" in said and b"test_unit.py" in said
    assert (b"in here" in said) == bool(status)

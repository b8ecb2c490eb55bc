"""For the tests of what labkit refuses."""

from pathlib import Path

import pytest


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A call that starts a child has not refused; what it writes lies in a folder of the test."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    for module in ("run.child", "measuring.measure", "measuring.place"):
        monkeypatch.setattr(f"labkit.{module}.run_blocking", started)
    monkeypatch.chdir(tmp_path)

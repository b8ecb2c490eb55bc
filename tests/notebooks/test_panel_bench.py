"""The benchmark of the panel runs through a real kernel and says what it measured."""

import pytest
from tests.needs import needs

from labkit import errors
from labkit.authoring import panel_bench

needs("torch", "the child measures with torch")
needs("nbclient", "a kernel needs nbclient")
needs("ipywidgets", "panels are widgets")


@pytest.mark.long
def test_a_few_rounds_through_a_real_kernel(monkeypatch, tmp_path):
    """On and off in turns: a ratio inside its interval, and the device."""
    monkeypatch.chdir(tmp_path)
    found = panel_bench.in_a_kernel(rounds=20)
    assert found["low"] <= found["ratio"] <= found["high"]
    assert found["rounds"] == 20
    assert found["device"]
    assert list(tmp_path.iterdir()) == []


async def test_a_child_that_dies_is_a_sentence(monkeypatch):
    """A child that cannot start ends the benchmark in words."""
    monkeypatch.setattr(panel_bench.sys, "executable", "/bin/false")
    with pytest.raises(errors.ChildKilled, match="ended without a word"):
        await panel_bench.measure(20)

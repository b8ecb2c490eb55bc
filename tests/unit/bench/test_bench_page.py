"""The page's benchmark on a small pool: that it measures what it says."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.measures import page
from miglab_bench.measures.page import PageCost, measure
from miglab_hub.settings.lab_toml import load


async def test_each_update_shows_its_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU, three who wait: every row is there, and an update is smaller than the page."""
    for name, value in {"GPUS": 1, "WAITING": 3, "WARM_UP": 1}.items():
        monkeypatch.setattr(page, name, value)
    file = tmp_path / "lab.toml"
    file.write_text(page.LAB.format(port=20000, gpus=1))
    rows = {row.what: row for row in await measure(load(file, {}), 2)}
    assert list(rows) == [
        "update: a GPU",
        "update: the queue",
        "snapshot, once for all",
        "first load",
    ]
    assert all(row.cpu_ms > 0 and row.p50_ms <= row.p95_ms for row in rows.values())
    assert 0 < rows["update: a GPU"].bytes < rows["first load"].bytes


def test_the_answer_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON: the rows, and how they were measured; as a table, the figures."""

    async def measured(settings: object, samples: int) -> list[PageCost]:
        return [PageCost("update: a GPU", 1.25, 2.5, 3.75, 5090, samples)]

    monkeypatch.setattr(page, "measure", measured)
    said = json.loads(CliRunner().invoke(app, ["page", "--json", "--samples", "3"]).stdout)
    assert said["rows"][0]["samples"] == 3 and said["rows"][0]["waiting"] == 200
    assert "5 ms" in said["how"]
    assert "1.25" in CliRunner().invoke(app, ["page", "--samples", "3"]).stdout

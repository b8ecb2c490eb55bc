"""The reclaim benchmark with fast timers: that it measures what it says."""

import json

import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.measures import reclaim
from miglab_bench.measures.reclaim import ReclaimTimes, measure
from miglab_pool.http.pool_runner import Times

FAST = Times(turn_s=0.01, jobs_s=0.01, holders_s=0.05)


async def test_the_drivers_own_time_is_taken_off() -> None:
    """Slower acts are the driver's; the next server has started in every sample."""
    row = await measure(2, 0.05, FAST)
    assert row.samples == 2
    assert row.driver_p50_s >= 4 * 0.05
    assert row.total_p50_s == pytest.approx(row.driver_p50_s + row.beyond_p50_s, abs=0.002)


def test_the_answer_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON: the rows, and how they were measured."""

    async def measured(samples: int, call_s: float) -> ReclaimTimes:
        return ReclaimTimes(samples, 1.0, 1.2, 4 * call_s, 0.6, 0.8)

    monkeypatch.setattr(reclaim, "measure", measured)
    said = json.loads(CliRunner().invoke(app, ["reclaim", "--json", "--samples", "3"]).stdout)
    assert said["rows"][0]["samples"] == 3 and said["rows"][0]["driver_p50_s"] == 0.4
    assert "without the hub's own time" in said["how"]
    assert "0.6" in CliRunner().invoke(app, ["reclaim", "--samples", "3"]).stdout

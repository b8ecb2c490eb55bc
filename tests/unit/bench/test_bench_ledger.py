"""`lab bench ledger`: the history it makes up, and what is printed."""

import contextlib
import json
from pathlib import Path

import pytest
from sqlalchemy import func, select
from tests.empty import empty_ledger
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.measures import ledger
from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Ledger

NOW = 1_795_521_600.0
ROW = ledger.LedgerRow(0, 0.1, 1.5, 20.0, dict.fromkeys(ledger.PAGES, 3.0))


def test_a_history_is_one_that_the_pool_could_have_written(tmp_path: Path) -> None:
    """As many transitions as were asked for, one lease for ten; nothing of it lives."""
    file = tmp_path / "ledger.sqlite"
    file.write_bytes(empty_ledger())
    ledger.fill(file, 200, NOW)
    opened = Ledger(file)
    try:
        counts = [
            opened.read(select(func.count().label("n")).select_from(table))[0]["n"]
            for table in (tables.transitions, tables.leases, tables.tickets)
        ]
        assert counts == [200, 20, 20]
        assert not (opened.state.leases or opened.state.tickets)
        last = opened.read(select(func.max(tables.leases.c.ended_at).label("at")))[0]["at"]
        assert last < NOW
    finally:
        opened.close()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has been measured already."""

    class LedgerHere:
        ledger = tmp_path

    monkeypatch.setattr(ledger, "temporary_settings", lambda: contextlib.nullcontext(LedgerHere))
    monkeypatch.setattr(ledger, "fill", lambda *_: None)
    monkeypatch.setattr(ledger, "measure", lambda *_: ROW)


def test_json_holds_the_empty_ledger_and_the_long_one(measured: None) -> None:
    """Two rows of one kind."""
    said = json.loads(CliRunner().invoke(app, ["ledger", "--json"]).output)
    assert len(said["rows"]) == 2
    assert set(said["rows"][0]["pages_ms"]) == set(ledger.PAGES)


def test_people_read_a_table(measured: None) -> None:
    """And how it was measured."""
    said = CliRunner().invoke(app, ["ledger"]).output
    assert "what history costs the pool" in said
    assert "history over 180 days" in said

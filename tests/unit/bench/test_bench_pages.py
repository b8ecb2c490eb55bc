"""`lab bench pages`: how openings are summed up, and what is said of bounds."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.measures import pages
from miglab_bench.measures.pages import PAGES, Opening, row_of, sizes

LAB = next(case for case in PAGES if case.name == "JupyterLab")
PLAIN = [Opening(5_800_000, 2.0, 190_000, 1.0), Opening(5_800_000, 4.0, 190_000, 1.0)]


def usual(first_bytes: int, second_bytes: int) -> list[Opening]:
    return [Opening(first_bytes, seconds, second_bytes, 1.0) for seconds in (1.8, 3.8)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab whose pages have been opened already."""

    @contextmanager
    def nothing(**_: object) -> Iterator[None]:
        yield

    openings = {case: (PLAIN, usual(100_000, 50_000)) for case in PAGES}
    monkeypatch.setattr(pages, "temporary_lab", nothing)
    monkeypatch.setattr(pages, "chromium", nothing)
    monkeypatch.setattr(pages, "measure", lambda *_: openings)


def test_a_row_has_the_medians() -> None:
    """Bytes with and without compression, and seconds."""
    row = row_of(LAB, PLAIN, usual(1_500_000, 50_000))
    assert (row.plain_bytes, row.first_bytes, row.second_bytes) == (5_800_000, 1_500_000, 50_000)
    assert (row.plain_s, row.first_s, row.second_s) == (3.0, 2.8, 1.0)


def test_each_bound_is_judged() -> None:
    """A bound that is missed is said so; pages without one say nothing."""
    row = row_of(LAB, PLAIN, usual(1_600_001, 60_000))
    first, second = sizes(LAB, row)
    assert first.endswith("1,600,000 bytes the first time DOES NOT HOLD")
    assert second.endswith("60,000 bytes the second time holds")
    home = next(case for case in PAGES if case.name == "home")
    assert list(sizes(home, row)) == []


@pytest.mark.usefixtures("measured")
def test_json_and_a_table() -> None:
    """One object with a row a page; for people the same, and the bounds in words."""
    report = json.loads(CliRunner().invoke(app, ["pages", "--json"]).output)
    assert [row["page"] for row in report["rows"]] == [case.name for case in PAGES]
    assert report["ratios"]["sign-in"]["median"] == pytest.approx(0.925)
    table = CliRunner().invoke(app, ["pages"]).output
    assert "JupyterLab" in table and "the bound of 120,000 bytes the first time holds" in table


def test_without_playwright_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 2 and one sentence."""
    monkeypatch.setattr(pages, "temporary_lab", lambda **_: pytest.fail("a lab was started"))
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    result = CliRunner().invoke(app, ["pages"])
    assert result.exit_code == 2
    assert "./lab install test" in result.output

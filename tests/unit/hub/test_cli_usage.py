"""`miglab pool usage`: the days asked for, a table, a sheet, and JSON."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from .conftest import Service, invoked, run

FIGURES = {
    "slice_hours": 12.34, "leases": 3, "wait_p50_s": 90.0, "wait_p95_s": 600.0,
    "idle_share": 0.25, "known_share": 0.9, "reclaims": 1, "refusals": 2,
}  # fmt: skip
NOTHING = {**FIGURES, "wait_p50_s": None, "wait_p95_s": None, "idle_share": None}


@pytest.fixture(autouse=True)
def usage(service: Service) -> None:
    """Of two courses, one of which no one can judge; none of 1999."""
    answer: dict[str, Any] = {
        "since": "2026-11-02", "until": "2026-11-08", "timezone": "UTC", "by": "course",
        "rows": [{"key": "=ml[red]\x1b[2J", **FIGURES}, {"key": "vision", **NOTHING}],
        "total": {"key": "", **FIGURES},
    }  # fmt: skip
    nothing = answer | {"rows": []}
    service.answers = {"/usage": answer, "/usage?since=1999-01-01&by=course": nothing}


def test_a_table(service: Service, lab: Path) -> None:
    """Each course, and all together; what is not known is said so, names stay text."""
    said = run(lab, "usage")
    assert service.asked == [("GET", "/usage?by=course", None)]
    rows = [line for line in said.splitlines() if line]
    assert rows[0] == "from 2026-11-02 to 2026-11-08, UTC" and len(rows) == 5
    assert "=ml[red]?[2J" in rows[2] and "12.3" in rows[2] and "1.5 min" in rows[2]
    assert "unknown" in rows[3] and rows[4].startswith("all")
    assert "\x1b" not in said


def test_the_days_and_the_rows_that_are_asked_for(service: Service, lab: Path) -> None:
    """They reach the service as they are; a period without use says so."""
    run(lab, "usage", "--since", "2026-11-02", "--until", "2026-11-08", "--by", "user")
    asked = "/usage?since=2026-11-02&until=2026-11-08&by=user"
    assert service.asked == [("GET", asked, None)]
    assert "Nothing was used" in run(lab, "usage", "--since", "1999-01-01")


def test_a_sheet(service: Service, lab: Path) -> None:
    """The same as the service's, without a byte-order mark: a pipe needs none."""
    rows = list(csv.DictReader(io.StringIO(run(lab, "usage", "--csv"))))
    assert rows[0]["course"].startswith("'=ml") and rows[0]["slice_hours"] == "12.34"
    assert rows[1]["wait_p50_s"] == ""


@pytest.mark.parametrize(
    "words", [("--csv", "--json"), ("--since", "soon"), ("--by", "name"), ("--until", "2026-13-01")]
)
def test_what_makes_no_sense_asks_nothing(
    service: Service, lab: Path, words: tuple[str, ...]
) -> None:
    """It ends with status 2, before the service is asked."""
    assert invoked(lab, "usage", *words).exit_code == 2 and service.asked == []

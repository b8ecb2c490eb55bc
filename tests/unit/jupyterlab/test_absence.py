"""What a student who comes back is told, from what is given; no clock is read."""

import json
from pathlib import Path

import pytest

from miglab_jupyterlab.absence import AWAY_S, LONG_S, Absence

NOW = 1_700_000_000.0
BACK = NOW + AWAY_S
END = {
    "shape": "1g.5gb", "server": "", "ended_at": NOW + 60, "reason": "Nothing ran for 20 min.",
    "is_given_back": False, "purpose": "server",
}  # fmt: skip


@pytest.fixture
def absence(tmp_path: Path) -> Absence:
    """Of a student who looked at `NOW`."""
    absence = Absence(tmp_path / "jupyter" / "last-look.json")
    absence.note_kernels({}, {}, NOW - 10)
    absence.looked(NOW)
    return absence


def kinds(absence: Absence) -> list[str]:
    assert absence.report is not None
    return [event["kind"] for event in absence.report["events"]]


def test_nobody_was_away_at_first_nor_for_a_moment(tmp_path: Path, absence: Absence) -> None:
    """A new student has looked at nothing before; reading for nine minutes is no absence."""
    assert Absence(tmp_path / "other.json").since(NOW) is None
    assert absence.since(BACK - 1) is None
    assert absence.since(BACK) == NOW


def test_all_that_ended_in_its_order(absence: Absence) -> None:
    """Slices, runs and experiments, each once; a run that ended before they left is no news."""
    absence.note_kernels({"a": "busy", "b": "busy"}, {}, NOW - LONG_S)
    absence.note_kernels({"a": "busy", "b": "idle"}, {}, NOW - 1)
    absence.note_kernels({"a": "idle", "b": "idle"}, {"a": "notebooks/lesson.ipynb"}, NOW + 90)
    measured = [{"experiment": "occupancy", "at": NOW + 30}]
    absence.tell(NOW, [END], measured)
    assert kinds(absence) == ["measured", "lease", "run"]
    run = absence.report["events"][2] if absence.report else {}
    assert (run["path"], run["took_s"]) == ("notebooks/lesson.ipynb", 90 + LONG_S)
    assert absence.report and absence.report["is_new_server"] is False


def test_no_card_without_news(absence: Absence) -> None:
    """What they gave back themselves they know; a short run is none."""
    absence.note_kernels({"a": "busy"}, {}, NOW + 1)
    absence.note_kernels({"a": "idle"}, {}, NOW + LONG_S)
    absence.note_kernels({"b": "busy"}, {}, NOW + LONG_S)
    absence.note_kernels({}, {}, NOW + 3 * LONG_S)  # its kernel is gone
    absence.tell(NOW, [{**END, "is_given_back": True}], [])
    assert absence.report is None


def test_it_is_told_until_it_is_put_away(tmp_path: Path, absence: Absence) -> None:
    """A server that ends before that leaves it to the next; afterwards it is told no more."""
    file = tmp_path / "jupyter" / "last-look.json"
    assert absence.since(BACK) == NOW
    absence.tell(NOW, [END], [])
    absence.looked(BACK)
    assert absence.since(BACK + AWAY_S - 1) is None  # it still stands there
    next_server = Absence(file)
    next_server.note_kernels({}, {}, BACK)
    assert next_server.since(BACK) == NOW
    next_server.tell(NOW, [END], [])
    assert next_server.report and next_server.report["is_new_server"] is True
    next_server.looked(BACK)
    next_server.put_away()
    assert next_server.report is None
    assert Absence(file).since(BACK + AWAY_S - 1) is None


def test_a_second_absence_is_told_with_the_first(absence: Absence) -> None:
    """Where the card still stands: nothing that ended since is lost."""
    absence.tell(NOW, [END], [])
    absence.looked(BACK)
    absence.note_kernels({"a": "busy"}, {}, BACK)
    absence.note_kernels({"a": "idle"}, {}, BACK + LONG_S)
    absence.looked(BACK + LONG_S)
    since = absence.since(BACK + LONG_S + AWAY_S)
    assert since == NOW
    absence.tell(since, [END], [])
    assert sorted(kinds(absence)) == ["lease", "run"]


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"looked_at": None}), "\u00e9"])
def test_a_file_that_makes_no_sense_is_none(tmp_path: Path, content: str) -> None:
    """As for a new student; and where nothing can be written nothing is lost but that."""
    file = tmp_path / "last-look.json"
    file.write_text(content)
    assert Absence(file).since(NOW) is None
    (tmp_path / "file").write_text("")
    Absence(tmp_path / "file" / "last-look.json").looked(NOW)

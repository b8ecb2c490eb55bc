"""At which moments layouts are held against what is reserved."""

import datetime as dt
from types import SimpleNamespace

import pytest

from miglab_api.layouts import LayoutTime
from miglab_pool.layouts.rules import Planned, in_force, schedule_of
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.reservations import layout_conflicts

AT = dt.datetime(2026, 11, 21, 8, tzinfo=dt.UTC).timestamp()
ROW = ReservationRow(
    1, "vision", "3g.20gb", 2, 2, "2026-11-21", "", "10:00", "12:00", "UTC", 600.0, "x", AT,
    "planned",
)  # fmt: skip


@pytest.mark.parametrize(
    ("day", "until", "partition", "breaks_at"),
    [
        (dt.date(2026, 12, 15), "18:00", "1g.5gb", 10.0),
        (dt.date(2026, 11, 24), "10:30", "3g.20gb", 10.5),
    ],
    ids=["far ahead, begun before the class", "over in mid-class"],
)
def test_when_it_breaks(
    monkeypatch: pytest.MonkeyPatch, day: dt.date, until: str, partition: str, breaks_at: float
) -> None:
    """A layout far ahead that begins before the class, or one that ends within it."""
    time = LayoutTime(date=day, from_time="08:00", to_time=until, tz="UTC")
    plans = [Planned(2, "timed", "", {"G": (partition,)}, (schedule_of(time),))]
    if partition == "3g.20gb":
        plans.insert(0, Planned(1, "base", "", {"G": ("1g.5gb",)}))
    monkeypatch.setattr(
        layout_conflicts, "gpus_at", lambda _view, at, _there, plans: in_force(plans, at, 900.0)
    )
    monkeypatch.setattr(
        layout_conflicts, "_holds", lambda laid, _rows: not laid or "3g.20gb" in laid["G"].partition
    )
    view = SimpleNamespace(at=AT)
    found = layout_conflicts.broken(view, plans, [ROW])  # type: ignore[arg-type]
    midnight = dt.datetime.combine(day, dt.time(), dt.UTC).timestamp()
    assert found == {1: midnight + breaks_at * 3600}

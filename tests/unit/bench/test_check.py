"""`./lab check`: the class that its reservation is for, and its report."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import Purpose, TicketState, TicketView, WaitEstimate
from miglab_bench.acceptance.borrowing import waited_longer
from miglab_bench.acceptance.command import run_steps
from miglab_bench.acceptance.sharing import GRACE_S, LASTS, class_now
from miglab_bench.harness.student import CheckFailed
from miglab_pool.schedule import Schedule, occurrence, weekday_mask
from miglab_pool.schedule import local_day as day_of

MOMENTS = {
    "noon": datetime(2026, 6, 2, 12, 0, 0, tzinfo=UTC),
    "late in a minute": datetime(2026, 6, 2, 12, 0, 59, tzinfo=UTC),
    "a minute before midnight": datetime(2026, 12, 31, 23, 59, 30, tzinfo=UTC),
    "midnight": datetime(2027, 1, 1, 0, 0, 0, tzinfo=UTC),
    "an hour before the day ends": datetime(2028, 2, 29, 22, 0, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("now", MOMENTS.values(), ids=MOMENTS.keys())
def test_the_class_of_the_check_takes_place_now(now: datetime) -> None:
    """At any time of day it has begun in this minute, lasts an hour, and is kept a while yet."""
    reservation = class_now(now)
    starts, ends = (
        datetime.strptime(t, "%H:%M").time() for t in (reservation.from_time, reservation.to_time)
    )
    today = day_of(now.timestamp(), reservation.tz)
    rule = Schedule(
        weekday_mask(reservation.weekdays), today, reservation.until, starts, ends, reservation.tz
    )
    class_hour = occurrence(rule, today)
    assert class_hour is not None
    assert (
        timedelta(0)
        <= now - datetime.fromtimestamp(class_hour.starts_at, UTC)
        < timedelta(minutes=1)
    )
    assert class_hour.ends_at - class_hour.starts_at == LASTS.total_seconds()
    assert class_hour.starts_at + reservation.grace_s - now.timestamp() == pytest.approx(GRACE_S)


def test_the_report_says_how_long_each_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one to the next, by a clock that never jumps; after one that failed, none is tried."""

    def fails(_run: object) -> str:
        raise CheckFailed("not fine")

    times = iter([98.0, 100.0, 101.5, 131.5])
    monkeypatch.setattr("miglab_bench.acceptance.command.time.monotonic", lambda: next(times))
    steps = [("one", lambda _run: "fine"), ("two", fails), ("three", fails)]
    report = run_steps(nullcontext(), lambda _lab: None, steps)
    assert [(step.name, step.ok, step.detail, step.took_s) for step in report[1:]] == [
        ("one", True, "fine", 1.5),
        ("two", False, "not fine", 30.0),
    ]


@pytest.mark.parametrize(("waited_s", "late"), [(30.0, 0), (31.0, 1)])
def test_who_waited_longer_than_told(waited_s: float, late: int) -> None:
    """By the upper end of what was said first; who was told nothing waited for nothing."""
    estimate = WaitEstimate(low_s=5, likely_s=10, high_s=30, basis="")
    ticket = TicketView(
        id=4, user="ada", server="", course="c", shape="1g.5gb", state=TicketState.WAITING,
        created_at=100.0, estimate=estimate,
    )  # fmt: skip
    lease = LeaseView(
        id=1, ticket=4, generation=1, user="ada", server="", course="c", shape="1g.5gb",
        state=LeaseState.RUNNING, granted_at=100.0 + waited_s, purpose=Purpose.BORROW,
    )  # fmt: skip
    at_once = lease.model_copy(update={"id": 2, "ticket": 5})
    assert len(waited_longer([lease, at_once], {4: ticket})) == late

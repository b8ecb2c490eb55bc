"""Which layout holds where and when; which claim a GPU at the same time."""

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from miglab_api.layouts import LayoutTime
from miglab_pool.layouts.rules import (
    YEAR_S,
    Planned,
    clashes,
    hidden,
    in_force,
    overlap,
    phase,
    schedule_of,
    times_of,
    times_text,
    why_no_time,
)
from miglab_pool.schedule import first_overlap

NOW = dt.datetime(2026, 6, 1, 8, 0, tzinfo=dt.UTC).timestamp()  # a Monday
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
hours = st.sets(st.integers(0, 23), min_size=2, max_size=2).map(sorted)


@st.composite
def times(draw: st.DrawFn, tz: str = "UTC") -> LayoutTime:
    first, last = draw(hours)
    days = draw(st.sets(st.sampled_from(DAYS), min_size=1, max_size=3))
    return LayoutTime(
        weekdays=tuple(day for day in DAYS if day in days),
        from_time=f"{first:02}:00",
        to_time=f"{last:02}:00",
        tz=tz,
    )


def plan(number: int, *when: LayoutTime, gpus: str = "a") -> Planned:
    partitions = {gpu: (f"{number}g",) for gpu in gpus}
    return Planned(number, f"layout {number}", "", partitions, tuple(map(schedule_of, when)))


@given(times(), times())
def test_overlap_is_exact(one: LayoutTime, other: LayoutTime) -> None:
    """What is sorted out cheaply is what looking at every day of a year would sort out."""
    rules = schedule_of(one), schedule_of(other)
    found = overlap(plan(1, one), plan(2, other), NOW)
    assert found == first_overlap(*rules, NOW, NOW + YEAR_S)


def test_back_to_back_when_clocks_go_back() -> None:
    """The hour that exists twice keeps no two classes from following each other."""
    first = LayoutTime(weekdays=("sun",), from_time="01:00", to_time="02:30", tz="Europe/Berlin")
    second = first.model_copy(update={"from_time": "02:30", "to_time": "04:00"})
    assert overlap(plan(1, first), plan(2, second), NOW) is None


def test_only_equals_on_one_gpu_clash() -> None:
    """One with times beside one without, or on another GPU, is no clash."""
    monday = LayoutTime(weekdays=("mon",), from_time="10:00", to_time="12:00", tz="UTC")
    assert overlap(plan(1), plan(2, monday), NOW) is None
    assert overlap(plan(1, gpus="a"), plan(2, gpus="b"), NOW) is None
    found = list(clashes([plan(1), plan(2, gpus="ab"), plan(3, gpus="b")], NOW))
    assert [(one.number, other.number) for one, other, _ in found] == [(1, 2), (2, 3)]


@given(st.lists(times(), max_size=4), st.integers(0, 14 * 24))
def test_exactly_one_holds(some: list[LayoutTime], hour: int) -> None:
    """At every moment the GPU has the layout with the best right, and until its time ends."""
    plans = [plan(0), *(plan(n, one) for n, one in enumerate(some, 1))]
    at = NOW + hour * 3600 + 1800
    phases = {one.number: phase(one, at, 900.0) for one in plans}
    held = in_force(plans, at, 900.0)["a"]
    best = max((found.rank, number) for number, found in phases.items())
    assert (phases[held.number].rank, held.number) == best
    time = phases[held.number].time
    assert held.until == (time.ends_at if time else None)
    assert held.until is None or held.until > at


def test_hidden() -> None:
    """Without times and with a later one on each GPU nothing is left of a layout."""
    first, second, third = plan(1, gpus="ab"), plan(2, gpus="a"), plan(3, gpus="b")
    assert hidden([first, second]) == []
    assert hidden([first, second, third]) == [first]
    timed = plan(4, LayoutTime(weekdays=DAYS, from_time="00:00", to_time="23:59", tz="UTC"))
    assert hidden([second, timed]) == []


def test_the_last_day_there_is() -> None:
    """A day that no clock reaches is refused like any that is too far ahead."""
    end = LayoutTime(
        date=dt.date.max, from_time="20:00", to_time="21:00", tz="America/New_York"
    )  # fmt: skip
    assert "more than a year ahead" in why_no_time(end, NOW)


@given(st.lists(times("Europe/Berlin"), max_size=4).map(tuple))
def test_the_ledgers_text(some: tuple[LayoutTime, ...]) -> None:
    """Times come back from the ledger as they went in."""
    assert times_of(times_text(some)) == some
    assert all(why_no_time(one, NOW) == "" for one in some)

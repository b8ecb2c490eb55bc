"""The reservations' page: what is drawn for whom, its forms, and a week as a timetable."""

import datetime as dt
import re

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.reservations import ReservationRequest, ReservationState, ReservationView
from miglab_pool.reservations.page import Block, Week, draw_week, monday_of

from .conftest import as_
from .fakes import reservation_view

WEEKLY = ReservationRequest(
    course="ml", shape="1g.5gb", count=7, weekdays=("tue",), date=dt.date(2026, 6, 2),
    from_time="10:00", to_time="12:00", tz="Europe/Berlin", reason="resit",
)  # fmt: skip


@pytest.fixture
def client(world: World, client: httpx.AsyncClient) -> httpx.AsyncClient:
    """Tuesdays, seven slices for ml, by ina."""
    world.pool.reservations.make(WEEKLY, "person:ina")
    return client


async def test_a_student_sees_what_is_reserved_and_can_do_nothing(
    client: httpx.AsyncClient,
) -> None:
    """Course, shape and time; neither who made it nor what for, and no form."""
    page = (await client.get("/reservations?monday=2026-06-03", headers=as_("bob-token"))).text
    assert "7 × 1g.5gb" in page and "Tue 10:00–12:00 Europe/Berlin" in page
    assert "resit" not in page and 'data-details="reserve"' not in page
    details = (await client.get("/details/reservation/1", headers=as_("bob-token"))).text
    assert "<form" not in details and "resit" not in details


async def test_a_week_lists_its_own_reservations(client: httpx.AsyncClient) -> None:
    """A page costs what its week holds; how many there are in other weeks is said."""
    weeks = {
        day: (await client.get(f"/reservations?monday={day}", headers=as_("staff-token"))).text
        for day in ("2026-05-04", "2026-06-03")
    }
    assert ["data-reservation=" in page for page in weeks.values()] == [False, True]
    assert ["1 more in other weeks" in page for page in weeks.values()] == [True, False]


async def test_only_the_courses_instructors_change_it(client: httpx.AsyncClient) -> None:
    """An instructor of another course sees it, without the forms.

    The next time is told by the clock that is shown; the rule stays in its own time zone.
    """
    for token, may in (("instructor-token", True), ("vision-token", False)):
        details = "/details/reservation/1?zone=Asia/Tokyo"
        details_page = (await client.get(details, headers=as_(token))).text
        assert ('data-path="reservations/1"' in details_page) is may
        assert "<dt>Certain</dt><dd>all 7</dd>" in details_page
        assert "17:00–19:00 JST" in details_page and "Tue 10:00–12:00 Europe/Berlin" in details_page


async def test_the_form_offers_own_courses_alone(client: httpx.AsyncClient) -> None:
    """Who instructs one course reserves for that one."""
    form = (await client.get("/details/reserve", headers=as_("instructor-token"))).text
    assert '<option value="ml">' in form and '<option value="vision">' not in form
    refused = await client.get("/details/reserve", headers=as_("assistant-token"))
    assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "query", ["monday=nonsense", "monday=0001-01-01", "monday=9999-12-31", "zone=Mars/Olympus", ""]
)
async def test_any_query_is_answered(client: httpx.AsyncClient, query: str) -> None:
    """What is no day or no zone is left aside."""
    answer = await client.get(f"/reservations?{query}", headers=as_("bob-token"))
    assert answer.status_code == 200 and "Europe/Berlin" in answer.text


async def test_each_hour_says_how_much_is_left(client: httpx.AsyncClient) -> None:
    """Beside all reservations, by the clock that is shown; only who reserves is told."""
    week = "/reservations?monday=2026-06-03&zone=Europe/London&seats=ml+1g.5gb"
    page = (await client.get(week, headers=as_("instructor-token"))).text
    free_by_time = dict(re.findall(r'aria-label="Tuesday 2 June, (\d\d:00): (\d+) left', page))
    assert [free_by_time[at] for at in ("08:00", "09:00", "10:00", "11:00")] == ["7", "0", "0", "7"]
    assert "left to reserve" not in (await client.get(week, headers=as_("bob-token"))).text


MONDAY = dt.date(2026, 6, 1)
BERLIN = "Europe/Berlin"


def at(day: int, hour: int) -> float:
    """A moment of that week, UTC."""
    return dt.datetime(2026, 6, day, hour, tzinfo=dt.UTC).timestamp()


def week_of(*reservations: ReservationView, zone: str = BERLIN, now: float = at(1, 6)) -> Week:
    return draw_week(reservations, MONDAY, zone, now)


def blocks(of: Week, day: int) -> list[Block]:
    return list(of.days[day].blocks)


def class_(number: int = 1, **fields: object) -> ReservationView:
    return reservation_view(number, date=dt.date(2026, 5, 1), **fields)


LATE, NIGHT = class_(from_time="16:30", to_time="18:00"), "23:30–01:00"
ONCE, NEXT_WEEK = reservation_view(1, weekdays=(), date=dt.date(2026, 6, 4)), dt.date(2026, 6, 8)
SPRING = dt.date(2026, 3, 23)
EARLY = reservation_view(1, date=SPRING, weekdays=("sun",), from_time="01:30", to_time="04:00")
DRAWN = {
    "Tuesday": (class_(), MONDAY, BERLIN, (8, 18), [(1, 40, 8, "10:00–12:00")]),
    "elsewhere": (class_(), MONDAY, "America/New_York", (4, 18), [(1, 16, 8, "04:00–06:00")]),
    "over midnight": (LATE, MONDAY, "Asia/Tokyo", (0, 24), [(1, 94, 2, NIGHT), (2, 0, 4, NIGHT)]),
    "once": (ONCE, MONDAY, BERLIN, (8, 18), [(3, 40, 8, "10:00–12:00")]),
    "in no other week": (ONCE, NEXT_WEEK, BERLIN, (8, 18), []),
    "an hour is missing": (EARLY, SPRING, BERLIN, (1, 18), [(6, 6, 10, "01:30–04:00")]),
}


@pytest.mark.parametrize(
    ("reservation", "monday", "zone", "hours", "places"), DRAWN.values(), ids=DRAWN
)
def test_a_class_lies_at_its_time(
    reservation: ReservationView, monday: dt.date, zone: str, hours: object, places: list[object]
) -> None:
    """By the clock that is shown, with the hours: day, first quarter, how many, and when it is."""
    of = draw_week([reservation], monday, zone, at(1, 6))
    drawn_blocks = [(n, b.first, b.quarters, b.times) for n in range(7) for b in blocks(of, n)]
    assert ((of.from_hour, of.to_hour), drawn_blocks) == (hours, places)


def test_overlapping_classes_lie_side_by_side() -> None:
    """The third below the first, where that is free again; the picture stays as wide."""
    drawn_week = week_of(
        class_(1),
        class_(2, from_time="11:00", to_time="14:00"),
        class_(3, from_time="12:00", to_time="13:00"),
    )
    lanes = {block.reservation.id: block.lane for block in blocks(drawn_week, 1)}
    assert lanes == {1: 0, 2: 1, 3: 0}
    assert (drawn_week.days[1].lanes, drawn_week.days[0].lanes) == (2, 1)
    drawn_week = week_of(*(class_(number) for number in range(40)))
    assert (len(blocks(drawn_week, 1)), drawn_week.days[1].lanes) == (40, 12)
    assert max(block.lane for block in blocks(drawn_week, 1)) == 11


@pytest.mark.parametrize(
    ("now", "state"),
    [(at(2, 7), ReservationState.RESERVED), (at(5, 0), ReservationState.OVER)],
)
def test_the_state_is_of_that_time(now: float, state: ReservationState) -> None:
    """What it does now stands at the time in force; a time that is past is over."""
    reserved = class_(state=ReservationState.RESERVED, starts_at=at(2, 8))
    later = class_(state=ReservationState.PLANNED, starts_at=at(9, 8))
    (block,) = blocks(
        week_of(reserved if state is ReservationState.RESERVED else later, now=now), 1
    )
    assert block.state is state


def test_today_and_monday() -> None:
    """The day that it is, by the drawn clock; a Sunday belongs to the week before it ends."""
    drawn_week = week_of(now=at(2, 23))
    assert [day.is_today for day in drawn_week.days].index(True) == 2
    assert monday_of(dt.date(2026, 6, 7)) == MONDAY

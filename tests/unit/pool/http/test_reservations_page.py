"""The reservations' page: what is drawn for whom, and its forms."""

import datetime as dt
import re

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.reservations import ReservationRequest

from .conftest import as_

WEEKLY = ReservationRequest(
    course="ml", shape="1g.5gb", count=7, weekdays=("tue",), date=dt.date(2026, 6, 2),
    from_time="10:00", to_time="12:00", tz="Europe/Berlin", reason="resit",
)  # fmt: skip


@pytest.fixture(autouse=True)
def reservation(world: World) -> int:
    """Tuesdays, seven slices for ml, by ina."""
    return world.pool.reservations.make(WEEKLY, "person:ina").id


async def test_a_student_sees_what_is_reserved_and_can_do_nothing(
    client: httpx.AsyncClient,
) -> None:
    """Course, shape and time; neither who made it nor what for, and no form."""
    page = (await client.get("/reservations?monday=2026-06-03", headers=as_("bob-token"))).text
    assert "7 × 1g.5gb" in page and "Tue 10:00–12:00 Europe/Berlin" in page
    assert "resit" not in page and 'data-details="reserve"' not in page
    details = (await client.get("/details/reservation/1", headers=as_("bob-token"))).text
    assert "<form" not in details and "resit" not in details


@pytest.mark.parametrize(("token", "may"), [("instructor-token", True), ("vision-token", False)])
async def test_only_the_courses_instructors_change_it(
    client: httpx.AsyncClient, token: str, may: bool
) -> None:
    """An instructor of another course sees it, without the forms."""
    details = await client.get("/details/reservation/1", headers=as_(token))
    assert ('data-path="reservations/1"' in details.text) is may


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
    left = dict(re.findall(r'aria-label="Tuesday 2 June, (\d\d:00): (\d+) left', page))
    assert [left[at] for at in ("08:00", "09:00", "10:00", "11:00")] == ["7", "0", "0", "7"]
    assert "left to reserve" not in (await client.get(week, headers=as_("bob-token"))).text


async def test_the_next_time_is_told_by_the_clock_that_is_shown(client: httpx.AsyncClient) -> None:
    """The rule itself stays in the time zone in which it was made."""
    details = "/details/reservation/1?zone=Asia/Tokyo"
    said = (await client.get(details, headers=as_("instructor-token"))).text
    assert "<dt>Certain</dt><dd>all 7</dd>" in said
    assert "17:00–19:00 JST" in said and "Tue 10:00–12:00 Europe/Berlin" in said

"""The reservations' page: what is drawn for whom, and its forms."""

import httpx
import pytest

from .conftest import as_
from .fakes import FakePool, reservation_view

HOSTILE = '"><script>alert(1)</script>'


async def test_a_student_sees_what_is_reserved_and_can_do_nothing(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    """Course, shape and time; neither who made it nor what for, and no form."""
    pool.reserved[1] = reservation_view(1, reason="resit")
    page = (await client.get("/reservations?monday=2026-06-03", headers=as_("bob-token"))).text
    assert "7 × 1g.5gb" in page and "Tue 10:00–12:00 Europe/Berlin" in page
    assert "resit" not in page and 'data-details="reserve"' not in page
    details = (await client.get("/details/reservation/1", headers=as_("bob-token"))).text
    assert "<form" not in details and "resit" not in details


@pytest.mark.parametrize(("token", "may"), [("instructor-token", True), ("vision-token", False)])
async def test_only_the_courses_instructors_change_it(
    client: httpx.AsyncClient, pool: FakePool, token: str, may: bool
) -> None:
    """An instructor of another course sees it, without the forms."""
    pool.reserved[1] = reservation_view(1)
    details = await client.get("/details/reservation/1", headers=as_(token))
    assert ('data-path="reservations/1"' in details.text) is may


async def test_the_form_offers_own_courses_alone(client: httpx.AsyncClient) -> None:
    """Who instructs one course reserves for that one."""
    form = (await client.get("/details/reserve", headers=as_("instructor-token"))).text
    assert '<option value="ml">' in form and '<option value="vision">' not in form
    refused = await client.get("/details/reserve", headers=as_("assistant-token"))
    assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")


async def test_what_is_gone_is_said(client: httpx.AsyncClient) -> None:
    """A reservation that was cancelled meanwhile."""
    answer = await client.get("/details/reservation/9", headers=as_("staff-token"))
    assert (answer.status_code, answer.json()["reason"]) == (404, "no-such-page")


@pytest.mark.parametrize(
    "query", ["monday=nonsense", "monday=0001-01-01", "monday=9999-12-31", "zone=Mars/Olympus", ""]
)
async def test_any_query_is_answered(client: httpx.AsyncClient, pool: FakePool, query: str) -> None:
    """What is no day or no zone is left aside."""
    pool.reserved[1] = reservation_view(1)
    answer = await client.get(f"/reservations?{query}", headers=as_("bob-token"))
    assert answer.status_code == 200 and "Europe/Berlin" in answer.text


async def test_hostile_words_stay_text(client: httpx.AsyncClient, pool: FakePool) -> None:
    """A course's name and what a reservation is for are shown, not run."""
    pool.reserved[1] = reservation_view(1, course=HOSTILE, reason=HOSTILE, made_by=HOSTILE)
    for path in ("/reservations?monday=2026-06-03", "/details/reservation/1"):
        page = (await client.get(path, headers=as_("admin-token"))).text
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page


async def test_the_navigation_leads_to_pages_that_are_there(client: httpx.AsyncClient) -> None:
    """Every place in the navigation answers, and says that one is there."""
    page = (await client.get("/", headers=as_("admin-token"))).text
    nav = page.split('<nav class="places"')[1].split("</nav>")[0]
    links = [part.split('"')[0] for part in nav.split('href="')[1:]]
    assert len(links) >= 2
    for link in links:
        there = await client.get(f"http://lab{link}", headers=as_("admin-token"))
        assert there.status_code == 200
        assert f'href="{link}" aria-current="page"' in there.text

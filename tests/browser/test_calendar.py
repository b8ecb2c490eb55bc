"""The reservations' calendar by keyboard: from hour to hour, and from an hour to a reservation."""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

from miglab_api.reservations import ReservationRequest

from .served import MARKS, Open, PageLab, problems

pytestmark = MARKS
TODAY = dt.datetime.now(dt.UTC).date()
MONDAY = TODAY + dt.timedelta(days=14 - TODAY.weekday())
TUESDAY = MONDAY + dt.timedelta(days=1)
PRACTICAL = ReservationRequest(
    course="ml", shape="1g.5gb", count=5, date=TUESDAY,
    from_time="10:00", to_time="12:00", tz="UTC",
)  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    """One A100, of whose seven 1g.5gb five are reserved for ml on a Tuesday from 10 to 12."""
    async with PageLab(tmp_path) as lab:
        await lab.runner.decide(lambda pool: pool.reservations.make(PRACTICAL, "person:ilse"))
        yield lab


@pytest_asyncio.fixture(loop_scope="module")
async def page(open_page: Open) -> Page:
    """That week as ml's instructor has it."""
    week = f"reservations?monday={MONDAY}&zone=UTC"
    return await open_page(week, "instructor-token", timezone_id="UTC")


async def at_hour(page: Page) -> str:
    """The hour that the keyboard is on, and how much it has left; empty for none."""
    focused_day = (
        "document.activeElement.matches('.left button') && document.activeElement.ariaLabel"
    )
    return str(await page.evaluate(focused_day) or "")


async def test_arrow_keys_go_from_hour_to_hour(page: Page) -> None:
    """All hours are one Tab stop; in them, up and down is an hour, left and right a day."""
    while not await at_hour(page):
        await page.keyboard.press("Tab")
    assert f"{MONDAY:%A %-d %B}, 08:00: " in await at_hour(page)
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        await page.keyboard.press(key)
    assert await at_hour(page) == f"{TUESDAY:%A %-d %B}, 10:00: 2 left to reserve"
    await page.keyboard.press("ArrowUp")
    assert await at_hour(page) == f"{TUESDAY:%A %-d %B}, 09:00: 7 left to reserve"
    await page.keyboard.press("ArrowLeft")
    assert f"{MONDAY:%A %-d %B}, 09:00: " in await at_hour(page)
    await page.keyboard.press("Tab")
    assert await at_hour(page) == ""


async def test_an_hour_begins_the_form(lab: PageLab, page: Page) -> None:
    """Enter opens it with course, shape, day and times; a count and Enter reserve."""
    while not await at_hour(page):
        await page.keyboard.press("Tab")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "Enter"):
        await page.keyboard.press(key)
    dialog = page.get_by_role("dialog")
    for label, value in (
        ("Course", "ml"), ("What each of them gets", "1g.5gb"), ("First day", f"{TUESDAY}"),
        ("From", "10:00"), ("To", "11:00"), ("Time zone", "UTC"),
    ):  # fmt: skip
        exact = label in ("From", "To")
        await expect(dialog.get_by_label(label, exact=exact)).to_have_value(value)
    await expect(dialog.get_by_label("How many students")).to_be_focused()
    assert await problems(page, "serious", "critical") == []
    await page.keyboard.type("3")
    await page.keyboard.press("Enter")
    refusal = dialog.locator("form:visible [role=alert]")
    await expect(refusal).not_to_be_empty()
    await page.keyboard.press("Backspace")
    await page.keyboard.type("2")
    await expect(refusal).to_be_empty()
    await page.keyboard.press("Tab")
    await expect(dialog.get_by_text("All 2 are certain.")).to_be_visible()
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("The slices are reserved.")).to_be_visible()
    label = f"{TUESDAY:%A %-d %B}, 10:00: 0 left to reserve"
    await expect(page.get_by_role("button", name=label)).to_be_focused()
    reservations = {
        (reservation.course, reservation.count, reservation.date)
        for reservation in lab.pool.reservations.all()
    }
    assert reservations == {("ml", 5, TUESDAY), ("ml", 2, TUESDAY)}


async def test_another_weeks_reservation_is_shown_there(page: Page) -> None:
    """From another week, the page goes to the first week of what was reserved, and says so."""
    await page.goto(page.url.replace(f"monday={MONDAY}", f"monday={TODAY}"))
    await page.get_by_role("button", name="Reserve…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("How many students").fill("2")
    await dialog.get_by_label("First day").fill(f"{TUESDAY}")
    await dialog.get_by_role("button", name="Reserve").click()
    await expect(page.locator('.block[data-reservation="2"]')).to_be_visible()
    said = page.get_by_role("status").filter(has_text="This is their first week.")
    await expect(said).to_contain_text("The slices are reserved.")


async def test_a_refused_reservation_is_said_once(page: Page) -> None:
    """Beside the button, and not in the outlook above it as well."""
    await page.get_by_role("button", name="Reserve…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("First day").fill(f"{TUESDAY}")
    await dialog.get_by_label("How many students").fill("3")
    await page.keyboard.press("Tab")
    await expect(dialog.locator("[data-preview]")).to_contain_text("clashes with reservation 1")
    await dialog.get_by_role("button", name="Reserve").click()
    refusal = dialog.get_by_role("alert").filter(has_text="clashes with reservation 1")
    await expect(refusal).to_be_visible()
    await expect(dialog.get_by_text("clashes with reservation 1")).to_have_count(1)


async def test_the_times_of_one_hour_can_be_read(lab: PageLab, page: Page) -> None:
    """The last hour of the day has room for course, slices and times: nothing is cut off."""
    late = PRACTICAL.model_copy(update={"count": 1, "from_time": "17:00", "to_time": "18:00"})
    await lab.runner.decide(lambda pool: pool.reservations.make(late, "person:ilse"))
    await page.reload()
    inside = """all => all.map(times => {
      const bottom = element => element.getBoundingClientRect().bottom;
      const is_in = bottom(times) <= bottom(times.closest(".block"));
      return is_in && times.scrollWidth <= times.clientWidth;
    })"""
    assert await page.locator(".block .times").evaluate_all(inside) == [True] * 2


async def test_courses_are_called_by_their_titles(page: Page) -> None:
    """In the week, in the list, in what a class is and in the form."""
    await expect(page.locator(".block .what")).to_have_text("Ml")
    await expect(page.locator("tbody th button")).to_have_text("Ml, reservation 1")
    await page.locator(".block button").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading")).to_have_text("Ml: 5 × 1g.5gb")
    await dialog.get_by_text("Cancel the reservation").first.click()
    await expect(dialog.get_by_text("The slots of Ml are free")).to_be_visible()

"""The pool's page in a real browser: live, by keyboard, and readable by everybody."""

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect
from tests.unit.pool.applications.conftest import enqueue

from miglab_api.leases import WarningKind

from .served import MARKS, Open, PageLab, focused

pytestmark = MARKS


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    async with PageLab(tmp_path) as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="module")
async def page(open_page: Open) -> Page:
    """The page as alice has it."""
    return await open_page(token="alice-token")


async def test_release_by_keyboard(lab: PageLab, page: Page) -> None:
    """Escape keeps it, and the focus; on to the answer that is not the harmless first: released."""
    button = page.locator("#line").get_by_role("button", name="Release").first
    question = page.get_by_text("Your server stops, and your 1g.5gb is free for others.")
    await button.focus()
    await page.keyboard.press("Enter")
    await question.wait_for()
    await page.keyboard.press("Escape")
    await question.wait_for(state="hidden")
    await expect(button).to_be_focused()
    assert lab.pool.leases.find(1).state == "running"
    await page.keyboard.press("Enter")
    while await focused(page) != "Back":
        await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    assert await focused(page) == "Release"
    await page.keyboard.press("Enter")
    await page.get_by_text("Your 1g.5gb is being released.").wait_for()
    step = lab.world.ledger.history("lease", "1")[0]
    assert (step["by"], step["reason"]) == ("person:alice", "released on the pool's page")


async def test_the_first_slice_is_at_most_eight_tabs_away(open_page: Open) -> None:
    """For staff, who have the most in front of it, by the link that skips the navigation."""
    page = await open_page()
    await page.keyboard.press("Tab")
    assert await focused(page) == "Skip to the page"
    await page.keyboard.press("Enter")
    tabs = 1
    while "cell-in" not in await page.evaluate("document.activeElement.className"):
        await page.keyboard.press("Tab")
        tabs += 1
        assert tabs <= 8


async def test_a_warning_is_news(lab: PageLab, page: Page) -> None:
    """Why and when a slice goes back stands there, and the browser says so once."""
    await page.context.grant_permissions(["notifications"])
    await page.evaluate(
        "window.said = []; window.Notification = class { constructor(text) { said.push(text) } };"
        "window.Notification.permission = 'granted'"
    )
    at = lab.world.at + 290
    await lab.runner.decide(lambda pool: pool.leases.warn(1, WarningKind.IDLE, "Nothing runs.", at))
    line = page.locator(".line-warned")
    await expect(line).to_contain_text("Nothing runs.")
    await expect(line.locator(".line-time")).to_have_text(re.compile(r"^4:\d\d left$"))
    harder = WarningKind.MAINTENANCE
    await lab.runner.decide(lambda pool: pool.leases.warn(1, harder, "The class ends.", at - 60))
    await expect(line).to_contain_text("The class ends.")
    assert await page.evaluate("said") == ["Your GPU goes back to the pool soon"]


async def test_a_change_keeps_focus(lab: PageLab, page: Page) -> None:
    """The keyboard's place survives that the part it is in is replaced."""
    await page.locator("#line-release-1").focus()
    await lab.runner.decide(lambda _: enqueue(lab.world))
    await page.get_by_role("rowheader", name="1", exact=True).wait_for()
    assert await page.evaluate("document.activeElement.id") == "line-release-1"


async def test_what_is_found_stands_in_front(lab: PageLab, page: Page) -> None:
    """What does not match steps back; whoever waits below a phone's window comes into it."""
    await page.get_by_label("Find").fill("in use")
    await page.get_by_text("2 found").wait_for()
    assert await page.locator(".cell:not(.past)").count() == 2
    assert await page.locator(".cell.past").count() > 0
    await page.set_viewport_size({"width": 390, "height": 500})
    await lab.runner.decide(lambda _: enqueue(lab.world))
    row = page.get_by_role("rowheader", name="1", exact=True)
    await row.wait_for(state="attached")
    await expect(row).not_to_be_in_viewport()
    await page.get_by_label("Find").fill("7g.40gb")
    await expect(row).to_be_in_viewport()


async def guaranteed_min(tab: Page) -> int:
    """How long alice's slice is guaranteed, as the drawing says it."""
    text = await tab.locator("time.at-least").first.inner_text()
    hours, _, minutes = text.removeprefix("≥ ").partition(" h ")
    return 60 * int(hours) + int(minutes)


async def test_times_are_the_services(lab: PageLab, page: Page) -> None:
    """A browser's clock that is two hours slow adds no time, after a reload or in a second tab."""
    before_min = await guaranteed_min(page)
    second = await page.context.new_page()
    for tab in (page, second):
        await tab.clock.set_system_time(datetime.now().astimezone() - timedelta(hours=2))
        await tab.goto(lab.url)
    await lab.runner.decide(lambda _: enqueue(lab.world))
    for tab in (page, second):
        await tab.get_by_role("rowheader", name="1", exact=True).wait_for()
        assert before_min - 2 <= await guaranteed_min(tab) <= before_min

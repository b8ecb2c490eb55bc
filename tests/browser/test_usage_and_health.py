"""The Usage and Health pages in a real browser: readable by everybody, usable by keyboard."""

import random
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect
from tests.unit.pool.applications.conftest import foreign_slice

from miglab_pool.gpu.readings import Health, Xid
from miglab_pool.state.store import Wellness
from miglab_pool.usage.report import Event, Facts, ObservedDay, ReportedUse, Requester, sum_facts
from miglab_pool.worker.inspect_gpu import Finding

from .people import SCREENSHOTS
from .served import MARKS, Open, PageLab, is_cut_off, problems

pytestmark = MARKS
HOUR = 3600.0
DAY = 24 * HOUR
COURSES = (("ml", "1g.5gb", 1), ("vision", "2g.10gb", 2), ("nlp", "3g.20gb", 4), ("hpc", "full", 8))


def a_term(now: float) -> Facts:
    """Three months of four courses and forty students; some of it is not known."""
    dice = random.Random(3)
    uses, looked, reclaims, refusals = [], [], [], []
    for number in range(600):
        course, shape, size = dice.choices(COURSES, (50, 25, 15, 10))[0]
        person = Requester(f"student{number % 40:02}", course, shape)
        start, lasts = now - DAY - dice.random() ** 1.5 * 80 * DAY, dice.expovariate(1 / HOUR)
        uses.append(
            ReportedUse(number, person, size, start, dice.expovariate(0.01), start, start + lasts)
        )
        if dice.random() < 0.8:
            idle = dice.random() ** 2
            looked.append(ObservedDay(number, start, lasts * (1 - idle), lasts * idle))
        if dice.random() < 0.05:
            reclaims.append(Event(person, start))
        if dice.random() < 0.02:
            refusals.append(Event(person, start))
    return Facts(tuple(uses), tuple(looked), tuple(reclaims), tuple(refusals))


def a_fault(lab: PageLab, now: float) -> None:
    """A GPU with a fault and its history, a foreign slice, a server that nobody knows."""
    reason = (
        "Xid 79: a fault of the GPU or its driver; drain it, look the number up, reset the GPU."
    )
    health = Health(False, 2, (Xid(31), Xid(79)), 91, 250.4, False, reason)
    (gpu,) = lab.world.driver.uuids
    lab.pool.staff.drain(gpu, "the fan is loud", "person:ina")
    lab.pool.staff.undrain(gpu, "", "person:ina")
    foreign_slice(lab.world)
    lab.pool.store.wellness[gpu] = Wellness(now - 12, health)
    orphan = Finding("holder", "container:" + "7f" * 32, "its label names lease 912, unknown here")
    lab.runner.findings = (orphan,)


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    async with PageLab(tmp_path) as lab:
        lab.runner.is_reconciled = True
        term = a_term(time.time())
        lab.pool.sum_usage = lambda period, group_by, _courses: sum_facts(term, period, group_by)
        a_fault(lab, time.time())
        yield lab


@pytest.mark.parametrize("path", ["usage", "usage?by=user", "health"])
async def test_it_looks_good(open_page: Open, path: str) -> None:
    """Axe finds nothing in either scheme; from a phone to a projector nothing scrolls sideways."""
    page = await open_page(path)
    for scheme in ("dark", "light"):
        await page.emulate_media(color_scheme=scheme)
        assert await problems(page) == []
    if SCREENSHOTS and "?" not in path:
        await page.screenshot(path=Path(SCREENSHOTS) / f"{path}-page.png")
    for width in (320, 640, 1280, 1920):
        assert not await is_cut_off(page, width)


async def test_another_report_by_keyboard(open_page: Open) -> None:
    """On to the choice, one letter, Enter: the same days by student."""
    page = await open_page("usage")
    await page.get_by_label("by", exact=True).focus()
    await page.keyboard.press("s")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="By student")).to_be_visible()
    await expect(page.get_by_role("columnheader", name="Student")).to_be_visible()
    assert "by=user" in page.url and await page.get_by_role("row").count() > 20


async def test_a_plot_is_a_picture_with_words(open_page: Open) -> None:
    """A screen reader is told what is drawn; the columns are there, within the picture."""
    page = await open_page("usage")
    plot = page.get_by_role("img", name="Slice-hours by week and course")
    await expect(plot).to_be_visible()
    await expect(plot).to_have_accessible_description(re.compile("most in 20"))
    frame = await plot.bounding_box()
    assert frame is not None
    for column in await plot.locator("rect.fill").all():
        box = await column.bounding_box()
        assert box is not None and box["width"] > 1
        assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"]


# The Health page stays current.

AGAIN_MS = 15_000
COOLED = Health(False, 2, (Xid(31), Xid(79)), 40, 60.0, False, "Xid 79: a fault.")


@pytest_asyncio.fixture(loop_scope="module")
async def health(open_page: Open) -> Page:
    """The page, whose clock the test turns."""
    page = await open_page("health")
    await page.clock.install()
    await page.reload()
    return page


def cool_down(lab: PageLab) -> None:
    """One thing less is wrong."""
    lab.pool.store.wellness[lab.world.driver.uuids[0]] = Wellness(time.time(), COOLED)


async def hide(page: Page, is_hidden: bool) -> None:
    """As if another tab were in front, or this one again."""
    await page.evaluate(
        """is => {
            Object.defineProperty(document, "hidden", { value: is, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


async def test_what_changes_is_shown(lab: PageLab, health: Page) -> None:
    """Without a reload; the keyboard stays where it is, what is open stays open, and it is said."""
    await expect(health.get_by_role("heading", name="4 problems")).to_be_visible()
    await health.get_by_text("Passed (").focus()
    await health.keyboard.press("Enter")
    cool_down(lab)
    await health.clock.run_for(AGAIN_MS)
    await expect(health.get_by_role("heading", name="3 problems")).to_be_visible()
    await expect(health.get_by_role("status")).to_have_text("3 problems")
    assert await health.evaluate("document.activeElement.id") == "fine-words"
    await expect(health.get_by_text("MIG on: partitioned on demand")).to_be_visible()


async def test_nobody_looks_at_a_hidden_page(lab: PageLab, health: Page) -> None:
    """It asks nothing while it is hidden, and at once when it is seen again."""
    urls: list[str] = []
    # Chromium may fetch the tab's icon whenever it likes.
    health.on("request", lambda request: "icon" in request.url or urls.append(request.url))
    await hide(health, True)
    cool_down(lab)
    await health.clock.run_for(10 * AGAIN_MS)
    assert urls == []
    await hide(health, False)
    await expect(health.get_by_role("heading", name="3 problems")).to_be_visible()
    assert len(urls) < 10  # not one for each that was left out


async def test_a_silent_pool_is_told(lab: PageLab, health: Page) -> None:
    """What is shown stays, and is called old until the pool answers again."""
    await health.evaluate(
        "() => { window.kept = fetch; window.fetch = () => Promise.reject(Error('gone')); }"
    )
    await health.clock.run_for(AGAIN_MS)
    await expect(health.get_by_text("this page may be out of date")).to_be_visible()
    await expect(health.get_by_role("heading", name="4 problems")).to_be_visible()
    await health.evaluate("() => { window.fetch = window.kept; }")
    await health.clock.run_for(AGAIN_MS)
    await expect(health.get_by_text("this page may be out of date")).to_be_hidden()


async def test_whoever_is_signed_out_signs_in_again(health: Page) -> None:
    """Sent to the hub, the page begins anew: it shows nothing that its reader may not know."""
    await health.evaluate(
        "() => { window.fetch = () => Promise.resolve({ redirected: true, ok: false }); }"
    )
    async with health.expect_event("load"):
        await health.clock.run_for(AGAIN_MS)


async def test_marked_words_stay_marked(lab: PageLab, health: Page) -> None:
    """Who marks a command to copy it is not disturbed; the next look shows what is new."""
    await health.evaluate("getSelection().selectAllChildren(document.querySelector('.findings'))")
    cool_down(lab)
    async with health.expect_response("**/health"):
        await health.clock.run_for(AGAIN_MS)
    await expect(health.get_by_text("40 °C")).to_be_visible()
    await expect(health.get_by_role("heading", name="4 problems")).to_be_visible()
    await health.evaluate("getSelection().empty()")
    await health.clock.run_for(AGAIN_MS)
    await expect(health.get_by_role("heading", name="3 problems")).to_be_visible()

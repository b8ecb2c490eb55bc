"""The Log page in a real browser: read, narrowed down and steered by keyboard, at any width."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect
from tests.unit.pool.applications.conftest import enqueue

from miglab_api.staff import MessageRequest

from .people import SCREENSHOTS
from .served import MARKS, Open, PageLab, focused, is_cut_off, problems

pytestmark = MARKS
MINUTE = 60.0
ROUNDS = 10
FAN = "The fan of GPU 0 is loud: it is looked at tonight, and comes back tomorrow."


def a_day(lab: PageLab) -> None:
    """What staff did on a long day, and two messages that are shown."""
    world, staff, now = lab.world, lab.pool.staff, lab.world.at
    gpu, ticket = world.driver.uuids[0], enqueue(world).id
    root, ilse = "person:root", "person:ilse"
    world.at = now - 6 * ROUNDS * 11 * MINUTE
    for _ in range(ROUNDS):
        for act in (
            lambda: staff.pause("A new driver is installed.", root),
            lambda: staff.resume(root),
            lambda: staff.drain(gpu, FAN, root),
            lambda: staff.undrain(gpu, "", root),
            lambda: staff.put_in_front(ticket, "presents today", ilse),
            lambda: staff.put_back(ticket, ilse),
        ):
            act()
            world.pass_time(11 * MINUTE)
    staff.reclaim(2, "Two wait for the exam.", ilse, 300.0)
    for to, text in (
        ({"to_course": "vision"}, "Hand in by noon."),
        ({"all": True}, "The room closes at eight."),
    ):
        staff.send(MessageRequest(text=text, minutes=42, **to), "person:vera")  # type: ignore[arg-type]


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    async with PageLab(tmp_path) as lab:
        a_day(lab)
        yield lab


@pytest_asyncio.fixture(loop_scope="module")
async def log(open_page: Open) -> Page:
    """The page, open to an admin."""
    return await open_page("log", viewport={"width": 1280, "height": 900})


async def test_it_looks_good(log: Page) -> None:
    """Axe finds nothing as a table or a list, in both schemes; nothing scrolls sideways."""
    for width in (320, 640, 1280, 1920):
        assert not await is_cut_off(log, width)
        for scheme in ("dark", "light") if width in (320, 1280) else ():
            await log.emulate_media(color_scheme=scheme)
            assert await problems(log) == []
        if SCREENSHOTS and width == 1280:
            await log.screenshot(path=Path(SCREENSHOTS) / "log-page.png")


async def test_narrowed_down_by_keyboard(log: Page) -> None:
    """A name, a kind by its first letter, Enter: what was chosen stays in the form."""
    await log.get_by_label("Who", exact=True).focus()
    await log.keyboard.type("ilse")
    await log.keyboard.press("Tab")
    await log.keyboard.type("l")
    await log.keyboard.press("Tab")
    while await focused(log) != "Show":
        await log.keyboard.press("Tab")
    await log.keyboard.press("Enter")
    await expect(log.get_by_role("row")).to_have_count(2)
    await expect(log.get_by_label("Who", exact=True)).to_have_value("ilse")
    await expect(log.get_by_label("What", exact=True)).to_have_value("lease")


async def test_a_message_is_withdrawn_by_keyboard(lab: PageLab, log: Page) -> None:
    """Enter, a reason, Enter: it is told, and the message is gone without a reload."""
    await log.evaluate("window.isTheSame = true")
    await log.get_by_role("button", name="Withdraw… the message to everybody").focus()
    await log.keyboard.press("Enter")
    await expect(log.get_by_role("dialog").get_by_text("The room closes at eight.")).to_be_visible()
    assert await problems(log) == []
    await log.get_by_label("Reason").focus()
    await log.keyboard.type("it stays open")
    await log.keyboard.press("Enter")
    await expect(log.get_by_role("status")).to_have_text("The message is withdrawn.")
    await expect(log.get_by_role("button", name="Withdraw")).to_have_count(1)
    step = lab.world.ledger.history("message", "2")[0]
    assert (step["by"], step["reason"]) == ("person:root", "it stays open")
    assert await log.evaluate("window.isTheSame")

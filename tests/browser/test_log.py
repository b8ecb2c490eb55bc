"""The Log page in a real browser: read, narrowed down and steered by keyboard, at any width."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect
from tests.unit.pool.http.fakes import entry

from miglab_api.staff import SentMessage

from .people import SCREENSHOTS
from .served import signed_in
from .test_pool_page import PageLab

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
]
MINUTE = 60.0
FAN = "The fan of GPU 0 is loud: it is looked at tonight, and comes back tomorrow."
DONE = (  # newest first
    ("ilse", "reclaim", "lease", "118", "running", "warned", "Two wait for the exam.", "ml"),
    ("root", "drain", "gpu", "GPU-0", "ok", "ok", FAN, ""),
    ("vera", "message", "message", "7", "", "shown", "Hand in by noon.", "vision"),
    ("ilse", "next", "ticket", "131", "waiting", "waiting", "presents today", "ml"),
    ("timo", "extend", "lease", "97", "running", "running", "", "ml"),
    ("root", "pause", "pool", "", "granting", "paused", "A new driver is installed.", ""),
)
Open = Callable[..., Awaitable[Page]]


def a_day(lab: PageLab, now: float) -> None:
    """What staff did on a long day, and two messages that are shown."""
    keys = ("action", "kind", "target", "from_state", "to_state", "reason", "course")
    for number in range(60):
        by, *values = DONE[number % len(DONE)]
        at = now - (number * 11 + 3) * MINUTE
        did = dict(zip(keys, values, strict=True))
        lab.pool.done.append(entry(1000 - number, at=at, by=f"person:{by}", **did))
    said = {1: ("vision", "Hand in by noon."), 2: (None, "The room closes at eight.")}
    for number, (course, text) in said.items():
        lab.pool.sent[number] = SentMessage(
            id=number, at=now, by="person:vera", to_course=course, text=text, until=now + 2520
        )


@pytest_asyncio.fixture(loop_scope="module")
async def lab() -> AsyncIterator[PageLab]:
    lab = PageLab()
    await lab.start()
    a_day(lab, time.time())
    yield lab
    await lab.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def log(lab: PageLab, browser: Browser) -> AsyncIterator[Page]:
    """The page, open to an admin; whatever it logs as an error fails the test."""
    errors: list[str] = []
    session = lab.sign_in.sessions.open("admin", "admin-token")
    context = await signed_in(browser, session, viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    await page.goto(f"{lab.url}log")
    yield page
    await context.close()
    assert errors == []


async def test_axe_finds_nothing(log: Page) -> None:
    """Names, roles, contrast and structure: in both schemes, as a table and as a list."""
    for width in (320, 1280):
        await log.set_viewport_size({"width": width, "height": 900})
        for scheme in ("dark", "light"):
            await log.emulate_media(color_scheme=scheme)
            found = await Axe().run(log)
            assert found.violations_count == 0, found.generate_report()
    if SCREENSHOTS:
        await log.screenshot(path=Path(SCREENSHOTS) / "log-page.png")


async def test_nothing_is_cut_off(log: Page) -> None:
    """From a phone's width to a projector's, the page itself never scrolls sideways."""
    for width in (320, 640, 1280, 1920):
        await log.set_viewport_size({"width": width, "height": 900})
        assert await log.evaluate("document.documentElement.scrollWidth") <= width


async def test_narrowed_down_by_keyboard(lab: PageLab, log: Page) -> None:
    """A name, a kind by its first letter, Enter: what was chosen stays in the form."""
    await log.get_by_label("Who", exact=True).focus()
    await log.keyboard.type("ilse")
    await log.keyboard.press("Tab")
    await log.keyboard.type("l")
    lab.pool.done = lab.pool.done[:1]
    await log.keyboard.press("Tab")
    while await log.evaluate("document.activeElement.innerText.trim()") != "Show":
        await log.keyboard.press("Tab")
    await log.keyboard.press("Enter")
    await expect(log.get_by_role("row")).to_have_count(2)
    await expect(log.get_by_label("Who", exact=True)).to_have_value("ilse")
    await expect(log.get_by_label("What", exact=True)).to_have_value("lease")
    asked = [call[1] for call in lab.pool.calls if call[0] == "audit"][-1]
    assert (asked.by, asked.kind) == ("ilse", "lease")


async def test_the_older_ones_are_a_link_away(lab: PageLab, log: Page) -> None:
    """It asks for what is older than the last that is shown."""
    await expect(log.get_by_role("row")).to_have_count(51)
    lab.pool.done = lab.pool.done[50:]
    await log.get_by_role("link", name="Older").click()
    await expect(log.get_by_role("row")).to_have_count(11)
    assert "before=951" in log.url
    await expect(log.get_by_role("link", name="The newest")).to_be_visible()


async def test_a_message_is_withdrawn_by_keyboard(lab: PageLab, log: Page) -> None:
    """Enter, a reason, Enter: it is told, and the message is gone without a reload."""
    await log.evaluate("window.isTheSame = true")
    await log.get_by_role("button", name="Withdraw… the message to everybody").focus()
    await log.keyboard.press("Enter")
    await expect(log.get_by_role("dialog").get_by_text("The room closes at eight.")).to_be_visible()
    assert (await Axe().run(log)).violations_count == 0
    await log.get_by_label("Reason").focus()
    await log.keyboard.type("it stays open")
    await log.keyboard.press("Enter")
    await expect(log.get_by_role("status")).to_have_text("The message is withdrawn.")
    await expect(log.get_by_role("button", name="Withdraw")).to_have_count(1)
    assert ("end_message", 2, "person:root", "it stays open") in lab.pool.calls
    assert await log.evaluate("window.isTheSame")


async def test_the_sheet_is_a_file(lab: PageLab, log: Page) -> None:
    """The link saves what the page shows."""
    async with log.expect_download() as saving:
        await log.get_by_role("link", name="CSV").click()
    saved = await saving.value
    assert saved.suggested_filename == "audit.csv"

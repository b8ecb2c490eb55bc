"""The staff's pages as pictures: at each size, in both themes, at 200 % zoom and on paper."""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect
from tests.browser.people import LAPTOP, PHONE, PROJECTOR, SCREENSHOTS, ZOOMED

from miglab_api.reservations import ReservationRequest

from .served import MARKS, Open, PageLab, is_cut_off, problems

pytestmark = MARKS
PAGES = (
    "", "class?course=ml", "class?course=ml&names=no", "reservations?zone=UTC",
    "layouts", "log", "usage", "health",
)  # fmt: skip
PORTRAIT, LANDSCAPE = 680, 1009  # CSS pixels of A4 between margins of 1.5 cm
TODAY = dt.datetime.now(dt.UTC).date()
CLASSES = [
    ReservationRequest(
        course="ml", shape="1g.5gb", count=count, date=TODAY + dt.timedelta(days=days),
        from_time=start, to_time=end, tz="UTC", reason="Practical",
    )
    for days, start, end, count in ((1, "10:00", "12:00", 5), (1, "13:00", "15:00", 3))
]  # fmt: skip
UNPRINTED = "nav, main form, .top, .tools, [type=checkbox]"


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    """Two hold a slice, five wait, and tomorrow has two reservations."""
    async with PageLab(tmp_path) as lab:
        for request in CLASSES:
            await lab.runner.decide(
                lambda pool, request=request: pool.reservations.make(request, "person:ilse")
            )
        for number in range(10):
            lab.world.ask(f"student{number}", course="ml")
        lab.world.work()
        yield lab


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_page_is_cut_off_at_any_size(open_page: Open, theme: str) -> None:
    """Nothing scrolls sideways, and axe finds nothing, at any size and in either theme."""
    page = await open_page(color_scheme=theme, timezone_id="UTC")
    root = page.url
    found = []
    for path in PAGES:
        await page.goto(root + path)
        for width in (PHONE, ZOOMED, LAPTOP, PROJECTOR):
            if await is_cut_off(page, width):
                found.append(f"{path or 'pool'} at {width} is cut off")
            if width in (PHONE, LAPTOP):
                found += [f"{path} at {width}: {problem}" for problem in await problems(page)]
            if SCREENSHOTS:
                name = f"{path.replace('?', '-').replace('&', '-') or 'pool'}-{width}-{theme}.png"
                await page.screenshot(path=Path(SCREENSHOTS) / name)
    assert found == []


@pytest.mark.parametrize(
    ("path", "width"),
    [("class?course=ml", PORTRAIT), ("reservations?zone=UTC", LANDSCAPE), ("usage", LANDSCAPE)],
    ids=["class", "week", "usage"],
)
async def test_a_page_prints_black_on_white(open_page: Open, path: str, width: int) -> None:
    """Also from the dark theme, whole on A4, without what can only be pressed."""
    page = await open_page(path, color_scheme="dark", timezone_id="UTC")
    await page.emulate_media(media="print", color_scheme="dark")
    assert not await is_cut_off(page, width)
    style = "({ color, backgroundColor }) => `${color} on ${backgroundColor}`"
    looks = await page.evaluate(f"({style})(getComputedStyle(document.documentElement))")
    assert looks == "rgb(0, 0, 0) on rgb(255, 255, 255)"
    assert await page.locator(UNPRINTED).filter(visible=True).count() == 0
    if SCREENSHOTS:
        name = path.split("?")[0]
        await page.screenshot(path=Path(SCREENSHOTS) / f"{name}-printed.png", full_page=True)
        await page.pdf(path=Path(SCREENSHOTS) / f"{name}.pdf", prefer_css_page_size=True)


async def test_a_message_to_all_is_counted_as_far_as_is_known(open_page: Open) -> None:
    """While the hub does not say who is in the course, it goes to more than are listed."""
    page = await open_page("class?course=ml", "instructor-token")
    await expect(page.get_by_role("button", name="Send to all, at least 12")).to_be_visible()
    await page.get_by_label("Select student0").press("Space")
    await expect(page.get_by_role("button", name="Send to the 1 selected")).to_be_visible()
    await page.get_by_label("Select all who are shown").press("Space")
    await expect(page.get_by_role("button", name="Send to the 12 selected")).to_be_visible()

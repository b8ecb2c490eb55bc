"""Seven GPUs of seven slices and 200 who wait: legible at any size, by keyboard, in both themes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.browser.people import SCREENSHOTS
from tests.unit.pool.applications.big import WAITING, BigPool, Idlers

from miglab_pool.applications.gpu_drawing import MARK_WORDS

from .served import MARKS, Open, ServedPages, is_cut_off, problems

PHONE, LAPTOP, PROJECTOR = (390, 844), (1280, 800), (1920, 1080)
pytestmark = MARKS

# What is wider or higher than the room it has, so that a part of it cannot be read.
CUT_OFF = """() => { const bottom = (item) => item.getBoundingClientRect().bottom;
  return [...document.querySelectorAll(".cell .what, .cell .state, .cell .until")]
  .filter((item) => item.offsetParent && (item.scrollWidth > item.clientWidth + 1
    || bottom(item) > bottom(item.closest(".cell")) + 1))
  .map((item) => item.textContent) }"""


class FullPool(ServedPages):
    """The pages over more than any lab holds."""

    reclaimer = Idlers()


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[FullPool]:
    async with FullPool(BigPool(tmp_path)) as lab:
        yield lab


@pytest.mark.parametrize("size", [PHONE, LAPTOP, PROJECTOR])
async def test_everything_can_be_read(open_page: Open, size: tuple[int, int]) -> None:
    """No profile, state or time is cut off, no type is tiny, nothing scrolls sideways."""
    page = await open_page()
    assert not await is_cut_off(page, *size)
    assert await page.locator(".cell .what").count() == 49 + 7
    assert await page.evaluate(CUT_OFF) == []
    least = await page.evaluate(
        "Math.min(...[...document.querySelectorAll('.cell .state')]"
        ".map((item) => parseFloat(getComputedStyle(item).fontSize)))"
    )
    assert least >= (16 if size == PROJECTOR else 12)
    if SCREENSHOTS and size == LAPTOP:
        await page.screenshot(path=Path(SCREENSHOTS) / "pool-full.png")


async def test_every_state_is_drawn_with_its_word(open_page: Open) -> None:
    """All the words of the legend stand in the drawing, and no two look the same."""
    page = await open_page()
    states = await page.locator(".cell .state").all_inner_texts()
    assert set(states) == set(MARK_WORDS.values())
    looks = await page.evaluate(
        "[...document.querySelectorAll('.legend .swatch')].map((item) => {"
        "const look = getComputedStyle(item);"
        "return [look.background, look.border].join()})"
    )
    assert len(set(looks)) == len(MARK_WORDS)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing(open_page: Open, theme: str) -> None:
    """Of any severity, on the page and in an open dialog."""
    page = await open_page(color_scheme=theme)
    assert await problems(page) == []
    await page.locator("button.cell-in").first.click()
    await page.get_by_role("dialog").wait_for()
    await page.get_by_text("Reclaim", exact=True).first.click()
    assert await problems(page) == []


async def test_arrow_keys_walk_over_the_drawing(open_page: Open) -> None:
    """Right and left along a GPU, up and down between GPUs; Enter opens what one is on."""
    page = await open_page()
    await page.locator("#open-0-0").focus()
    for key, expected in (
        ("ArrowRight", "open-0-1"),
        ("ArrowDown", "open-1-1"),
        ("ArrowLeft", "open-1-0"),
        ("ArrowLeft", "open-1-0"),
        ("ArrowUp", "open-0-0"),
    ):
        await page.keyboard.press(key)
        assert await page.evaluate("document.activeElement.id") == expected
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_text("1g.5gb on GPU 0").wait_for()
    await page.keyboard.press("Escape")
    assert await page.evaluate("document.activeElement.id") == "open-0-0"


async def test_200_wait_and_one_is_found(open_page: Open) -> None:
    """The whole queue is there, with no scrolling of its own; a name is found in it at once."""
    page = await open_page()
    assert await page.locator(".queue tbody tr").count() == WAITING
    queue = page.locator(".queue")
    assert await queue.evaluate("item => item.scrollHeight <= item.clientHeight + 1")
    await page.get_by_label("Find").fill("carla178")
    assert await page.locator(".queue tbody tr:not(.past)").count() == 1
    await page.get_by_text("1 found").wait_for()


async def test_an_update_replaces_only_what_changed(open_page: Open, lab: FullPool) -> None:
    """When one GPU changes, the other parts' elements stay the ones they were."""
    page, pool = await open_page(), lab.pool
    await page.evaluate(
        "document.querySelectorAll('.part').forEach((p) => (p.dataset.old = 'yes'))"
    )
    free = pool.drawn_gpus[0].slices[0].model_copy(update={"user": "newcomer"})
    changed = pool.drawn_gpus[0].model_copy(
        update={"slices": (free, *pool.drawn_gpus[0].slices[1:])}
    )
    pool.drawn_gpus = (changed, *pool.drawn_gpus[1:])
    pool.store.publish_change()
    await page.evaluate("document.dispatchEvent(new Event('miglab:acted'))")
    await page.get_by_text("newcomer").wait_for()
    fresh = await page.evaluate(
        "[...document.querySelectorAll('.part:not([data-old])')].map((p) => p.id)"
    )
    assert fresh == ["part-gpu-0"]

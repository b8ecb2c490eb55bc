"""A layout is made on the drawn GPUs, by keyboard alone; the server says what cannot lie there."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

from .served import MARKS, Open, PageLab, focused, problems

pytestmark = MARKS
FILE = """\
version: v1
mig-configs:
  practical:
    - devices: [0]
      mig-enabled: true
      mig-devices:
        1g.5gb: 2
        3g.20gb: 1
"""


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    """Two A100s; alice and bob have a 1g.5gb each on the first."""
    async with PageLab(tmp_path, gpus=2) as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="module")
async def page(open_page: Open) -> Page:
    """The page as the admin has it."""
    page = await open_page("layouts")
    await page.locator("#fields fieldset").first.wait_for()
    return page


async def tab_to(page: Page, label: str) -> None:
    """Press Tab until the keyboard is on the field of that label."""
    field = page.get_by_label(label, exact=True)
    for _ in range(60):
        if await field.evaluate("field => field === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"{label} cannot be reached by Tab")


async def type_over(page: Page, label: str, text: str) -> None:
    """Go to a field and write it anew."""
    await tab_to(page, label)
    await page.keyboard.press("Control+a")
    await page.keyboard.type(text)


async def test_a_layout_is_made_and_applied_by_keyboard(lab: PageLab, page: Page) -> None:
    """Fields write the file, drawing and words follow, and nothing changes before Apply."""
    await type_over(page, "Name of the layout", "practical")
    await type_over(page, "GPUs", "0")
    await tab_to(page, "1g.5gb")
    await expect(page.get_by_text("GPU 1 stays partitioned on demand.")).to_be_visible()
    await type_over(page, "1g.5gb", "2")
    await tab_to(page, "3g.20gb")
    await page.keyboard.press("ArrowUp")
    await expect(page.locator("#text")).to_have_value(FILE)
    await expect(page.locator(".drawn .cell", has_text="3g.20gb")).to_be_visible()
    await expect(page.get_by_label("3g.20gb", exact=True)).to_be_focused()
    await expect(page.get_by_text("no named layout on GPU 0")).to_be_visible()
    await expect(page.locator("#preview")).to_contain_text("nobody")
    assert await problems(page, "serious", "critical") == []
    assert not any(gpu.layout for gpu in lab.pool.layouts.all().gpus)
    while await focused(page) != "Apply":
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("The layout is applied.")).to_be_visible()
    assert [gpu.layout for gpu in lab.pool.layouts.all().gpus] == ["practical", ""]
    await expect(page.get_by_text("practical on GPU 0")).to_be_visible()  # what the next replaces


async def test_what_cannot_lie_there_is_refused_at_once(lab: PageLab, page: Page) -> None:
    """With the server's reason, beside the fields, and there is nothing to apply."""
    await type_over(page, "4g.20gb", "1")
    reason = page.get_by_role("alert").filter(has_text="there is no place for 4x1g.5gb")
    await expect(reason).to_be_visible()
    await expect(page.get_by_role("button", name="Apply")).to_have_count(0)
    await type_over(page, "1g.5gb", "3")
    await expect(page.get_by_role("button", name="Apply")).to_be_visible()
    await expect(reason).to_have_count(0)


async def test_the_file_is_drawn_too(lab: PageLab, page: Page) -> None:
    """What is written there fills the fields; who is drained is named; what is no file is said."""
    await page.get_by_label("The same as a file").fill(FILE.replace("1g.5gb: 2", "2g.10gb: 2"))
    await expect(page.get_by_label("2g.10gb", exact=True)).to_have_value("2")
    await expect(page.get_by_label("GPUs", exact=True)).to_have_value("0")
    await expect(page.locator("#preview")).to_contain_text("alice, 1g.5gb on GPU 0")
    await expect(page.locator(".drawn")).to_contain_text("alice (Ml) holds 1g.5gb")
    await page.get_by_label("The same as a file").fill("version: v1\nmig-configs: {a: []}")
    await expect(page.get_by_role("alert").filter(has_text="layout:2")).to_be_visible()
    await expect(page.get_by_role("button", name="Apply")).to_have_count(0)


async def test_another_gpu_is_included_by_keyboard(lab: PageLab, page: Page) -> None:
    """A GPU that was left alone becomes a group of its own, and the keyboard goes there."""
    await type_over(page, "GPUs", "0")
    await page.keyboard.press("Tab")
    await page.get_by_role("button", name="Include GPU 1").focus()
    await page.keyboard.press("Enter")
    second = page.locator("#fields fieldset").nth(1)
    await expect(second.get_by_label("GPUs", exact=True)).to_be_focused()
    await expect(second).to_contain_text("GPU 1")
    await expect(page.locator("#text")).to_have_value(re.compile(r"devices: \[1\]"))

"""What the pool refuses unless it is told why can be done in the form that it refused."""

import datetime as dt
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect
from tests.unit.pool.applications.conftest import free_slice

from miglab_api.gpus import SliceState
from miglab_api.reservations import ReservationRequest
from miglab_pool.pool import Pool

from .served import MARKS, Open, PageLab, problems

pytestmark = MARKS
WHY = "Why it is done though a reservation loses slices"


def reserve_all_slices(pool: Pool) -> None:
    """Reserve the seven slices of the GPU for an hour of tomorrow."""
    tomorrow = dt.datetime.fromtimestamp(time.time() + 86400, dt.UTC).date()
    request = ReservationRequest(
        course="ml", shape="1g.5gb", count=7, date=tomorrow,
        from_time="10:00", to_time="11:00", tz="UTC",
    )  # fmt: skip
    pool.reservations.make(request, "person:root")


@pytest_asyncio.fixture(loop_scope="module")
async def lab(tmp_path: Path) -> AsyncIterator[PageLab]:
    """A free slice, and no reservation yet."""
    async with PageLab(tmp_path) as lab:
        lab.world.end(lab.world.run("carol", course="ml"))
        yield lab


@pytest.mark.parametrize("title", ["Quarantine", "Drain"])
async def test_an_action_is_done_in_the_form_that_was_refused(
    lab: PageLab, open_page: Open, title: str
) -> None:
    """The refusal names the reservation; the form then asks why, at the keyboard's place."""
    number = free_slice(lab.world)
    await lab.runner.decide(reserve_all_slices)
    page = await open_page()
    await page.locator(f'[data-details="slice/{number}"]').click()
    form = page.locator("details.action", has=page.locator("summary", has_text=title))
    await form.locator("summary").click()
    await expect(form.get_by_label(WHY)).to_be_hidden()
    await form.get_by_label("Reason").fill("dust")
    await form.locator("[type=submit]").click()
    await expect(form.get_by_role("alert")).to_contain_text("reservation 1 (7 times 1g.5gb for ml")
    await expect(form.get_by_label(WHY)).to_be_focused()
    assert await problems(page, "serious", "critical") == []
    await page.keyboard.type("it smells")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    row = lab.world.ledger.state.slices[number]
    assert row.state == SliceState.QUARANTINED or row.draining == "dust"
    step = lab.world.ledger.history("slice", str(number))[0]
    assert step["reason"] == "dust (anyway: it smells)"


async def test_a_layout_is_applied_in_the_form_that_was_refused(
    lab: PageLab, open_page: Open
) -> None:
    """Somebody reserves while the layout is looked at: then the form asks why, as if before."""
    page = await open_page("layouts")
    await page.get_by_label("The same as a file").fill(THREE_SLICES)
    await expect(page.locator("#preview")).to_contain_text("alice, 1g.5gb on GPU 0")
    why = page.get_by_label("Why it is applied though it takes slices from a reservation")
    await expect(why).to_be_hidden()
    await lab.runner.decide(reserve_all_slices)
    await page.get_by_role("button", name="Apply").click()
    await expect(why).to_be_focused()
    await page.keyboard.type("it smells")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("The layout is applied.")).to_be_visible()
    assert [gpu.layout for gpu in lab.pool.layouts.all().gpus] == ["thirds"]


THREE_SLICES = """\
version: v1
mig-configs:
  thirds: [{devices: all, mig-enabled: true, mig-devices: {2g.10gb: 3}}]
"""

"""A reservation made late, as its instructor and a student see it in a browser."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import go, looks_good, offer, said, sign_in

from miglab_bench.harness.temporary import TemporaryLab

from .conftest import Come

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_late_reservation(instructor: Page, page: Page, lab: TemporaryLab, come: Come) -> None:
    """The form says before it is saved how many are certain; the spawn page, until when."""
    come("ada", "3g.20gb").wait_until_ready()  # of another shape, so she draws on nothing
    go(instructor, "Reservations")
    instructor.get_by_role("button", name="Reserve…").click()
    now = dt.datetime.now(dt.UTC)
    zone = "UTC" if now.hour < 21 else "Etc/GMT-12"  # a class ends on its day
    begins = now.astimezone(ZoneInfo(zone)) + dt.timedelta(minutes=45)
    dialog = instructor.get_by_role("dialog")
    dialog.get_by_label("Time zone").fill(zone)
    dialog.get_by_label("From").fill(f"{begins:%H:%M}")
    dialog.get_by_label("To", exact=True).fill(f"{begins + dt.timedelta(hours=1):%H:%M}")
    dialog.get_by_label("First day").fill(f"{begins:%Y-%m-%d}")
    dialog.get_by_label("How many students").fill("7")
    dialog.get_by_label("Purpose").focus()
    certain = f"4 of 7 at {begins:%H:%M}"
    expect(dialog.get_by_role("status").filter(has_text=certain)).to_be_visible()
    looks_good(instructor, "reserve-late")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    said(instructor, "The slices are reserved.")
    expect(instructor.get_by_role("row", name="7 × 1g.5gb")).to_contain_text(certain)
    sign_in(page, lab, "bo")
    until = begins - dt.timedelta(minutes=2)
    card = page.locator("label", has=offer(page, "2x1g.5gb"))  # who holds 1g.5gb draws
    expect(card).to_contain_text(f"until {until:%a %H:%M}: reserved for")
    looks_good(page, "spawn-until-reserved")

"""A reservation made late, as its instructor and a student see it in a browser."""

import datetime as dt
from collections.abc import Callable
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import offer, picture, serious_problems, sign_in
from tests.browser.test_staff import go, said, signed_in

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab
from miglab_hub import lab_secrets

pytestmark = [pytest.mark.browser, pytest.mark.long]


def looks_good(page: Page, name: str) -> None:
    """A picture for the docs, and nothing serious for axe."""
    picture(page, name)
    assert serious_problems(page) == []


def test_a_late_reservation(new_page: Callable[[], Page], lab: TemporaryLab) -> None:
    """The form says before it is saved how many are certain; the spawn page, until when."""
    ada = Student(lab.settings.public_url, "ada", lab.password)
    ada.sign_in()
    ada.ask("3g.20gb")  # what is reserved she does not hold, so she draws on nothing
    wait_for(lambda: "ada" in lab.leases(), "ada's slice")
    ada.wait_until_ready()
    password = lab_secrets.read_passwords(lab.settings).instructor
    page = signed_in(new_page(), lab, "instructor", password)
    go(page, "Reservations")
    page.get_by_role("button", name="Reserve…").click()
    now = dt.datetime.now(dt.UTC)
    zone = "UTC" if now.hour < 21 else "Etc/GMT-12"  # a class ends on its day
    begins = now.astimezone(ZoneInfo(zone)) + dt.timedelta(minutes=45)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Time zone").fill(zone)
    dialog.get_by_label("From").fill(f"{begins:%H:%M}")
    dialog.get_by_label("To", exact=True).fill(f"{begins + dt.timedelta(hours=1):%H:%M}")
    dialog.get_by_label("First day").fill(f"{begins:%Y-%m-%d}")
    dialog.get_by_label("How many students").fill("7")
    dialog.get_by_label("Purpose").focus()
    certain = f"4 of 7 at {begins:%H:%M}"
    expect(dialog.get_by_role("status").filter(has_text=certain)).to_be_visible()
    looks_good(page, "reserve-late")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    said(page, "The slices are reserved.")
    expect(page.get_by_role("row", name="7 × 1g.5gb")).to_contain_text(certain)
    student = new_page()
    sign_in(student, lab, "bo")
    until = begins - dt.timedelta(minutes=2)
    card = student.locator("label", has=offer(student, "2x1g.5gb"))  # who holds 1g.5gb draws
    expect(card).to_contain_text(f"until {until:%a %H:%M}: reserved for")
    looks_good(student, "spawn-until-reserved")
    ada.leave()
    ada.close()

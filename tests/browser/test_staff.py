"""A class in a real browser, as its instructor and the site admin go through it.

Cut a layout, reserve, watch students come, write to one, read the log, drain, put somebody in
front, take a slice back, end the class: over a real hub, with every page's accessibility looked at
on the way.
"""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import go, looks_good, offer, said, sign_in

from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab

from .conftest import Come

pytestmark = [pytest.mark.browser, pytest.mark.long]

CLASS_DAY = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=3)


def take_action(page: Page, title: str, **fields: str) -> None:
    """In the open dialog: choose what to do, fill in, do it."""
    dialog = page.get_by_role("dialog")
    form = dialog.locator("details", has=page.locator("summary", has_text=title))
    if form.get_attribute("open") is None:
        form.locator("summary").click()
    for label, text in fields.items():
        field = form.get_by_label(label.replace("_", " "))
        if field.evaluate("item => item.tagName") == "SELECT":
            field.select_option(text)
        else:
            field.fill(text)
    form.locator("[type=submit]").click()


def test_a_class(admin: Page, instructor: Page, lab: TemporaryLab, come: Come) -> None:
    """From the layout before it to the last slice given back."""
    apply_a_layout(admin)
    reserve_change_and_cancel(instructor)
    go(instructor, "Pool")
    for name in ("ada", "bo"):
        come(name).wait_until_ready()
        expect(instructor.locator(".cell", has_text=name)).to_be_visible()
    looks_good(instructor, "pool-staff")
    write_to_ada(instructor, lab)
    drain_with_the_keyboard(admin)
    late = come("late")
    put_in_front(instructor, "late")
    end_draining(admin)
    late.wait_until_ready()
    two_at_once(instructor, admin, lab)
    end_the_class(instructor, lab)
    end_the_layout(admin)
    assert lab.broken_invariants() == []


def apply_a_layout(admin: Page) -> None:
    """What an example would change is shown, it is applied, and the GPU becomes so."""
    go(admin, "Layouts")
    admin.get_by_role("button", name="All small").click()
    expect(admin.get_by_text("7 to create")).to_be_visible()
    looks_good(admin, "layouts")
    admin.get_by_label("Reason").fill("practical 1")
    admin.get_by_role("button", name="Apply").click()
    said(admin, "The layout is applied.")
    expect(admin.get_by_text("Conforms").first).to_be_visible()


def reserve_change_and_cancel(instructor: Page) -> None:
    """One is made; one that clashes is refused, and says with what; it is changed, cancelled."""
    go(instructor, "Reservations")
    reserve(instructor, "5")
    said(instructor, "The slices are reserved.")
    expect(instructor.locator(".block", has_text="5 × 1g.5gb")).to_be_visible()  # in its week
    expect(instructor.get_by_role("row", name="5 × 1g.5gb")).to_be_visible()
    looks_good(instructor, "reservations")
    reserve(instructor, "4")
    expect(
        instructor.get_by_role("alert").filter(has_text="it clashes with reservation")
    ).to_be_visible()
    instructor.keyboard.press("Escape")
    expect(instructor.locator("tr.clash")).to_be_visible()
    instructor.get_by_role("row", name="5 × 1g.5gb").get_by_role("button").click()
    take_action(instructor, "Change", How_many_students="3")
    said(instructor, "The reservation is changed.")
    row = instructor.get_by_role("row", name="3 × 1g.5gb")
    row.get_by_role("button").click()
    take_action(instructor, "Cancel the reservation", Reason="the term is over")
    said(instructor, "The reservation is cancelled.")
    expect(row).to_have_count(0)


def reserve(page: Page, count: str) -> None:
    """Every week on the weekday that is three days ahead, so that nothing is kept for it today."""
    page.get_by_role("button", name="Reserve…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("How many students").fill(count)
    dialog.get_by_label(f"{CLASS_DAY:%a}").check()
    dialog.get_by_role("button", name="Reserve", exact=True).click()


def write_to_ada(instructor: Page, lab: TemporaryLab) -> None:
    """A message to one student, from her slice."""
    instructor.locator(".cell", has_text="ada").get_by_role("button").click()
    expect(instructor.get_by_role("dialog").get_by_text("Held by")).to_be_visible()
    looks_good(instructor, "slice-details")
    take_action(instructor, "Message", Message="Save your work: we stop at noon.")
    said(instructor, "The message is sent.")


def drain_with_the_keyboard(admin: Page) -> None:
    """Nothing but keys from the GPU's name to its draining."""
    go(admin, "Pool")
    admin.get_by_role("button", name="Manage GPU 0").focus()
    admin.keyboard.press("Enter")
    expect(admin.get_by_role("dialog").get_by_text("No new lease gets a slice")).to_be_visible()
    field = admin.get_by_role("dialog").get_by_label("Reason")
    while not field.evaluate("item => item === document.activeElement"):
        admin.keyboard.press("Tab")
    admin.keyboard.type("a new fan")
    admin.keyboard.press("Enter")
    said(admin, "GPU 0 is draining.")
    expect(admin.locator(".cell.s-draining").first).to_be_visible()


def put_in_front(instructor: Page, name: str) -> None:
    """Who waits is given the next slice."""
    instructor.get_by_role("region", name="Waiting").get_by_role("button", name=name).click()
    take_action(instructor, "Serve next", Reason="works on the thesis")
    said(instructor, f"{name} is next.")
    expect(instructor.get_by_text("served next")).to_be_visible()


def end_draining(admin: Page) -> None:
    """The GPU takes leases again."""
    admin.get_by_role("button", name="Manage GPU 0").click()
    take_action(admin, "End draining")
    said(admin, "GPU 0 takes new leases again.")


def two_at_once(instructor: Page, admin: Page, lab: TemporaryLab) -> None:
    """Both look at bo's slice and act on it: the first does it, the second is told who did what."""
    for page in (instructor, admin):
        page.locator(".cell", has_text="bo").get_by_role("button").click()
        expect(page.get_by_role("dialog").get_by_text("Reclaim", exact=True).first).to_be_visible()
    take_action(instructor, "Reclaim", When="900", Reason="others are waiting")
    said(instructor, "is being reclaimed from bo")
    take_action(admin, "Reclaim", When="0", Reason="it is late")
    refused = admin.get_by_role("alert").filter(has_text="instructor reclaimed it")
    expect(refused).to_be_visible()
    expect(refused).to_contain_text("others are waiting")
    admin.keyboard.press("Escape")
    assert lab.leases()["bo"].state == "warned"
    expect(instructor.locator(".cell.s-ending", has_text="bo")).to_be_visible()


def end_the_class(instructor: Page, lab: TemporaryLab) -> None:
    """Every lease is taken back at once; the servers stop, the slices are free."""
    for name in sorted(lab.leases()):
        instructor.locator(".cell", has_text=name).get_by_role("button").click()
        take_action(instructor, "Reclaim", When="0", Reason="the class is over")
        said(instructor, f"is being reclaimed from {name}")
    wait_for(lambda: not lab.leases(), "all slices to be given back")
    expect(instructor.locator(".cell.s-free")).to_have_count(7)


def end_the_layout(admin: Page) -> None:
    """From then on the GPU is cut on demand."""
    go(admin, "Layouts")
    admin.get_by_role("button", name="On demand").click()
    expect(admin.get_by_text("all-1g.5gb on GPU 0")).to_be_visible()  # what it replaces
    admin.get_by_role("button", name="Apply").click()
    said(admin, "The layout is applied.")
    expect(admin.get_by_text("every GPU is partitioned on demand")).to_be_visible()


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

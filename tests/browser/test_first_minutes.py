"""The first minutes of a new student and of a new instructor, by the keyboard and on a phone.

Nothing here asserts a time; `pytest -rP` prints how long each walk took.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect
from tests.browser.conftest import PATIENCE_MS
from tests.browser.people import looks_good, offer

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub import lab_secrets

pytestmark = [pytest.mark.browser, pytest.mark.long]

VISION = """
[courses.vision]
title = "Computer vision"
members = ["ada", "bo"]
shapes = ["1g.5gb", "3g.20gb", "cpu"]
lends = ["1g.5gb"]
instructors = ["ina"]
"""
PAGES = {  # of the instructor, and what each says while the lab is new
    "Reservations": "No reservations yet",
    "Layouts": "No layouts yet",
    "Usage": "",
    "Health": "",
    "Log": "",
}
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    with temporary_lab(docker=False, more=VISION) as running:
        yield running


@pytest.fixture
def phone(chromium: Browser) -> Iterator[Page]:
    expect.set_options(timeout=PATIENCE_MS)
    context = chromium.new_context(viewport=PHONE, is_mobile=True, has_touch=True)
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@contextmanager
def timed(walk: str) -> Iterator[None]:
    started_at = time.monotonic()
    yield
    print(f"{walk}: {time.monotonic() - started_at:.1f} s")


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the element has the focus, as somebody without a mouse does."""
    expect(target).to_be_visible()
    for _ in range(100):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"a hundred Tabs do not reach {target}")


def press(page: Page, target: Locator) -> None:
    tab_to(page, target)
    page.keyboard.press("Enter")


def choose(page: Page, radio: Locator) -> None:
    """Tab reaches the chosen one of a group, and the arrows choose among them."""
    tab_to(page, page.locator("input[name=shape]:checked"))
    while not radio.is_checked():
        page.keyboard.press("ArrowDown")
    expect(radio).to_be_focused()


def sign_in_by_keys(page: Page, lab: TemporaryLab, name: str, password: str) -> None:
    page.goto(lab.settings.public_url)
    looks_good(page, "first-login")
    tab_to(page, page.get_by_label("Username"))
    page.keyboard.type(name)
    tab_to(page, page.get_by_label("Password"))
    page.keyboard.type(password)
    page.keyboard.press("Enter")


def test_a_new_student_by_the_keyboard(page: Page, lab: TemporaryLab) -> None:
    """From the login form to a notebook on a slice."""
    with timed("a new student, to the notebook"):
        sign_in_by_keys(page, lab, "ada", lab.password)
        expect(page.get_by_role("heading", name="Computer vision")).to_be_visible()
        looks_good(page, "first-spawn")
        choose(page, offer(page, "1g.5gb"))
        press(page, page.get_by_role("button", name="Start"))
        page.wait_for_url("**/user/ada/lab**")
        start = page.get_by_role("tabpanel", name="Computer vision")
        expect(start.get_by_text("You hold 1g.5gb")).to_be_visible()
        expect(start.get_by_text("measure on a borrowed slice")).to_be_hidden()
        press(page, start.get_by_role("button", name="1. Your slice"))
        expect(page.get_by_role("heading", name="1. Your slice")).to_be_visible()


def test_a_new_student_on_a_phone(phone: Page, lab: TemporaryLab) -> None:
    """Every page fits; a server that borrows says on its start page how that works."""
    with timed("a new student on a phone"):
        phone.goto(lab.settings.public_url)
        looks_good(phone, "phone-login")
        phone.get_by_label("Username").fill("bo")
        phone.get_by_label("Password").fill(lab.password)
        phone.get_by_role("button", name="Sign in").tap()
        phone.get_by_role("radio", name="Borrow").check()
        looks_good(phone, "phone-spawn")
        phone.get_by_role("button", name="Start").tap()
        phone.wait_for_url("**/user/bo/lab**")
        start = phone.get_by_role("tabpanel", name="Computer vision")
        expect(start.get_by_text("It borrows one whenever you measure")).to_be_visible()
        expect(start.get_by_text("measure on a borrowed slice")).to_be_visible()
        expect(phone.locator(".miglab-status")).to_have_text("no slice held")
        looks_good(phone, "phone-start", ".miglab-start")


def test_a_new_instructor(page: Page, phone: Page, lab: TemporaryLab) -> None:
    """She lands on the pool's page, and each page says what will be there; by keys, on a phone."""
    password = lab_secrets.read_passwords(lab.settings).instructor
    page.goto(lab.settings.public_url)
    notices = page.get_by_role("list", name="About this lab").get_by_role("listitem")
    expect(notices).to_have_text(["simulated GPUs", "no isolation: trial only"])
    with timed("a new instructor, through every page"):
        sign_in_by_keys(page, lab, "ina", password)
        page.wait_for_url("**/services/pool/")
        expect(notices).to_have_text(["simulated GPUs", "no isolation: trial only"])
        looks_good(page, "first-pool")
        for name, text in PAGES.items():
            visit(page, name, text)
            looks_good(page, f"first-{name.lower()}")
        visit(page, "Reservations", "")
        press(page, page.get_by_role("button", name="Reserve…"))
        expect(page.get_by_role("dialog")).to_be_visible()
        looks_good(page, "first-reserve")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Reserve…")).to_be_focused()
    phone.context.add_cookies(page.context.cookies())  # type: ignore[arg-type]  # same shape
    for name in ("", *(name.lower() for name in PAGES)):
        phone.goto(f"{lab.settings.public_url}services/pool/{name}")
        looks_good(phone, f"phone-{name or 'pool'}")


def visit(page: Page, name: str, text: str) -> None:
    navigation = page.get_by_role("navigation", name="Pages of the lab")
    press(page, navigation.get_by_role("link", name=name))
    expect(navigation.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    page.wait_for_load_state("load")
    if text:
        expect(page.get_by_text(text)).to_be_visible()

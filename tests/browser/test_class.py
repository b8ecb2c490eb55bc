"""A class as its instructor sees it, and what a student knows of that: one browser each."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect
from tests.browser.conftest import Come
from tests.browser.people import (
    go,
    looks_good,
    picture,
    said,
    serious_problems,
    sign_in,
    start,
)

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

pytestmark = [pytest.mark.browser, pytest.mark.long]

COURSE = """
[courses.vision]
title = "Computer vision"
shapes = ["1g.5gb", "cpu"]
default = "cpu"
members = ["vi", "wim"]
shares_progress = true
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """A lab with a course that shares progress."""
    with temporary_lab(docker=False, more=COURSE, testing="reclaim.report_s = 2") as running:
        yield running


def choose_course(page: Page, title: str) -> None:
    """Choose a course and be on the page that the choice leads to, not still on the one before."""
    with page.expect_navigation():
        page.get_by_label("Course").select_option(title)


def test_a_student_is_seen_once_the_notice_is_read(
    instructor: Page, page: Page, lab: TemporaryLab
) -> None:
    """Not known, then on CPU; a message to the selected arrives; students see their own row."""
    vi = page
    go(instructor, "Class")
    choose_course(instructor, "Computer vision")
    row = instructor.get_by_role("row").filter(has_text="vi")
    expect(instructor.get_by_role("row").filter(has_text="wim")).to_contain_text("not known")
    sign_in(vi, lab, "vi")
    start(vi, "cpu")
    notice = vi.get_by_role("button", name="I have read this")
    expect(notice).to_be_visible()
    expect(row).to_contain_text("not known")
    notice.click()
    expect(notice).to_be_hidden()
    expect(row).to_contain_text("on CPU")
    instructor.get_by_label("Select vi").check()
    instructor.get_by_role("textbox", name="Message").fill("Room 2 from eleven on.")
    expect(instructor.get_by_text("1 of 1 have a server now")).to_be_visible()
    picture(instructor, "class-page")
    assert serious_problems(instructor) == []
    instructor.get_by_role("button", name="Send to the 1 selected").click()
    said(instructor, "Message sent: 1 of ")
    expect(vi.get_by_text("Room 2 from eleven on.").first).to_be_visible()
    go(instructor, "Log")
    expect(instructor.get_by_text("looked at it").first).to_be_visible()
    vi.goto(f"{lab.settings.public_url}services/pool/class")
    expect(vi.get_by_role("row").filter(has_text="vi")).to_contain_text("on CPU")
    expect(vi.get_by_text("wim")).to_have_count(0)
    assert serious_problems(vi) == []


def test_the_class_is_sorted_filtered_and_selected_by_keyboard(
    instructor: Page, page: Page, come: Come, lab: TemporaryLab
) -> None:
    """Without a group: whoever is in no course; the hub says who, and the count is what is sent.

    Sorting, filters and selection outlast what the page fetches anew; a row opens the forms of the
    pool's page; a projector is shown no name.
    """
    come("zoe").wait_until_ready()
    for name in ("ada", "bea"):
        sign_in(page, lab, name)
        page.context.clear_cookies()
    go(instructor, "Class")
    choose_course(instructor, "Open lab")
    rows = instructor.locator("#class-rows tbody tr:visible th")
    expect(rows).to_have_text(["ada", "bea", "zoe"])
    instructor.get_by_role("button", name="Student", exact=True).press("Enter")
    expect(rows).to_have_text(["zoe", "bea", "ada"])
    instructor.get_by_label("Select bea").press("Shift+ArrowDown")
    expect(instructor.get_by_label("Select ada")).to_be_focused()
    instructor.get_by_label("Select ada").press("Space")
    instructor.get_by_label("Select ada").press("Shift+ArrowUp")
    expect(instructor.get_by_role("button", name="Send to the 2 selected")).to_be_visible()
    instructor.get_by_role("button", name="1 on a slice").press("Enter")
    expect(rows).to_have_text(["zoe"])
    expect(instructor.get_by_text("2 of those selected are not shown now")).to_be_visible()
    with instructor.expect_response(re.compile(r"/class\?")):
        pass  # fetched anew
    expect(rows).to_have_text(["zoe"])
    expect(instructor.get_by_role("button", name="Send to the 2 selected")).to_be_visible()
    instructor.get_by_role("button", name="zoe").press("Enter")
    expect(instructor.get_by_role("dialog").get_by_text("Give more time").first).to_be_visible()
    instructor.keyboard.press("Escape")
    looks_good(instructor, "class-filtered")
    instructor.get_by_role("button", name="Clear selection").click()
    expect(instructor.get_by_role("button", name="Send to all 3")).to_be_enabled()
    instructor.get_by_role("link", name="Without names").click()
    expect(instructor.get_by_text("zoe")).to_have_count(0)
    expect(instructor.locator(".projected")).to_contain_text("on a slice")
    looks_good(instructor, "class-projected")


class FakeClassAnswers:
    """Answers the page's own refreshes without some rows and filters, as the pool later would."""

    def __init__(self, page: Page) -> None:
        self.gone: set[str] = set()
        page.route(re.compile(r"/class\?"), self._answer)

    def _answer(self, route: Route) -> None:
        text = route.fetch().text()
        for user in self.gone:
            text = re.sub(rf'<tr data-user="{user}".*?</tr>', "", text, flags=re.DOTALL)
        if "data-user=" not in text:
            emptied = '<div class="part" id="part-class"><p>Nobody is in this course yet.</p></div>'
            text = re.sub(
                r'<div class="part" id="part-class">.*?(?=<section)', emptied, text, flags=re.DOTALL
            )
        if "wim" in self.gone:  # the last of whom nothing is known
            text = re.sub(r'<button[^>]*data-only="not known".*?</button>', "", text)
        route.fulfill(body=text, content_type="text/html")


def test_a_message_to_the_selected_never_goes_to_all(instructor: Page) -> None:
    """The selected leave the page: Send is off until the selection is cleared.

    A filter goes with its figure; the last row's leaving stops nothing.
    """
    go(instructor, "Class")
    choose_course(instructor, "Computer vision")
    rows = instructor.locator("#class-rows tbody tr:visible th")
    expect(rows).to_have_text(["vi", "wim"])
    answers = FakeClassAnswers(instructor)
    instructor.get_by_label("Select wim").check()
    instructor.get_by_role("button", name=re.compile(r"\d not known")).click()
    expect(instructor.get_by_role("button", name="Send to the 1 selected")).to_be_enabled()
    answers.gone = {"wim"}
    expect(instructor.get_by_role("button", name="Send to the 0 selected")).to_be_disabled()
    expect(instructor.get_by_text("no longer in this class: 1")).to_be_visible()
    expect(rows).to_have_text(["vi"])
    expect(instructor.get_by_role("button", name="1 not known")).to_have_count(0)
    expect(instructor.locator("#only-all")).to_have_attribute("aria-pressed", "true")
    instructor.get_by_role("button", name="Clear selection").click()
    expect(instructor.get_by_role("button", name="Send to all 1")).to_be_enabled()
    expect(instructor.get_by_role("button", name="Clear selection")).to_be_hidden()
    answers.gone = {"vi", "wim"}
    expect(instructor.get_by_text("Nobody is in this course yet.")).to_be_visible()
    expect(instructor.get_by_role("button", name="Send to all 0")).to_be_disabled()
    answers.gone = set()
    expect(rows).to_have_text(["vi", "wim"])
    expect(instructor.get_by_role("button", name="Send to all 2")).to_be_enabled()
    instructor.unroute_all(behavior="ignoreErrors")

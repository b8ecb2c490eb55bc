"""A class as its instructor sees it, and what a student knows of that: one browser each."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import go, picture, said, serious_problems, sign_in, start

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


def test_a_student_is_seen_once_the_notice_is_read(
    instructor: Page, page: Page, lab: TemporaryLab
) -> None:
    """Not known, then on CPU; a message to the selected arrives; students see their own row."""
    vi = page
    go(instructor, "Class")
    instructor.get_by_label("Course").select_option("Computer vision")
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

"""Asked whether one still waits, on the waiting page and in JupyterLab; aside, and back."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import serious_problems, sign_in, start

from miglab_bench.harness.student import Student
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

pytestmark = [pytest.mark.browser, pytest.mark.long]

SHAPES = ("7g.40gb", "3g.20gb", "cpu")
WAITING = "longest_wait_s = 10\nageing_s = 5\noffer_s = 5"
TESTING = "reclaim.report_s = 2"


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """One A100, on which one is asked soon, and an offer is short."""
    with temporary_lab(docker=False, shapes=SHAPES, pool=WAITING, testing=TESTING) as running:
        yield running


def test_asked_aside_and_back(page: Page, lab: TemporaryLab, classmate: Student) -> None:
    """An answer keeps the place; a missed offer is no loss of it, and one click returns."""
    sign_in(page, lab, "ada")
    start(page, "7g.40gb")
    question = page.get_by_role("heading", name="Are you still waiting for 7g.40gb?")
    expect(question).to_be_visible()
    expect(page).to_have_title(re.compile("^Are you still waiting?"))
    assert serious_problems(page) == []
    ticket = lab.tickets()["ada"].id
    page.get_by_role("button", name="Yes, keep my position").click()
    expect(question).to_be_hidden()
    assert lab.tickets()["ada"].id == ticket

    page.get_by_role("button", name="Start on CPU now").click()
    page.wait_for_url("**/user/ada/lab**", wait_until="commit")
    asks = page.get_by_role("region", name="Are you still waiting for 7g.40gb?")
    expect(asks).to_be_visible()
    classmate.leave()
    aside = page.get_by_role("region", name="You have stepped aside")
    expect(aside).to_contain_text("Your position is kept for 12 hours")
    assert serious_problems(page, ".miglab-cards") == []
    aside.get_by_role("button", name="Return to the queue").click()
    expect(page.get_by_role("region", name="7g.40gb is ready for you")).to_be_visible()

"""A student in a real browser: log in, choose, wait, work on a slice, give it back."""

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import (
    offer,
    picture,
    press_stop,
    serious_problems,
    sign_in,
    start,
    wait_for_kernel,
)

from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab

from .conftest import Come

pytestmark = pytest.mark.browser


def test_the_notebook_prints_the_slice_the_ledger_leased(page: Page, lab: TemporaryLab):
    """Choose 1g.5gb, open 1_your_slice from the start page: its UUID is the ledger's."""
    sign_in(page, lab, "ada")
    assert serious_problems(page) == []
    picture(page, "spawn-page")
    start(page, "1g.5gb")
    page.wait_for_url("**/user/ada/lab**")
    opened = page.get_by_role("tabpanel", name="Open lab")
    expect(opened.get_by_text("You hold 1g.5gb. Guaranteed until")).to_be_visible()
    expect(opened.get_by_role("listitem")).to_have_count(11)
    expect(page.get_by_text("Launcher")).to_have_count(0)
    assert serious_problems(page, ".miglab-start") == []
    picture(page, "start-page")
    opened.get_by_role("button", name="1. Your slice").press("Enter")
    page.get_by_role("heading", name="1. Your slice").click()  # the notebook is open
    wait_for_kernel(page)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("[data-command='runmenu:run-all']").click()
    printed = page.locator(".jp-OutputArea-output")
    expect(printed.filter(has_text=lab.leases()["ada"].uuids[0]).first).to_be_visible()
    expect(printed.filter(has_text="measured on this server's CPU")).to_be_visible()
    expect(page.get_by_text("official Jupyter news")).to_have_count(0)
    expect(page.locator(".miglab-status")).to_contain_text("1g.5gb")
    picture(page, "your-slice")

    press_stop(page, lab)
    wait_for(lambda: not lab.leases(), "the slice to be given back")


@pytest.mark.long
def test_who_comes_too_late_sees_the_position_and_is_served(
    page: Page, lab: TemporaryLab, come: Come
):
    """With the GPU full each way leads to the position; when somebody leaves, JupyterLab opens.

    In both tabs: a sign-in of each at the same time would have JupyterHub refuse one.
    """
    early = [come(f"early{number}") for number in range(7)]
    for student in early:
        student.wait_until_ready()
    sign_in(page, lab, "late")
    second = page.context.new_page()
    second.goto(f"{lab.settings.public_url}hub/spawn")
    expect(offer(page, "1g.5gb")).to_be_visible()
    start(page, "1g.5gb")
    position = page.get_by_role("heading", name="1st of 1")
    expect(position).to_be_visible()
    page.goto(
        f"{lab.settings.public_url}hub/home"
    )  # "My server": no bare button that ends the wait
    expect(position).to_be_visible()
    start(second, "1g.5gb")  # of a form that was opened before
    second.get_by_role("link", name="Go to its page").click()
    expect(second.get_by_role("heading", name="1st of 1")).to_be_visible()
    sign_ins: list[str] = []
    page.context.on(
        "request",
        lambda request: sign_ins.append(request.url) if "/oauth_callback" in request.url else None,
    )
    early[0].leave()
    page.wait_for_url("**/user/late/lab**")
    second.wait_for_url("**/user/late/lab**")
    assert len(sign_ins) == 1
    assert lab.positions() == {}
    press_stop(page, lab)


@pytest.mark.long
def test_a_server_stopped_by_hand_is_asked_about(page: Page, lab: TemporaryLab):
    """No card knows why it is gone, so JupyterLab asks its usual question."""
    sign_in(page, lab, "dora")
    start(page, "1g.5gb")
    page.wait_for_url("**/user/dora/lab**")
    expect(page.locator(".jp-DirListing-item").first).to_be_visible()
    other = page.context.new_page()
    press_stop(other, lab)
    question = page.get_by_role("dialog", name="Server unavailable or unreachable")
    expect(question).to_contain_text("Your server at /user/dora/ is not running.")
    with page.expect_popup() as restarted:
        question.get_by_role("button", name="Restart").click()
    expect(restarted.value.get_by_role("heading", name="Open lab")).to_be_visible()
    wait_for(lambda: not lab.leases(), "the slice to be given back")


def test_the_pool_page_is_live(page: Page, lab: TemporaryLab, come: Come):
    """A slice that somebody gets appears on an open pool page without a reload, without a name."""
    sign_in(page, lab, "watcher")
    page.goto(f"{lab.settings.public_url}services/pool/")
    expect(page.get_by_text("The queue is empty.")).to_be_visible()
    expect(page.locator(".cell", has_text="somebody")).to_have_count(0)
    come("bo")
    expect(page.locator(".cell", has_text="somebody")).to_have_count(1)
    assert "bo" not in page.locator("main").inner_text().split()
    assert serious_problems(page) == []
    picture(page, "pool-page")

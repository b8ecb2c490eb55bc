"""A student in a real browser: log in, choose, wait, work on a slice, give it back."""

from collections.abc import Callable, Iterator

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

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab

pytestmark = pytest.mark.browser

POOL_PAGE = "services/pool/"


@pytest.fixture
def classmate(lab: TemporaryLab) -> Iterator[Callable[[str], Student]]:
    """Make a student who holds a 1g.5gb and works elsewhere; gone after the test."""
    made: list[Student] = []

    def come(name: str) -> Student:
        student = Student(lab.settings.public_url, name, lab.password)
        made.append(student)
        student.sign_in()
        student.ask("1g.5gb")
        student.wait_until_ready()
        return student

    yield come
    for student in made:
        student.leave()
        student.close()
    wait_for(lambda: not lab.leases(), "the slices to be given back")


def test_the_notebook_prints_the_slice_the_ledger_leased(page: Page, lab: TemporaryLab):
    """Choose 1g.5gb, open 1_your_slice from the start page: its UUID is the ledger's."""
    sign_in(page, lab, "ada")
    picture(page, "spawn-page")
    start(page, "1g.5gb")
    page.wait_for_url("**/user/ada/lab**")
    opened = page.get_by_role("tabpanel", name="Open lab")
    expect(opened.get_by_text("You hold 1g.5gb: guaranteed until")).to_be_visible()
    expect(opened.get_by_role("listitem")).to_have_count(8)
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
    expect(page.locator(".miglab-status")).to_contain_text("1g.5gb · ")
    picture(page, "your-slice")

    page.goto(f"{lab.settings.public_url}{POOL_PAGE}")
    page.get_by_role("button", name="Extend or release your 1g.5gb").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("group").filter(has_text="Release").locator("summary").click()
    dialog.get_by_role("button", name="Release", exact=True).click()
    expect(page.get_by_text("no slice").first).to_be_visible()
    wait_for(lambda: not lab.leases(), "the slice to be given back")


@pytest.mark.long
def test_who_comes_too_late_sees_the_position_and_is_served(
    page: Page, lab: TemporaryLab, classmate: Callable[[str], Student]
):
    """With the GPU full each way leads to the position; when somebody leaves, JupyterLab opens."""
    early = [classmate(f"early{number}") for number in range(7)]
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
    early[0].leave()
    page.wait_for_url("**/user/late/lab**")
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


def test_the_pool_page_is_live(page: Page, lab: TemporaryLab, classmate: Callable[[str], Student]):
    """A slice that somebody gets appears on an open pool page without a reload, without a name."""
    sign_in(page, lab, "watcher")
    page.goto(f"{lab.settings.public_url}{POOL_PAGE}")
    expect(page.get_by_text("The queue is empty.")).to_be_visible()
    expect(page.locator(".cell", has_text="somebody")).to_have_count(0)
    classmate("bo")
    expect(page.locator(".cell", has_text="somebody")).to_have_count(1)
    assert "bo" not in page.locator("main").inner_text().split()
    picture(page, "pool-page")


def test_the_keyboard_alone_gets_a_server(page: Page, lab: TemporaryLab):
    """Nothing but keys from the login form to JupyterLab."""
    page.goto(lab.settings.public_url)
    page.get_by_label("Username").focus()
    page.keyboard.type("keys")
    page.keyboard.press("Tab")
    page.keyboard.type(lab.password)
    page.keyboard.press("Enter")
    page.wait_for_url("**/hub/spawn**")
    tab_to(page, "input[name=shape]")
    page.keyboard.press("ArrowDown")
    tab_to(page, "[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/user/keys/lab**")
    assert lab.leases()["keys"].shape == "2x1g.5gb"  # the one below the default
    press_stop(page, lab)


@pytest.mark.parametrize("path", ["hub/spawn", POOL_PAGE])
def test_axe_finds_nothing_serious(page: Page, lab: TemporaryLab, path: str):
    """Our own pages stand an accessibility check."""
    sign_in(page, lab, "axe")
    page.goto(f"{lab.settings.public_url}{path}")
    page.get_by_role("heading").first.wait_for()
    assert serious_problems(page) == []


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the element has the focus.

    Raises:
        AssertionError: it cannot be reached.
    """
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("s => document.activeElement.matches(s)", selector):
            return
    raise AssertionError(f"{selector} cannot be reached by Tab")

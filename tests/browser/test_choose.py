"""From a running server without a GPU to a slice, without leaving JupyterLab."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, Response, Route, expect
from tests.browser.people import (
    card,
    picture,
    press_stop,
    serious_problems,
    sign_in,
    start,
    status,
    wait_for_kernel,
)

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

pytestmark = [pytest.mark.browser, pytest.mark.long]

TYPED = "typed and never saved by hand"
CELL = 15
SAVE_AND_RESTART = "Save all and restart with it"


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """One A100; an offer is held for as long as the test needs."""
    with temporary_lab(
        docker=False,
        shapes=("7g.40gb", "3g.20gb", "1g.5gb", "cpu"),
        pool="offer_s = 600",
        testing="reclaim.report_s = 2",
    ) as running:
        yield running


def write_notebook(lab: TemporaryLab, name: str) -> Path:
    """Write a notebook of thirty cells into a student's home; the page shows a few of them."""
    folder: Path = lab.settings.homes / folder_name(name)
    folder.mkdir(mode=0o700, parents=True)
    cells = [
        nbformat.v4.new_code_cell(f"print({number})", id=f"cell-{number}") for number in range(30)
    ]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, folder / "lesson.ipynb")
    return folder / "lesson.ipynb"


def start_on_cpu(page: Page, lab: TemporaryLab, name: str) -> None:
    """Sign in, and start a server without a GPU."""
    sign_in(page, lab, name)
    start(page, "cpu")
    page.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
    expect(status(page)).to_have_text("No GPU · choose a slice…")


def type_into_cell(page: Page, lab: TemporaryLab, name: str) -> Locator:
    """Walk down the notebook by the keyboard, and type into a cell; returns that cell."""
    page.goto(f"{lab.settings.public_url}user/{name}/lab/tree/lesson.ipynb")
    wait_for_kernel(page)
    page.locator(".jp-Notebook .jp-Cell").first.click()
    page.keyboard.press("Escape")
    for _ in range(CELL):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+End")
    page.keyboard.type(f"  # {TYPED}")
    cell = page.locator(".jp-Notebook .jp-Cell", has_text=TYPED)
    expect(cell).to_be_in_viewport()
    return cell


def stop(lab: TemporaryLab, page: Page) -> None:
    """Stop the server, and wait until nothing is leased to it."""
    press_stop(page, lab)
    expect(page.get_by_role("button", name="Stop My Server")).to_be_hidden()


def choices(page: Page) -> Locator:
    """The dialog."""
    return page.get_by_role("dialog").filter(has_text="Choose a GPU slice")


def shape_row(page: Page, shape: str) -> Locator:
    """A shape in the dialog."""
    return choices(page).get_by_role("listitem").filter(has_text=shape)


CHOOSE = re.compile("/miglab/api/choose")  # a time stamp follows


def look_away(page: Page) -> None:
    """Make the page believe that its tab is in the background, which Chromium here never says."""
    page.evaluate("Object.defineProperty(document, 'hidden', {configurable: true, value: true})")


def look_back(page: Page) -> None:
    """Undo `look_away`."""
    page.evaluate("delete document.hidden")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def expect_same_cell(page: Page, cell: Locator, notebook: Path) -> None:
    """What was typed was saved, and the page shows the same cell again."""
    expect(cell).to_be_in_viewport()
    expect(cell).to_have_class(re.compile("jp-mod-active"))
    assert TYPED in notebook.read_text()


def test_from_cpu_into_the_queue_to_the_slice_and_the_same_cell(
    page: Page, lab: TemporaryLab, classmate: Student
):
    """Choose, work on while waiting, be offered, take: the same cell, and everything is saved."""
    notebook = write_notebook(lab, "ada")
    start_on_cpu(page, lab, "ada")
    cell = type_into_cell(page, lab, "ada")
    status(page).click()
    row = shape_row(page, "7g.40gb")
    expect(row).to_contain_text("0 of 1 free")
    picture(page, "jupyterlab-choose")
    assert serious_problems(page, ".miglab-choices") == []
    row.get_by_role("button", name="Join the queue as 1st").click()
    expect(choices(page)).to_have_count(0)
    expect(status(page)).to_have_text(re.compile("^1st in line"))
    assert "ada" not in lab.leases()
    page.keyboard.type(" and on")

    look_away(page)
    classmate.leave()
    expect(page).to_have_title("(!) Your GPU slice is ready.")
    expect(card(page, "7g.40gb is ready for you")).to_be_visible()
    look_back(page)
    expect(page).not_to_have_title(re.compile("ready"))
    card(page, "is ready").get_by_role("button", name=SAVE_AND_RESTART).click()
    expect(status(page)).to_have_text(re.compile(r"^7g\.40gb.* of .* GiB$"))
    expect_same_cell(page, cell, notebook)
    assert lab.leases()["ada"].shape == "7g.40gb"
    assert lab.broken_invariants() == []
    stop(lab, page)


def test_a_free_slice_takes_two_clicks_also_after_a_release(page: Page, lab: TemporaryLab):
    """Status bar, shape: the slice; released to go on without a GPU, another one as well."""
    notebook = write_notebook(lab, "bea")
    start_on_cpu(page, lab, "bea")
    cell = type_into_cell(page, lab, "bea")
    take_free(page, "1g.5gb")
    expect_same_cell(page, cell, notebook)
    status(page).click()
    panel = page.get_by_role("region", name="GPU slice", exact=True)
    panel.get_by_role("button", name="Release, and go on without a GPU…").click()
    page.get_by_role("button", name="Save all and restart", exact=True).click()
    expect(status(page)).to_have_text("No GPU · choose a slice…")
    wait_for_kernel(page)
    take_free(page, "3g.20gb")
    expect_same_cell(page, cell, notebook)
    assert lab.leases()["bea"].shape == "3g.20gb"
    assert lab.broken_invariants() == []
    stop(lab, page)


def take_free(page: Page, shape: str) -> None:
    """Take a free slice in two clicks."""
    started_at = time.monotonic()
    status(page).click()
    shape_row(page, shape).get_by_role("button", name=SAVE_AND_RESTART).click()
    expect(status(page)).to_have_text(re.compile(rf"^{re.escape(shape)}.* of .* GiB$"))
    wait_for_kernel(page)
    print(f"CPU to {shape}: 2 clicks, {time.monotonic() - started_at:.1f} s to a kernel")


def test_who_closes_the_dialog_meanwhile_goes_on_without_a_gpu(page: Page, lab: TemporaryLab):
    """The slice that is being made goes back, and nothing restarts."""
    start_on_cpu(page, lab, "flo")
    page.evaluate("window.isSamePage = true")
    held: list[Route] = []
    page.route(CHOOSE, lambda route: held.append(route))
    status(page).click()
    with page.expect_request(CHOOSE):
        shape_row(page, "1g.5gb").get_by_role("button", name=SAVE_AND_RESTART).click()
    choices(page).get_by_role("button", name="Go on without a GPU").click()
    expect(choices(page)).to_have_count(0)
    with page.expect_response(re.compile("/miglab/api/cancel")) as cancelled:
        held[0].continue_()
    assert cancelled.value.ok
    expect(status(page)).to_have_text("No GPU · choose a slice…")
    wait_for(lambda: not lab.leases() and not lab.tickets(), "the slice to go back")
    assert page.evaluate("window.isSamePage")
    stop(lab, page)


def test_a_slice_that_has_gone_meanwhile_is_refused_and_waited_for(
    page: Page, lab: TemporaryLab, come: Callable[..., Student]
):
    """The pool says so, nothing restarts, and the row then leads into the queue."""
    write_notebook(lab, "cleo")
    start_on_cpu(page, lab, "cleo")
    status(page).click()
    row = shape_row(page, "7g.40gb")
    expect(row).to_contain_text("1 of 1 free")
    come("dan", "3g.20gb").wait_until_ready()
    row.get_by_role("button", name=SAVE_AND_RESTART).click()
    expect(choices(page).get_by_role("alert")).to_contain_text("7g.40gb is not free now")
    row.get_by_role("button", name="Join the queue as 1st").click()
    expect(status(page)).to_have_text(re.compile("^1st in line"))
    status(page).click()
    page.get_by_role("button", name="Leave the queue").click()
    expect(status(page)).to_have_text("No GPU · choose a slice…")
    assert lab.positions() == {}
    stop(lab, page)


def refused(response: Response) -> bool:
    """Whether JupyterLab was refused what it wanted of a file."""
    return response.status == 403 and "/api/contents" in response.url


def test_signed_out_is_said_with_a_way_back(page: Page, lab: TemporaryLab):
    """A sentence and a link, and no dialog; what was to be saved is saved after signing in."""
    notebook = write_notebook(lab, "eli")
    start_on_cpu(page, lab, "eli")
    type_into_cell(page, lab, "eli")
    elsewhere = page.context.new_page()
    elsewhere.goto(f"{lab.settings.public_url}hub/logout")
    notice = page.get_by_role("status").filter(has_text="You are signed out")
    expect(notice).to_contain_text("Nothing can be saved until you sign in")
    assert serious_problems(page, ".miglab-offline") == []
    with page.expect_response(refused):
        page.keyboard.press("Control+s")
    page.get_by_role("button", name="Refresh the file browser.").click()
    with page.expect_popup() as popup:
        notice.get_by_role("link", name="Sign in, in a new tab").click()
    tab = popup.value
    tab.get_by_label("Username").fill("eli")
    tab.get_by_label("Password").fill(lab.password)
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_url("**/user/eli/lab/**lesson.ipynb**")
    expect(notice).to_be_hidden()
    wait_for(lambda: TYPED in notebook.read_text(), "the notebook to be saved")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    page.context.clear_cookies()
    browser = page.context.new_cdp_session(page)
    browser.send("Emulation.setDocumentCookieDisabled", {"disabled": True})
    blocked = page.get_by_role("status").filter(has_text="This browser keeps no cookies")
    expect(blocked).to_be_visible()  # and no way to a sign-in that cannot succeed
    expect(blocked.get_by_role("link")).to_be_hidden()
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    browser.send("Emulation.setDocumentCookieDisabled", {"disabled": False})
    browser.detach()

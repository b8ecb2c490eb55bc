"""From the queue to the slice by way of a server without a GPU, in a real JupyterLab.

The lab is the whole one; students' servers report every two seconds.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect
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

from miglab_api.tickets import TicketView
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

pytestmark = [pytest.mark.browser, pytest.mark.long]

SHAPES = ("7g.40gb", "3g.20gb", "1g.5gb", "cpu")
TESTING = "reclaim.report_s = 2"
KEYS = "Alt+Shift+G"
CHOOSE = "No GPU · choose a slice…"
TYPED = "this was never saved by hand"
HOSTILE = "Ten minutes left. <img src=x onerror=\"document.title='run'\"> <b>Save</b> & go on."


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """One A100; an offer is held for as long as the test needs."""
    with temporary_lab(
        docker=False, shapes=SHAPES, pool="offer_s = 600", testing=TESTING
    ) as running:
        yield running


def home(lab: TemporaryLab, name: str) -> Path:
    """A student's home with a text in it."""
    folder: Path = lab.settings.homes / folder_name(name)
    folder.mkdir(mode=0o700, parents=True)
    (folder / "essay.txt").write_text("A beginning.\n")
    return folder


def stop(lab: TemporaryLab, page: Page) -> None:
    """Stop the server, and wait until nothing is leased to it."""
    press_stop(page, lab)
    expect(page.get_by_role("button", name="Stop My Server")).to_be_hidden()


def line_up(lab: TemporaryLab, page: Page, name: str) -> TicketView:
    """Sign in, ask for the whole GPU, and wait for it."""
    sign_in(page, lab, name)
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    expect(page.get_by_role("region", name="While you wait")).to_be_visible()
    return lab.tickets()[name]


def edit(page: Page, lab: TemporaryLab, name: str) -> None:
    """Open the text and type into it."""
    page.goto(f"{lab.settings.public_url}user/{name}/lab/tree/essay.txt")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.type(TYPED)


def in_jupyterlab(page: Page, name: str) -> None:
    page.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
    expect(page.locator(".jp-Launcher, .jp-DirListing-content").first).to_be_visible()


def test_from_the_queue_by_way_of_the_cpu_to_the_slice(
    new_page: Callable[[], Page], lab: TemporaryLab, classmate: Student
):
    """The place outlives a closed tab, hub and pool; the offer comes, and one key press moves."""
    essay = home(lab, "ada") / "essay.txt"
    page = new_page()
    ticket = line_up(lab, page, "ada")
    assert serious_problems(page) == []
    picture(page, "waiting")
    page.get_by_role("button", name="Start on CPU now").click()
    in_jupyterlab(page, "ada")
    expect(status(page)).to_have_text(re.compile("^1st in line"))
    assert "ada" not in lab.leases()

    context = page.context
    page.close()
    lab.kill("hub", "pool")
    first = lab.tickets()["ada"]
    wait_for(lambda: later(lab, first), "the place to be kept with no tab open")
    assert lab.tickets()["ada"].id == ticket.id

    page = context.new_page()
    edit(page, lab, "ada")
    status(page).click()
    panel = page.get_by_role("region", name="GPU slice", exact=True)
    expect(panel).to_contain_text("1st of 1 in line for 7g.40gb")

    classmate.leave()
    expect(card(page, "7g.40gb is ready for you")).to_be_visible()
    expect(
        page.get_by_role("alert").filter(has_text=re.compile("is ready for you, held for"))
    ).to_be_attached()
    assert TYPED not in essay.read_text()
    picture(page, "jupyterlab-offer")
    lab.ask(f"/api/tickets/{ticket.id}/call", {"reason": "Your slice waits."})
    expect(card(page, "is ready")).to_contain_text("calls you: Your slice waits.")
    spoken = (
        page.get_by_role("alert")
        .filter(has_text=re.compile("is ready for you, held for"))
        .locator("span")
    )
    spoken.evaluate("node => node.dataset.before = ''")
    lab.ask(f"/api/tickets/{ticket.id}/call", {"reason": "Your slice waits."})
    expect(spoken.and_(page.locator(":not([data-before])"))).to_be_attached()  # spoken once more
    assert [
        problem
        for part in (".miglab-cards", ".miglab-panel", ".miglab-status")
        for problem in serious_problems(page, part)
    ] == []
    page.locator(".cm-content").click()
    page.keyboard.press(KEYS)
    button = card(page, "is ready").get_by_role("button", name="Save all and restart with it")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")

    expect(status(page)).to_have_text(re.compile(r"^7g\.40gb.* of .* GiB$"))
    page.wait_for_url("**/user/ada/lab**")
    lease = lab.leases()["ada"]
    assert (lease.ticket, lease.shape) == (ticket.id, "7g.40gb")
    assert TYPED in essay.read_text()
    assert lab.broken_invariants() == []
    stop(lab, page)


def later(lab: TemporaryLab, before: TicketView) -> bool:
    """Whether the ticket was attended since."""
    now = lab.tickets()["ada"]
    return (now.expires_at or 0.0) > (before.expires_at or 0.0)


def test_a_ticket_that_ends_is_said_and_asked_for_again(
    page: Page, lab: TemporaryLab, classmate: Student
):
    """Offered, given back by the operator: the card says so, and leads back into the line."""
    line_up(lab, page, "cy")
    page.get_by_role("button", name="Start on CPU now").click()
    in_jupyterlab(page, "cy")
    classmate.leave()
    expect(card(page, "7g.40gb is ready for you")).to_be_visible()
    lab.ask(f"/api/leases/{lab.leases()['cy'].id}/release", {"reason": "Repairs."})
    ended = card(page, "You are no longer in the queue")
    expect(ended).to_be_visible()
    ended.get_by_role("button", name="Ask again").click()
    expect(card(page, "7g.40gb is ready for you")).to_be_visible()
    card(page, "is ready").get_by_role("button", name="Leave it to the next student").click()
    expect(status(page)).to_have_text(CHOOSE)
    wait_for(lambda: "cy" not in lab.leases(), "the offer to be given up")
    stop(lab, page)


def test_a_smaller_shape_and_giving_up(page: Page, lab: TemporaryLab, classmate: Student):
    """What is free now is offered on the waiting page, and so is the way out."""
    line_up(lab, page, "di")
    page.get_by_role("button", name="Leave the queue").click()
    page.wait_for_url("**/hub/spawn/di**")
    wait_for(lambda: lab.positions() == {}, "the place to be given up")
    start(page, "7g.40gb")
    page.get_by_role("button", name="Small: 1/7 of a GPU, 5 GB", exact=True).click()
    in_jupyterlab(page, "di")
    assert lab.leases()["di"].shape == "1g.5gb"
    assert lab.positions() == {}
    stop(lab, page)


def notebook(path: Path) -> None:
    """Thirty cells that were run; the page shows only a few of them."""
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(
                f"print({number})",
                id=f"cell-{number}",
                execution_count=number + 1,
                outputs=[nbformat.v4.new_output("stream", name="stdout", text=f"{number}\n")],
            )
            for number in range(30)
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}},
    )
    nbformat.write(notebook, path)


HOLD = """
if (Object.keys(sessionStorage).some(key => key.startsWith('miglab-moved'))) {
  const held = [], later = window.requestIdleCallback.bind(window);
  window.requestIdleCallback = work => held.push(work);
  window.drawOn = () => { window.requestIdleCallback = later; held.forEach(work => later(work)); };
}
"""  # JupyterLab draws cells out of sight when the browser is idle


NOTE = "window.getComputedStyle(e.querySelector('.jp-Cell-outputArea'), '::before').content"


def note(cell: Locator) -> str:
    """What stands above a cell's output."""
    return str(cell.evaluate(f"e => {NOTE}"))


def open_notebook(page: Page, lab: TemporaryLab, name: str) -> Locator:
    """The cell that is out of sight until the student has walked to it by the keyboard."""
    page.goto(f"{lab.settings.public_url}user/flo/lab/tree/{name}")
    wait_for_kernel(page)
    page.locator(".jp-Notebook .jp-Cell").first.click()
    page.keyboard.press("Escape")
    for _ in range(15):
        page.keyboard.press("ArrowDown")
    cell = page.locator(".jp-Notebook .jp-Cell", has_text="print(15)")
    expect(cell).to_be_in_viewport()
    return cell


def test_the_slice_is_given_back_and_the_work_goes_on(page: Page, lab: TemporaryLab):
    """Three tabs: text saved, all come back on CPU, at the same cell; old outputs say so."""
    folder = home(lab, "flo")
    notebook(folder / "lesson.ipynb")
    notebook(folder / "homework.ipynb")
    sign_in(page, lab, "flo")
    start(page, "1g.5gb")
    in_jupyterlab(page, "flo")
    other, slow = page.context.new_page(), page.context.new_page()
    edit(other, lab, "flo")
    slow.add_init_script(HOLD)
    page_left = open_notebook(slow, lab, "homework.ipynb")
    cell = open_notebook(page, lab, "lesson.ipynb")
    status(page).click()
    panel = page.get_by_role("region", name="GPU slice", exact=True)
    panel.get_by_role("button", name="Release, and go on without a GPU…").click()
    page.get_by_role("button", name="Save all and restart", exact=True).click()
    expect(card(other, "This server is restarting without a GPU")).to_be_visible()
    wait_for(lambda: "flo" not in lab.leases(), "the slice to be given back")
    page.wait_for_url("**/user/flo/lab/**/lesson.ipynb**", wait_until="commit")
    assert TYPED in (folder / "essay.txt").read_text()
    wait_for_kernel(page)
    expect(status(other)).to_have_text(CHOOSE)
    expect(other.locator(".cm-content")).to_contain_text(TYPED)
    expect(cell).to_be_in_viewport()
    assert "from before the move: run again" in note(cell)
    cell.click()
    page.keyboard.press("Control+Enter")
    expect(cell).not_to_have_class(re.compile("miglab-before-move"))
    assert note(cell) == "none"
    view = page.request.get(f"{lab.settings.public_url}user/flo/miglab/api/lease").json()
    assert (view["state"], view["shape"]) == ("none", "cpu")

    slow.locator(".jp-Notebook .jp-Cell").first.hover()
    slow.mouse.wheel(0, 1)
    slow.evaluate("drawOn()")
    slow.wait_for_function(
        "Object.values(sessionStorage).some(kept => kept.includes('\"seen\":-1'))"
    )
    expect(page_left).to_be_attached()
    expect(page_left).not_to_be_in_viewport()  # who had begun to read elsewhere stays there
    assert lab.broken_invariants() == []
    other.close()
    slow.close()
    stop(lab, page)


def test_what_staff_say_is_text(page: Page, lab: TemporaryLab):
    """On a server without a slice too: as it was written, said aloud, and closed in every tab."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    sign_in(page, lab, "eve")
    page.locator("input[name=shape][value=cpu]").check()
    page.get_by_role("button", name="Start").click()
    in_jupyterlab(page, "eve")
    expect(status(page)).to_have_text(CHOOSE)
    other = page.context.new_page()
    other.goto(page.url, wait_until="commit")
    lab.ask("/api/messages", {"to_user": "eve", "text": HOSTILE, "minutes": 5})
    for tab in (page, other):
        expect(card(tab, "Message from")).to_contain_text(HOSTILE)
        expect(tab.get_by_role("log").filter(has_text="Ten minutes left")).to_be_attached()
    expect(card(page, "Message from").locator("b, img")).to_have_count(0)
    assert serious_problems(page, ".miglab-cards") == []
    card(page, "Message from").get_by_role("button", name="Close").click()
    for tab in (page, other):
        expect(card(tab, "Message from")).to_have_count(0)
    assert page.title() != "run" and errors == []
    other.close()
    stop(lab, page)

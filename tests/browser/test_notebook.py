"""A student's notebook in JupyterLab, from top to bottom by hand, with wrong and right answers."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.people import KERNEL_MS, picture, wait_for_kernel
from tests.browser.test_panel import PanelLab, jupyter, set_up  # noqa: F401  a fixture

import make_notebooks
from labkit.evidence import evidence as store
from labkit.records import Verdict

pytestmark = [pytest.mark.browser, pytest.mark.long]
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAME = "1_your_slice"
UNWAITED = """def my_timer(work, wait, clock, rounds=20):
    seconds = []
    work(); wait()
    for _ in range(rounds):
        begun = clock(); work(); seconds.append(clock() - begun)
    return seconds"""
WAITED = UNWAITED.replace("work(); seconds", "work(); wait(); seconds").replace(
    "begun", "wait(); begun", 1
)
SLANTED = "def attainable(intensity, flops_per_s, bytes_per_s):\n    return intensity * bytes_per_s"
ROOFED = SLANTED.replace("return ", "return min(flops_per_s, ") + ")"


def write_notebook(folder: Path) -> None:
    """The student's build, as the image makes it."""
    folder.mkdir()
    make_notebooks.make(NOTEBOOKS / "src" / f"{NAME}.py", folder / f"{NAME}.ipynb")


@pytest.fixture
def opened(jupyter: PanelLab, page: Page) -> Page:  # noqa: F811
    """The notebook, every cell run once and nothing predicted, as "Run All" leaves it."""
    everything = {"windowingMode": "none"}
    set_up(jupyter.folder.parent, "tracker", everything, "notebook-extension")
    write_notebook(jupyter.folder / "by-hand")
    page.set_viewport_size({"width": 1300, "height": 1000})
    page.goto(f"{jupyter.url}/doc/workspaces/hand/tree/by-hand/{NAME}.ipynb")
    wait_for_kernel(page)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(page.get_by_text("hand-in.zip:").last).to_be_visible(timeout=KERNEL_MS)
    return page


def cell_with(page: Page, text: str) -> Locator:
    """The code cell whose text holds these words."""
    return page.locator(".jp-CodeCell").filter(has=page.locator(".cm-content", has_text=text))


def rewrite(page: Page, source: str, text: str) -> None:
    """Put another text into the cell, and run it."""
    cell_with(page, source).locator(".cm-content").first.click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    page.keyboard.press("Shift+Enter")


def run_cell(page: Page, text: str) -> Locator:
    """Run the cell with these words; answers its output."""
    cell = cell_with(page, text).first
    cell.locator(".cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    return cell.locator(".jp-OutputArea").first


def answers(page: Page, source: str, expected: str) -> None:
    """A check's cell says this."""
    expect(run_cell(page, source)).to_contain_text(expected, timeout=KERNEL_MS)


def measure(panel: Locator, predict: Callable[[Locator], None], because: str) -> Locator:
    """Predict and run, to the end; answers the panel's status."""
    predict(panel)
    panel.get_by_label("because").fill(because)
    panel.get_by_role("button", name="Lock in prediction").click()
    panel.get_by_role("button", name="Run", exact=True).click()
    status = panel.get_by_role("status")
    expect(status).to_contain_text("Done:", timeout=KERNEL_MS)
    return status


def panel_of(page: Page, title: str) -> Locator:
    """A panel by its heading."""
    heading = page.get_by_role("heading", name=title, exact=True)
    return page.locator(".jp-OutputArea-output").filter(has=heading).first


def test_a_notebook_by_hand(opened: Page, jupyter: PanelLab) -> None:  # noqa: F811
    """Hints first, no verdict before a claim, cells that refresh, answers that are judged."""
    page, folder = opened, jupyter.folder / "by-hand"
    floor = cell_with(page, "def noise_floor").locator(".jp-OutputArea").first
    expect(floor).to_contain_text("T-1: measure first")

    noise = panel_of(page, "The same function against itself")
    status = measure(
        noise, lambda panel: panel.get_by_label("Your prediction (x)").fill("1,5"), "it is noisy"
    )
    expect(status).to_contain_text("You said 1.5 x; it is")
    expect(status).to_contain_text("What do the data say of it?")
    expect(noise).not_to_contain_text("as expected here")
    expect(floor).to_contain_text("differences below")  # nobody ran that cell again
    picture(page, "notebook-before-the-claim")
    noise.get_by_label("The claim is").select_option("undecided")
    noise.get_by_label("Your explanation").fill("The interval is wide.")
    noise.get_by_role("button", name="Keep").click()
    expect(status).to_contain_text("You say: undecided.")
    expect(status).to_contain_text("differs by less than 5 %”:")
    noise.get_by_label("The claim is").select_option("supported")
    noise.get_by_role("button", name="Keep").click()
    expect(status).to_contain_text("Your later answer: supported.")
    evidence = store.load(folder / "evidence" / "T-1.json")
    assert (evidence.is_students, evidence.verdict_read) == (True, Verdict.UNDECIDED)
    picture(page, "notebook-after-the-claim")

    rewrite(page, "def my_timer", UNWAITED)
    answers(page, "timer_verdict = ", "wait for the device")
    rewrite(page, "def my_timer", WAITED)
    answers(page, "timer_verdict = ", "right")
    rewrite(page, "def attainable", SLANTED)
    answers(page, "roof_verdict = ", "right of the ridge")
    rewrite(page, "def attainable", ROOFED)
    answers(page, "roof_verdict = ", "right: ")

    roof = panel_of(page, "Rate against intensity")
    rises = lambda panel: panel.get_by_label("Your prediction").select_option("rises")  # noqa: E731
    status = measure(roof, rises, "more work a byte")
    expect(status).to_contain_text("It rises, as you said")
    lines = cell_with(page, "def against_the_roof").locator(".jp-OutputArea").first
    expect(lines).to_contain_text("of what is possible here")
    picture(page, "notebook-roof")
    expect(run_cell(page, "labkit.summary(")).to_contain_text("make your claim in the panel first")
    expect(run_cell(page, "labkit.hand_in()")).to_contain_text("T-4 has no explanation yet")

"""The main walks of a student in Chromium, with what they press and how long it takes.

``python -m tests.browser.walks`` prints the table of docs/benchmarks.md.  The pages themselves
count clicks and keys; what is typed into a field counts as one field.  Nobody stops to think.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.browser.conftest import ARGS, CHROMIUM, PATIENCE_MS
from tests.browser.people import KERNEL_MS, offer, sign_in, start, status, wait_for_kernel
from tests.browser.recorder import Presses, Recorder
from tests.browser.test_choose import write_notebook
from tests.students import served

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

WINDOW: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}}
SHAPES = ("7g.40gb", "3g.20gb", "1g.5gb", "cpu")
KEY_MS = 100  # a person looks what a key has done
SAVE_AND_RESTART = "Save all and restart with it"


@dataclass
class Walks:
    """One lab, and what its walks took."""

    chromium: Browser
    lab: TemporaryLab
    rows: list[str] = field(default_factory=list)

    @contextmanager
    def browser(self) -> Iterator[tuple[Page, Presses]]:
        """A new person's browser, and the count of what is pressed in it."""
        with closing(self.chromium.new_context(**WINDOW)) as context:
            context.set_default_timeout(PATIENCE_MS)
            recorder = Recorder(context)
            yield context.new_page(), recorder.presses

    @contextmanager
    def timed(self, walk: str, presses: Presses, fields: int = 0) -> Iterator[None]:
        """Count and time what the block does."""
        clicks, keys, at = presses.clicks, presses.keys, time.monotonic()
        yield
        seconds = time.monotonic() - at
        numbers = f"{presses.clicks - clicks} | {presses.keys - keys} | {fields}"
        self.rows.append(f"| {walk} | {numbers} | {seconds:.1f} |")
        print(self.rows[-1], file=sys.stderr)

    def first_cell(self) -> None:
        """A new student, from the login form to the first cell's output."""
        with self.browser() as (page, presses):
            page.goto(self.lab.settings.public_url)
            with self.timed("first login to first cell", presses, fields=2):
                page.get_by_label("Username").fill("ada")
                page.get_by_label("Password").fill(self.lab.password)
                page.get_by_role("button", name="Sign in").click()
                if not offer(page, "1g.5gb").is_checked():
                    offer(page, "1g.5gb").click()
                page.get_by_role("button", name="Start").click()
                page.get_by_role("button", name="1. Your slice").click()
                run_cell(page)

    def choose(self) -> None:
        """From a server without a GPU to a free slice, and a cell on it."""
        walk = "CPU to slice, to a cell on it"
        with self.on_cpu("bea") as (page, presses), self.timed(walk, presses):
            status(page).click()
            row = page.get_by_role("listitem").filter(has_text="1g.5gb")
            row.get_by_role("button", name=SAVE_AND_RESTART).click()
            expect(status(page)).to_contain_text("1g.5gb")
            run_cell(page)

    def take(self) -> None:
        """From an offer in JupyterLab to a cell on its slice."""
        with self.on_cpu("cleo") as (page, presses):
            with closing(served(self.lab, "dan", "3g.20gb")) as dan:
                status(page).click()
                row = page.get_by_role("listitem").filter(has_text="7g.40gb")
                row.get_by_role("button", name="Join the queue").click()
                dan.leave()
            button = page.get_by_role("button", name=SAVE_AND_RESTART)
            button.wait_for()
            with self.timed("offer to a cell", presses):
                button.click()
                expect(status(page)).to_contain_text("7g.40gb, guaranteed")
                run_cell(page)

    @contextmanager
    def on_cpu(self, name: str) -> Iterator[tuple[Page, Presses]]:
        """A student with a notebook open on a server without a GPU."""
        write_notebook(self.lab, name)
        with self.browser() as (page, presses):
            sign_in(page, self.lab, name)
            start(page, "cpu")
            page.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
            page.goto(f"{self.lab.settings.public_url}user/{name}/lab/tree/lesson.ipynb")
            wait_for_kernel(page)
            page.locator(".jp-Notebook .jp-Cell").first.click()
            yield page, presses
        with closing(self.lab.signed_in(name)) as student:
            student.leave()


def run_cell(page: Page) -> None:
    """Press Shift Enter from the first cell on, until the first cell of code has run."""
    wait_for_kernel(page)
    page.locator(".jp-Notebook .jp-Cell").first.click()
    active = page.locator(".jp-Notebook .jp-Cell.jp-mod-active")
    while "jp-CodeCell" not in (active.get_attribute("class") or ""):
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(KEY_MS)
    page.keyboard.press("Shift+Enter")
    prompts = page.locator(".jp-Notebook").locator(".jp-InputPrompt, .jp-OutputPrompt")
    expect(prompts.filter(has_text="[1]:").first).to_be_attached(timeout=KERNEL_MS)


if __name__ == "__main__":
    expect.set_options(timeout=PATIENCE_MS)
    with temporary_lab(docker=False, shapes=SHAPES) as running, sync_playwright() as playwright:
        walks = Walks(playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS), running)
        walks.first_cell()
        with closing(running.signed_in("ada")) as done:
            done.leave()
        walks.choose()
        walks.take()
    print("| walk | clicks | keys | fields | seconds |\n|---|---|---|---|---|")
    print("\n".join(walks.rows))

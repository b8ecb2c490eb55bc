"""What people do in a browser, and what is seen there."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect
from tests.students import signed_in

from miglab_bench.harness.student import Student
from miglab_bench.harness.temporary import TemporaryLab
from miglab_hub import lab_secrets

GOES_BACK = re.compile("goes back|released|reclaimed")  # a warning, and what came of it
KERNEL_MS = 180_000  # a kernel, torch and the widgets start; on a busy machine that takes a while
SCREENSHOTS = os.environ.get("MIGLAB_SCREENSHOTS")  # a folder: the pictures of the docs go there

PHONE, ZOOMED, LAPTOP, PROJECTOR = 390, 640, 1280, 1920  # pixels; 640: 1,280 at 200 % zoom
VIOLATIONS = {"resultTypes": ["violations"]}


def picture(page: Page, name: str) -> None:
    """Keep a screenshot for the docs, when asked to."""
    if SCREENSHOTS:
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=False)


def problems(page: Page, within: str | None = None, impacts: Collection[str] = ()) -> list[str]:
    """What axe finds, one line each; of these impacts only, if any are named."""
    results = Axe().run(page, context=within, options=VIOLATIONS)
    return violations_in_words(results.response, impacts)


def violations_in_words(response: Mapping[str, Any], impacts: Collection[str]) -> list[str]:
    """The violations of axe's answer, one line each; of these impacts only, if any are named."""
    return [
        f"{violation['id']}: {violation['help']}: "
        f"{[node['html'][:160] for node in violation['nodes'][:3]]}"
        for violation in response["violations"]
        if not impacts or violation["impact"] in impacts
    ]


def serious_problems(page: Page, within: str | None = None) -> list[str]:
    """What axe calls serious or critical, one line each."""
    return problems(page, within, ("serious", "critical"))


def sign_in(page: Page, lab: TemporaryLab, name: str) -> None:
    """Fill in the login form; ends on the spawn page or the home page."""
    page.goto(lab.settings.public_url)
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(lab.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/hub/spawn**")


def sign_in_as_staff(page: Page, lab: TemporaryLab, role: str) -> Page:
    """As the admin or the instructor that every lab has; they land on the pool's page."""
    page.goto(f"{lab.settings.public_url}hub/login")
    page.get_by_label("Username").fill(role)
    passwords = lab_secrets.read_passwords(lab.settings)
    page.get_by_label("Password").fill(getattr(passwords, role))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/services/pool/")
    return page


def go(page: Page, place: str) -> None:
    """By the navigation, as people do."""
    link = page.get_by_role("navigation", name="Pages of the lab").get_by_role("link", name=place)
    link.click()
    expect(link).to_have_attribute("aria-current", "page")
    page.wait_for_load_state("load")  # its scripts have run: what is pressed is heard


def said(page: Page, text: str) -> None:
    """The page tells what came of it."""
    expect(page.get_by_role("status").filter(has_text=text)).to_be_visible()


def looks_good(page: Page, name: str, within: str | None = None) -> None:
    """Axe finds nothing serious, and no part of the page lies beyond the screen's edge."""
    page.evaluate("scrollTo(0, 0)")
    picture(page, name)
    assert serious_problems(page, within) == []
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0, name


def card(page: Page, name: str | re.Pattern[str] = GOES_BACK) -> Locator:
    """What is shown over JupyterLab when something happens to the slice."""
    return page.get_by_role("region", name=name)


def status(page: Page) -> Locator:
    """The item of JupyterLab's status bar."""
    return page.locator(".miglab-status")


def offer(page: Page, shape: str) -> Locator:
    """A shape on the spawn page, of the student's one course or of the first that has it."""
    return page.locator(f'[name=shape][value="{shape}"], [name=shape][value^="{shape}@"]').first


def start(page: Page, shape: str) -> None:
    """Choose a shape on the spawn page and press the button, whatever it says it does."""
    offer(page, shape).check()
    page.locator("#spawn_form .feedback-container [type=submit]").click()


def wait_for_kernel(page: Page) -> None:
    """Wait until the open notebook's kernel is there: what is run before is lost without a word."""
    idle = page.get_by_role("button", name="Python 3 (ipykernel) | Idle")
    expect(idle).to_be_attached(timeout=KERNEL_MS)


@contextmanager
def kept_busy(lab: TemporaryLab, name: str) -> Iterator[Student]:
    """The same person in another window, in which a cell runs until `compute_no_more`.

    However long a page takes to open here, nothing on the slice is idle meanwhile.
    """
    with closing(signed_in(lab, name)) as student:
        student.wait_until_ready()
        student.run_cell("")
        student.compute_on()
        yield student


def press_stop(page: Page, lab: TemporaryLab) -> None:
    """Stop the server on the hub's home page, once its button does something."""
    page.goto(f"{lab.settings.public_url}hub/home")
    page.wait_for_function("window._jupyterhub_page_loaded")  # some time after `load`
    page.get_by_role("button", name="Stop My Server").click()

"""The students' pages as pictures: at each size, in both themes, at 200 % zoom."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.browser.people import (
    LAPTOP,
    PHONE,
    PROJECTOR,
    SCREENSHOTS,
    ZOOMED,
    problems,
    sign_in,
    start,
    status,
)

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

from .conftest import PATIENCE_MS, Come

pytestmark = [pytest.mark.browser, pytest.mark.long]

SHAPES = ("7g.40gb", "3g.20gb", "cpu")
SCROLLS_SIDEWAYS = """(selector) => {
  const part = document.querySelector(selector);
  const scrolls = (element) => /auto|scroll/.test(getComputedStyle(element).overflowX);
  let outer = part;
  while (outer.parentElement && !scrolls(outer)) outer = outer.parentElement;
  return [part, outer].some((element) => element.scrollWidth > element.clientWidth);
}"""
"""Whether a part of a page, or what it scrolls in, is wider than it shows."""


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """One A100, of which one student at a time can have all."""
    with temporary_lab(docker=False, shapes=SHAPES) as running:
        yield running


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ada(chromium: Browser, theme: str) -> Iterator[Page]:
    """A student's browser in this theme."""
    context = chromium.new_context(color_scheme=theme)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield context.new_page()
    context.close()


def faults(page: Page, name: str, theme: str, within: str | None = None) -> list[str]:
    """What is cut off at some size, and what axe finds on a telephone and a laptop."""
    faults_found = []
    for width in (PHONE, ZOOMED, LAPTOP, PROJECTOR):
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate(SCROLLS_SIDEWAYS, within or "html"):
            faults_found.append(f"{name} at {width} is cut off")
        if width in (PHONE, LAPTOP):
            faults_found += [f"{name} at {width}: {problem}" for problem in problems(page, within)]
        if SCREENSHOTS:
            page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{width}-{theme}.png")
    page.set_viewport_size({"width": LAPTOP, "height": 900})
    return faults_found


def test_no_page_of_a_student_is_cut_off(
    ada: Page, lab: TemporaryLab, come: Come, theme: str
) -> None:
    """From the sign-in to the waiting page; nothing scrolls sideways, and axe finds nothing."""
    name, holder = f"ada-{theme}", f"bo-{theme}"
    come(holder, "3g.20gb").wait_until_ready()
    root = lab.settings.public_url
    ada.goto(root)
    all_faults = faults(ada, "login", theme)
    sign_in(ada, lab, name)
    all_faults += faults(ada, "start", theme)
    start(ada, "7g.40gb")
    expect(ada.get_by_text("in line for 7g.40gb").first).to_be_visible()
    all_faults += faults(ada, "waiting", theme)
    for path in ("hub/home", "services/pool/", "services/pool/reservations"):
        ada.goto(root + path)
        ada.wait_for_load_state("networkidle")
        all_faults += faults(ada, path.replace("/", "-").strip("-"), theme)
    ada.goto(f"{root}hub/spawn/{name}")
    ada.get_by_role("button", name="Leave the queue").click()
    ada.wait_for_url(f"**/hub/spawn/{name}")
    assert all_faults == [], "\n".join(all_faults)


def test_what_jupyterlab_asks_can_be_read(
    ada: Page, lab: TemporaryLab, come: Come, theme: str
) -> None:
    """The choice of a slice and the offer, in the theme that JupyterLab takes from the browser."""
    name = f"eve-{theme}"
    holder = come(f"fox-{theme}", "3g.20gb")
    holder.wait_until_ready()
    sign_in(ada, lab, name)
    start(ada, "cpu")
    ada.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
    expect(status(ada)).to_be_visible()
    is_light = {"light": "true", "dark": "false"}[theme]
    expect(ada.locator("body")).to_have_attribute("data-jp-theme-light", is_light)
    status(ada).click()
    choices = ada.locator(".miglab-choices")
    expect(choices).to_be_visible()
    all_faults = faults(ada, "jupyterlab-choices", theme, ".miglab-choices")
    choices.get_by_role("listitem").filter(has_text="7g.40gb").get_by_role("button").click()
    expect(status(ada)).to_contain_text(re.compile("in line"))
    holder.leave()
    expect(ada.get_by_role("region", name="7g.40gb is ready for you")).to_be_visible()
    all_faults += faults(ada, "jupyterlab-offer", theme, ".miglab-cards")
    ada.get_by_role("button", name="Leave it to the next student").click()
    assert all_faults == [], "\n".join(all_faults)

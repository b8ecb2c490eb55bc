"""The slice in a real JupyterLab: what it says, the warning, and what is left when it was released.

The lab is the whole one with its times shortened by settings: every lease is soon idle and warned,
and lasts longer than any step.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.people import card, picture, serious_problems, sign_in, start, status

from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

pytestmark = [pytest.mark.browser, pytest.mark.long]

POOL = """
extension_s = 600
extensions = 2
"""
RECLAIM = """
[reclaim]
idle_s = 5
idle_wanted_s = 5
warning_s = 240
"""
# Being looked at hardly counts: a warning of before the page is open would end as it opens.
TESTING = "reclaim = {every_s = 1, report_s = 2, stale_s = 10, unused_s = 0.1, cpu_busy_pct = 100}"
KEYS = "Alt+Shift+G"


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """A lab where time is short; students' servers report every three seconds."""
    with temporary_lab(docker=False, pool=POOL, more=RECLAIM, testing=TESTING) as running:
        yield running


def make_home(lab: TemporaryLab, name: str) -> None:
    """A student's home: quick reports, the dark theme, and a text to open."""
    folder: Path = lab.settings.homes / folder_name(name)
    themes = "lab/user-settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings"
    for file, content in {
        "jupyter_server_config.json": {"LeaseExtension": {"interval_s": 3, "warned_s": 3}},
        themes: {"theme": "JupyterLab Dark", "adaptive-theme": False},
    }.items():
        config = folder / ".jupyter" / file
        config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        config.write_text(json.dumps(content))
    (folder / "essay.txt").write_text("A beginning.\n")


def work(page: Page, lab: TemporaryLab, name: str) -> None:
    """Sign in, get a slice, and open the text."""
    sign_in(page, lab, name)
    start(page, "1g.5gb")
    page.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
    page.goto(f"{lab.settings.public_url}user/{name}/lab/tree/essay.txt")
    expect(page.locator(".cm-content")).to_be_visible()


def open_panel(page: Page) -> Locator:
    """Press the status bar's item: the panel with the details."""
    status(page).click()
    return page.get_by_role("region", name="GPU slice", exact=True)


def problems(page: Page) -> list[str]:
    """What axe finds in our parts of the page."""
    selectors = (".miglab-card", ".miglab-panel", ".miglab-status")
    return [problem for part in selectors for problem in serious_problems(page, part)]


def test_warned_extended_and_released(page: Page, lab: TemporaryLab):
    """Warned in every tab, put off in all by keys alone; the panel releases; the dark theme."""
    make_home(lab, "ada")
    work(page, lab, "ada")
    other = page.context.new_page()
    other.goto(page.url, wait_until="commit")
    expect(card(page)).to_contain_text("Nothing has happened on it for")
    expect(card(page)).to_contain_text("You will lose the variables")
    assert card(page).inner_text().count("files are kept") == 1
    expect(page.get_by_role("alert").filter(has_text="goes back to the pool")).to_be_attached()
    expect(card(other)).to_be_visible()
    panel = open_panel(page)
    assert problems(page) == []

    page.locator(".cm-content").click()
    page.keyboard.press(KEYS)
    expect(card(page).get_by_role("button", name="I am still here")).to_be_focused()
    page.keyboard.press("Tab")
    expect(card(page).get_by_role("button", name="Extend by 10 min")).to_be_focused()
    page.keyboard.press("Enter")
    expect(card(page)).to_be_hidden()
    expect(card(other)).to_be_hidden()
    expect(page.locator(".cm-content")).to_be_focused()
    assert lab.leases()["ada"].extensions_left == 1
    other.close()

    expect(status(page)).to_have_text(
        re.compile(r"^1g\.5gb, guaranteed until .* · .* of 4\.8 GiB$")
    )
    expect(panel).to_contain_text(lab.leases()["ada"].uuids[0])
    expect(panel).to_contain_text("6 of 7 free (1g.5gb); 1 holds, 0 wait")
    picture(page, "jupyterlab-slice")

    offline_and_back(page)
    panel.get_by_role("button", name="Release…").click()
    page.get_by_role("button", name="Save all and release", exact=True).click()
    wait_for(lambda: "ada" not in lab.leases(), "the slice to be given back")
    expect(card(page)).to_contain_text("You released your GPU slice")
    expect(card(page)).to_contain_text("Your files are kept")
    expect(status(page)).to_have_text("No GPU slice")
    expect(panel).to_contain_text("You released your GPU slice")
    card(page).get_by_role("button", name="Go to the hub page").click()
    expect(page.locator("#miglab-news")).to_contain_text("You released your GPU slice")
    assert "reclaimed" not in page.locator("body").inner_text()


def offline_and_back(page: Page) -> None:
    """The laptop sleeps, or has no Wi-Fi: said in one line, which goes by itself; no question."""
    notice = page.get_by_role("status").filter(
        has_text="You are offline; your server keeps running"
    )
    with page.expect_event("requestfailed", lambda request: "/api/kernels" in request.url):
        page.context.set_offline(True)
    expect(notice).to_be_visible()
    expect(status(page)).to_have_text(re.compile(r"^1g\.5gb.* · offline, figures .* old$"))
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert serious_problems(page, ".miglab-offline") == []
    page.context.set_offline(False)
    expect(notice).to_have_count(0)
    expect(status(page)).to_have_text(re.compile(r" of 4\.8 GiB$"))

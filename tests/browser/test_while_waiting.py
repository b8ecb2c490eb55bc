"""What a student has of the time in which they wait, and what they are told when they come back."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import (
    card,
    picture,
    press_stop,
    serious_problems,
    sign_in,
    start,
    status,
)

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

pytestmark = [pytest.mark.browser, pytest.mark.long]

HOUR_S = 3600.0
CHOOSE = "No GPU · choose a slice…"


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """One A100, of which somebody may ask for all."""
    shapes = ("7g.40gb", "3g.20gb", "1g.5gb", "cpu")
    with temporary_lab(docker=False, shapes=shapes, testing="reclaim.report_s = 2") as running:
        yield running


def test_the_first_notebook_is_read_beside_the_wait(
    page: Page, lab: TemporaryLab, classmate: Student
) -> None:
    """In a tab of its own, as texts and code; nothing in it asks for anything that runs."""
    sign_in(page, lab, "ada")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    with page.expect_popup() as popup:
        page.get_by_role("link", name="Read the first notebook").click()
    reading = popup.value
    expect(reading.get_by_role("heading", name="1. Your slice")).to_be_visible()
    expect(reading.locator("pre", has_text="def matmul")).to_be_visible()
    expect(
        reading.locator("pre", has_text="import labkit").first
    ).to_be_hidden()  # as in JupyterLab
    assert reading.locator("article script, article iframe").count() == 0
    assert serious_problems(reading) == []
    reading.set_viewport_size({"width": 390, "height": 800})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert reading.evaluate(overflow) <= 0
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    page.get_by_role("button", name="Leave the queue").click()
    page.wait_for_url("**/hub/spawn/ada")


DOWNLOADS = """performance.getEntriesByType("resource")
  .filter((entry) => entry.name.includes("/static/lab/"))
  .map((entry) => [entry.name.split("/").pop(), entry.transferSize])"""


def test_jupyterlab_is_fetched_ahead(page: Page, lab: TemporaryLab, classmate: Student) -> None:
    """Of JupyterLab's own files none is downloaded when it opens; `files_ahead.txt` names them."""
    sign_in(page, lab, "cy")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    expect(page.locator("body")).to_have_class(re.compile("miglab-is-fetched"))
    classmate.leave()
    page.wait_for_url("**/user/cy/lab**", wait_until="commit")
    expect(status(page)).to_be_visible()
    downloads = page.evaluate(DOWNLOADS)
    assert len(downloads) > 20
    assert [name for name, size in downloads if size] == []
    press_stop(page, lab)


def last_look(lab: TemporaryLab, name: str) -> Path:
    """Where a student's server keeps when they last looked."""
    home: Path = lab.settings.homes / folder_name(name)
    return home / ".local/share/jupyter/miglab-last-look.json"


def test_who_comes_back_reads_what_happened(page: Page, lab: TemporaryLab) -> None:
    """The slice went back an hour ago: one card says why, until it is closed."""
    sign_in(page, lab, "bea")
    start(page, "1g.5gb")
    page.wait_for_url("**/user/bea/lab**", wait_until="commit")
    expect(status(page)).to_have_text(re.compile(r"^1g\.5gb.* of .* GiB$"))
    wait_for(last_look(lab, "bea").exists, "the look to be noted")
    lab.ask(f"/api/leases/{lab.leases()['bea'].id}/release", {"reason": "The GPU is repaired."})
    wait_for(lambda: not lab.leases(), "the slice to be given back")
    last_look(lab, "bea").write_text(json.dumps({"looked_at": time.time() - HOUR_S}))
    page.goto(f"{lab.settings.public_url}hub/spawn/bea")
    start(page, "cpu")
    page.wait_for_url("**/user/bea/lab**", wait_until="commit")
    away = card(page, "While you were away")
    expect(away).to_contain_text("1g.5gb went back to the pool: The GPU is repaired.")
    expect(away).to_contain_text("This server was started anew")
    assert serious_problems(page, ".miglab-cards") == []
    picture(page, "jupyterlab-away")
    away.get_by_role("button", name="Close").click()
    expect(away).to_be_hidden()
    page.reload()
    expect(status(page)).to_have_text(CHOOSE)
    expect(away).to_be_hidden()
    press_stop(page, lab)

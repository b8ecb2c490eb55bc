"""What a person downloads, by Chromium's own count, and that only shared files are compressed."""

import re

import pytest
from playwright.sync_api import Browser, Page, Response
from tests.browser.people import sign_in, start

from miglab_bench.harness.temporary import TemporaryLab
from miglab_bench.measures.pages import PAGES, PageCase, measure

pytestmark = [pytest.mark.browser, pytest.mark.long]

COMPRESSED = re.compile(r"/static/|/lab/extensions/|/lab/api/|/api/contents|/miglab/api/course")


def test_every_page_keeps_its_bounds(chromium: Browser, lab: TemporaryLab) -> None:
    """Sign-in page and JupyterLab, the first time and the second.

    Without compression JupyterLab is as large as it was, so everything is counted.
    """
    cases: dict[str, PageCase] = {case.name: case for case in PAGES}
    openings = measure(lab, chromium, 1)
    for case, (_, (usual,)) in openings.items():
        print(f"{case.name}: {usual.first_bytes:,} and {usual.second_bytes:,} bytes")
        assert usual.first_bytes <= (case.first_bound or usual.first_bytes), case.name
        assert usual.second_bytes <= (case.second_bound or usual.second_bytes), case.name
    (plain,), _ = openings[cases["JupyterLab"]]
    assert plain.first_bytes > 5_000_000


def test_nothing_else_is_compressed(page: Page, lab: TemporaryLab) -> None:
    """From the login form through the start, whose events come one by one, to JupyterLab."""
    compressed: set[str] = set()
    as_it_is: set[str] = set()

    def note(response: Response) -> None:
        path = response.url.split("?")[0]
        (compressed if "content-encoding" in response.headers else as_it_is).add(path)

    page.on("response", note)
    sign_in(page, lab, "cleo")
    start(page, "1g.5gb")
    page.wait_for_url("**/user/cleo/lab**")
    page.locator(".miglab-status").wait_for()
    page.goto(f"{lab.settings.public_url}services/pool/")
    page.wait_for_load_state("load")
    assert [path for path in sorted(compressed) if not COMPRESSED.search(path)] == []
    for end in (
        "/hub/login",
        "/server/progress",
        "/user/cleo/lab/tree/notebooks",
        "/services/pool/",
    ):
        assert any(path.endswith(end) for path in as_it_is), end

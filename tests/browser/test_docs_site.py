"""The built documentation in Chromium: pages fit a phone, and a search finds the right page."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

CHECKOUT = Path(__file__).parents[2]
PHONE = {"width": 390, "height": 844}
# What reaches beyond the window; code blocks scroll by themselves.
BEYOND = """() => [document.documentElement, ...document.querySelectorAll("main article *")]
    .filter((part) => !part.closest("pre") && Math.max(part.getBoundingClientRect().right,
        part === document.documentElement ? part.scrollWidth : 0) > innerWidth + 1)
    .map((part) => `${part.tagName} ${part.textContent.trim().slice(0, 40)}`).slice(0, 3)"""
FOUND = "#search-results ul.search > li > a"
SEARCHES = {
    "OAuth": "howto/sign-in.html",
    "GitHub": "howto/sign-in.html",
    "LTI": "howto/sign-in.html",
    "install": "howto/gpu-host.html",
    "upgrade": "howto/gpu-host.html",
    "certificate": "howto/gpu-host.html",
    "backup": "howto/keep-and-delete-data.html",
    "reservation": "howto/reserve.html",
    "troubleshooting": "howto/watch-the-lab.html",
    "logs": "howto/watch-the-lab.html",
    "own notebooks": "howto/next-image.html",
    "conda": "howto/next-image.html",
    "quota": "howto/limits.html",
    "roster": "howto/courses.html",
    "multi-instance": "explanation/mig.html",
}

pytestmark = pytest.mark.long


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as they are published."""
    out = tmp_path_factory.mktemp("site")
    sphinx = (sys.executable, "-m", "sphinx", "-q", "-W", "-d", str(out / "doctrees"))
    subprocess.run([*sphinx, str(CHECKOUT / "docs"), str(out / "html")], check=True)
    return out / "html"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where the site is served; search needs more than files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def phone(chromium: Browser) -> Iterator[Page]:
    """A window as wide as a phone."""
    page = chromium.new_page(viewport=PHONE)
    yield page
    page.close()


def test_no_page_and_no_table_is_wider_than_a_phone(site: Path, phone: Page) -> None:
    """Whatever a page shows is within the window, unless it scrolls by itself."""
    wide = {}
    for path in sorted(site.rglob("*.html")):
        phone.goto(path.as_uri(), wait_until="domcontentloaded")
        if beyond := phone.evaluate(BEYOND):
            wide[str(path.relative_to(site))] = beyond
    assert not wide


def test_a_search_finds_the_page_first(address: str, phone: Page) -> None:
    """The words that people search lead to the page that helps."""
    first = {}
    for query in SEARCHES:
        phone.goto(f"{address}/search.html?q={query.replace(' ', '+')}")
        phone.wait_for_selector(f"{FOUND} >> nth=0")
        phone.wait_for_function(
            "document.querySelector('.search-summary').innerText.match(/found/)"
        )
        target = phone.locator(FOUND).first.get_attribute("href") or ""
        first[query] = target.split("?")[0].split("#")[0]
    assert first == SEARCHES

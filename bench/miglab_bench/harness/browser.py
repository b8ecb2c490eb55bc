"""A Chromium that counts what a page downloads; needs Playwright, which the tests bring."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 60_000
QUIET_S, POLL_MS = 2.0, 100
PARTS = {"Document", "Font", "Image", "Script", "Stylesheet"}  # of a page; polls go on for ever


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium without a window.

    Raises:
        ImportError: Playwright is not installed.
        playwright.sync_api.Error: Chromium is not.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Download:
    """The bytes that a page's requests take on the wire, headers included, websockets not.

    Attributes:
        sizes: bytes by address; 0 for what the browser had kept.
    """

    def __init__(self, page: Page) -> None:
        self.sizes: dict[str, int] = defaultdict(int)
        self._page = page
        self._addresses: dict[str, str] = {}
        self._awaited_parts: set[str] = set()
        self._last_part_at = time.monotonic()
        session = page.context.new_cdp_session(page)
        session.on("Network.requestWillBeSent", self._note_request)
        session.on("Network.loadingFinished", self._note_end)
        session.on("Network.loadingFailed", self._note_failure)
        session.send("Network.enable")

    @property
    def total(self) -> int:
        """All bytes so far."""
        return sum(self.sizes.values())

    def wait_until_quiet(self) -> None:
        """Wait until no part has come for some seconds: JupyterLab loads some of itself late."""
        while self._awaited_parts or time.monotonic() < self._last_part_at + QUIET_S:
            self._page.wait_for_timeout(POLL_MS)

    def _note_request(self, event: dict[str, Any]) -> None:
        redirect = event.get("redirectResponse")
        if redirect:
            self.sizes[redirect["url"]] += int(redirect["encodedDataLength"])
        self._addresses[event["requestId"]] = event["request"]["url"]
        if event.get("type") in PARTS:
            self._awaited_parts.add(event["requestId"])

    def _note_end(self, event: dict[str, Any]) -> None:
        address = self._addresses.get(event["requestId"], "")
        self.sizes[address] += int(event["encodedDataLength"])
        self._note_failure(event)

    def _note_failure(self, event: dict[str, Any]) -> None:
        if event["requestId"] in self._awaited_parts:
            self._awaited_parts.remove(event["requestId"])
            self._last_part_at = time.monotonic()

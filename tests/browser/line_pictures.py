"""Pictures of the line: each state on each page, from one run.

``python -m tests.browser.line_pictures FOLDER`` starts a lab, answers the line's question with each
row of the table of words, and photographs home, spawn page and pool page in both sizes.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, sync_playwright
from tests.browser.conftest import ARGS, CHROMIUM
from tests.browser.people import sign_in
from tests.browser.test_line_words import BLANK, NOW, TABLE

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

PLACES = {"home": "hub/home", "spawn": "hub/spawn", "pool": "services/pool/"}
WINDOWS: tuple[dict[str, Any], ...] = (
    {"viewport": {"width": 1280, "height": 700}, "color_scheme": "light"},
    {"viewport": {"width": 390, "height": 760}, "color_scheme": "dark"},
)
ACTS = {
    "waiting": ["resume", "leave"],
    "asked": ["stay", "leave"],
    "aside": ["return", "leave"],
    "offered": ["take", "decline"],
    "starting": ["resume"],
    "holding": ["extend", "open", "release"],
    "warned": ["keepalive", "extend", "open", "release"],
    "releasing": [],
}


def answers() -> dict[str, str]:
    """The line's answer for the first row of each state, and for nothing, with moments of now."""
    shift = time.time() - NOW
    texts = {"none": json.dumps({"now": time.time(), "standings": []})}
    for state, fields, _ in TABLE:
        moments = {name: at + shift for name, at in fields.items() if isinstance(at, float)}
        standing = {**BLANK, "state": state, **fields, **moments}
        standing |= {"lease": 1, "extension_s": 3600, "acts": ACTS[state]}
        texts.setdefault(state, json.dumps({"now": time.time(), "standings": [standing]}))
    return texts


def answer(text: str, route: Route) -> None:
    """Answer a question with JSON."""
    route.fulfill(body=text, content_type="application/json")


def photograph(page: Page, lab: TemporaryLab, folder: Path, width: int) -> None:
    """Each state on each page; the line's own question is answered from the table."""
    for state, text in answers().items():
        page.unroute_all()
        for address in ("**/api/miglab/line/**", "**/services/pool/api/line"):
            page.route(address, partial(answer, text))
        for place, path in PLACES.items():
            page.goto(f"{lab.settings.public_url}{path}", wait_until="domcontentloaded")
            page.locator(".line-standing").wait_for(state="attached")
            page.screenshot(path=folder / f"{state}-{place}-{width}.png")


def take(lab: TemporaryLab, chromium: Browser, folder: Path) -> None:
    """All pictures, by one student."""
    for number, window in enumerate(WINDOWS):
        context = chromium.new_context(**window)
        context.set_default_timeout(60_000)
        page = context.new_page()
        sign_in(page, lab, f"ada{number}")
        photograph(page, lab, folder, window["viewport"]["width"])
        context.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with temporary_lab(docker=False) as running, sync_playwright() as playwright:
        take(running, playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS), target)

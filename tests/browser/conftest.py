"""A running lab and a Chromium to use it with, as a student would."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

CHROMIUM = Path("/usr/bin/chromium")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[Callable[[], Page]]:
    """Each call is another person's browser: no cookie is shared."""
    contexts: list[BrowserContext] = []

    def make() -> Page:
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        return context.new_page()

    expect.set_options(timeout=PATIENCE_MS)
    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_page: Callable[[], Page]) -> Page:
    return new_page()


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """A lab with one simulated A100-40GB and local students: seven 1g.5gb, and an eighth waits."""
    with temporary_lab(docker=False) as running:
        yield running

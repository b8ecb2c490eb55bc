"""A running lab and a Chromium to use it with, as a student would."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright import async_api
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.students import asking
from tests.unit.pool.applications.fakes import PREFIX

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

from .people import sign_in_as_staff
from .served import Open, ServedPages

CHROMIUM = Path("/usr/bin/chromium")
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 60_000
Come = Callable[..., Student]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[async_api.Browser]:
    """One Chromium for the tests that serve their page themselves.

    They, and the fixtures that they open pages with, run in the event loop of their module.
    """
    async_api.expect.set_options(timeout=PATIENCE_MS)
    async with async_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        await browser.close()


def is_error(message: async_api.ConsoleMessage) -> bool:
    """Whether a page logs what it should not; Chromium logs each refusal of ours as an error."""
    return message.type == "error" and not re.search("status of (409|422)", message.text)


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(lab: ServedPages, browser: async_api.Browser) -> AsyncIterator[Open]:
    """Opens a page as whom a token belongs to; whatever it logs as an error fails the test."""
    errors: list[str] = []
    contexts: list[async_api.BrowserContext] = []

    async def open_it(path: str = "", token: str = "admin-token", **window: Any) -> async_api.Page:
        context = await browser.new_context(**window)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        session = lab.sign_in.sessions.open(token, token)
        cookie = {"name": "service-pool-session", "domain": "localhost", "path": f"{PREFIX}/"}
        await context.add_cookies([{**cookie, "value": session}])  # type: ignore[list-item]
        page = await context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if is_error(m) else None)
        await page.goto(lab.url + path)
        return page

    yield open_it
    for context in contexts:
        await context.close()
    assert errors == []


@pytest.fixture
def window() -> dict[str, Any]:
    """How a browser is opened; a test module may override it."""
    return {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture
def new_page(chromium: Browser, window: dict[str, Any]) -> Iterator[Callable[[], Page]]:
    """Each call is another person's browser: no cookie is shared."""
    contexts: list[BrowserContext] = []

    def make() -> Page:
        context = chromium.new_context(**window)
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


@pytest.fixture
def come(lab: TemporaryLab) -> Iterator[Come]:
    """Make a student who asks for a slice, and works elsewhere; gone after the test."""
    students: list[Student] = []

    def ask(name: str, shape: str = "1g.5gb") -> Student:
        students.append(asking(lab, name, shape))
        return students[-1]

    yield ask
    for student in students:
        student.leave()
        student.close()
    wait_for(lambda: not lab.leases(), "the slices to be given back")


@pytest.fixture
def classmate(come: Come) -> Student:
    """Holds half of the GPU, so that nobody gets all of it."""
    student = come("bo", "3g.20gb")
    student.wait_until_ready()
    return student


@pytest.fixture
def admin(new_page: Callable[[], Page], lab: TemporaryLab) -> Page:
    return sign_in_as_staff(new_page(), lab, "admin")


@pytest.fixture
def instructor(new_page: Callable[[], Page], lab: TemporaryLab) -> Page:
    return sign_in_as_staff(new_page(), lab, "instructor")


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """A lab with one simulated A100-40GB and local students: seven 1g.5gb, and an eighth waits."""
    with temporary_lab(docker=False) as running:
        yield running

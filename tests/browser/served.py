"""The pool's pages, served by the test itself, and a browser for them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page
from tests.browser.people import VIOLATIONS, violations_in_words
from tests.pool_settings import changed
from tests.unit.pool.applications.conftest import LAB
from tests.unit.pool.applications.fakes import ACCESS, BOOK, PREFIX, SECRET, FakeTokens
from tests.unit.pool.conftest import World

from miglab_bench.harness.processes import free_ports
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.http.access.auth import SignIn

MARKS = [pytest.mark.browser, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]
Open = Callable[..., Awaitable[Page]]


class ServedPages:
    """The pages of a pool, while the block lasts."""

    reclaimer: Any = None

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.sign_in = SignIn(ACCESS, SECRET, BOOK, FakeTokens(ACCESS))
        self.port = free_ports()
        self.url = f"http://localhost:{self.port}{PREFIX}/"

    async def __aenter__(self) -> Self:
        self.runner = PoolRunner(self.pool, Metrics(), reclaimer=self.reclaimer)
        app = management_app(
            self.runner,
            self.sign_in,
            default_course="everyone",
            notices=("simulated GPUs",),
            course_titles={name: course.title for name, course in LAB.courses.items()},
        )
        config = uvicorn.Config(app, port=self.port, log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)
        self.task = asyncio.create_task(self.server._serve())
        while not self.server.started:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.runner.notifier.close()
        self.server.should_exit = True
        await self.task
        await self.runner.stop()


class PageLab(ServedPages):
    """Over a real pool, in which alice and bob have a slice each."""

    def __init__(self, folder: Path, **machine: Any) -> None:
        self.world = World(folder, changed(LAB, extensions=0), **machine)
        self.world.pass_time(time.time() - self.world.at)
        for user in ("alice", "bob"):
            self.world.run(user, course="ml")
        super().__init__(self.world.pool)

    async def __aexit__(self, *exception_info: object) -> None:
        await super().__aexit__(*exception_info)
        self.world.check()
        self.world.close()


async def focused(page: Page) -> str:
    """The words of what the keyboard is on."""
    return str(await page.evaluate("document.activeElement.innerText.trim()"))


async def problems(page: Page, *impacts: str) -> list[str]:
    """What axe finds, as `people.problems` has it."""
    results = await Axe().run(page, options=VIOLATIONS)
    return violations_in_words(results.response, impacts)


async def is_cut_off(page: Page, width: int, height: int = 900) -> bool:
    """Whether in a window of this size the page has to be scrolled sideways."""
    await page.set_viewport_size({"width": width, "height": height})
    return bool(await page.evaluate("document.documentElement.scrollWidth") > width)

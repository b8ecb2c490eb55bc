"""A browser for the pages that a test serves itself."""

from typing import Any

from playwright.async_api import Browser, BrowserContext
from tests.browser.conftest import PATIENCE_MS
from tests.unit.pool.http.fakes import PREFIX


async def signed_in(browser: Browser, session: str, **options: Any) -> BrowserContext:
    """Another person's browser, which holds this session of the pool's pages."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    cookie = {"name": "service-pool-session", "domain": "localhost", "path": f"{PREFIX}/"}
    await context.add_cookies([{**cookie, "value": session}])  # type: ignore[list-item]
    return context

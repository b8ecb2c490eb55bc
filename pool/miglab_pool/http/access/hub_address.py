"""Finds the path below which the hub serves everything, by asking the hub.

Only the hub's configuration knows this path, and an operator may change it.  The service begins
with the path in lab.toml, asks the hub, and serves its own pages below the hub's answer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from miglab_pool.http.access.hub_tokens import HubAccess
from miglab_pool.hub_answers import HubMisunderstood, hub_base_url

log = logging.getLogger(__name__)

UNTIL_KNOWN_S, KNOWN_S = 0.5, 60.0  # nobody signs in within the first


class HubAddress:
    """Asks the hub for its path, and announces changes.

    Args:
        hub: the hub's API, as this service.
        access: how to reach the hub, by lab.toml.
        moved: called with the new access whenever it changes.
    """

    def __init__(
        self,
        hub: httpx.AsyncClient,
        access: HubAccess,
        moved: Iterable[Callable[[HubAccess], None]],
    ) -> None:
        self.access = access
        self._hub, self._moved = hub, tuple(moved)
        self._logged_problem = ""  # the last odd answer, which the log is told of once

    async def follow(self) -> None:
        """Ask the hub again and again, for as long as the service runs."""
        while True:
            pause_s = KNOWN_S if await self.ask() else UNTIL_KNOWN_S
            await asyncio.sleep(pause_s)

    async def ask(self) -> bool:
        """Ask the hub once; return whether it said where it is."""
        try:
            answer = await self._hub.get(f"{self.access.hub_url}/", follow_redirects=False)
            base_url = hub_base_url(answer)
        except httpx.HTTPError:
            return False  # the hub is not up (yet); requests that need it say so
        except HubMisunderstood as error:
            if self._logged_problem != str(error):
                self._logged_problem = str(error)
                log.warning("whether the hub is where lab.toml says is not known: %s", error)
            return False
        self._logged_problem = ""
        if base_url != self.access.base_url:
            log.warning(
                "the hub at %s is below %s, not below %s: so are the pages of this service",
                self.access.hub_url, base_url, self.access.base_url,
            )  # fmt: skip
            self.access = self.access.below(base_url)
            self._hub.base_url = httpx.URL(self.access.api_url)
            for tell in self._moved:
                tell(self.access)
        return True


class BelowBaseUrl:
    """ASGI middleware that serves an application with and without the hub's path as prefix.

    Browsers use the prefix, through the proxy; the spawner and the command line do not.
    """

    def __init__(self, app: ASGIApp, access: Callable[[], HubAccess]) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the prefix as its root path."""
        root = self._access().base_url.rstrip("/")
        if root and scope.get("path", "").startswith(f"{root}/"):
            scope = {**scope, "root_path": root}
        await self._app(scope, receive, send)

"""The routes of the front end, below the server's own base URL.

| route | does |
|---|---|
| ``GET miglab/api/lease`` | how the lease stands (`miglab_jupyterlab.state.shown`) |
| ``POST miglab/api/extend``, ``stay``, ``release`` | asks the pool, answers the same |
| ``GET miglab/api/watch`` | a websocket: the same after each round; takes what a tab reports |

A websocket, and neither server-sent events nor a long poll: a browser opens only six plain
connections to one address, so the seventh tab of JupyterLab would hang.
"""

import json
from collections.abc import Mapping
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web, websocket

from miglab_jupyterlab.keeper import Keeper
from miglab_jupyterlab.pool import PoolRefused, PoolSilent

AUTH_RESOURCE = "miglab"
REPORT_BYTES = 1000  # a tab's report is two numbers
SILENT = "The pool of GPU slices does not answer. Try again in a moment; your work is not touched."


class _LeaseHandler(APIHandler):
    """What the routes share."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, keeper: Keeper) -> None:
        self.keeper = keeper


class ShowHandler(_LeaseHandler):
    """``GET miglab/api/lease``."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """How the lease stands."""
        self.finish(json.dumps(self.keeper.shown()))


class ActHandler(_LeaseHandler):
    """``POST miglab/api/(extend|stay|release)``."""

    @web.authenticated
    @authorized
    async def post(self, what: str) -> None:
        """Ask the pool; its refusal is passed on as it is."""
        try:
            answer = await self.keeper.act(what, _by_s(self.get_json_body()))
        except PoolRefused as refusal:
            self._refuse(refusal.status, refusal.reason, refusal.message)
        except PoolSilent:
            self._refuse(503, "pool-silent", SILENT)
        else:
            self.finish(json.dumps(answer))

    def _refuse(self, status: int, reason: str, message: str) -> None:
        self.set_status(status)
        self.finish(json.dumps({"reason": reason, "message": message}))


class WatchHandler(JupyterHandler, websocket.WebSocketHandler):
    """``GET miglab/api/watch``: one open tab."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, keeper: Keeper) -> None:
        self.keeper = keeper

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Become a websocket, for whoever may read."""
        user = self.current_user
        if not await ensure_async(
            self.authorizer.is_authorized(self, user, "read", self.auth_resource)
        ):
            raise web.HTTPError(403)
        await super().get(*args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        """The tab is there."""
        self.keeper.tabs.opened(self)
        self.keeper.listen(self._send)

    def on_message(self, message: str | bytes) -> None:
        """The tab reports; what cannot be read is passed over."""
        try:
            said = json.loads(message) if len(message) <= REPORT_BYTES else None
        except ValueError:
            return
        if isinstance(said, dict):
            self.keeper.told(self, said)

    def on_close(self) -> None:
        """The tab is gone."""
        self.keeper.unlisten(self._send)
        self.keeper.tabs.closed(self)

    def _send(self, shown: Mapping[str, Any]) -> None:
        try:
            self.write_message(json.dumps(shown))
        except websocket.WebSocketClosedError:  # the peer left without saying so
            self.keeper.unlisten(self._send)


def _by_s(body: object) -> float:
    """The seconds that an extension asks for; 0 where the body says nothing."""
    asked = body.get("by_s", 0.0) if isinstance(body, dict) else 0.0
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise web.HTTPError(400, "by_s must be a number of seconds")
    return float(asked)


def routes(keeper: Keeper) -> list[tuple[str, type, dict[str, Any]]]:
    """The handlers, below the server's base URL."""
    given = {"keeper": keeper}
    return [
        ("miglab/api/lease", ShowHandler, given),
        ("miglab/api/(extend|stay|release)", ActHandler, given),
        ("miglab/api/watch", WatchHandler, given),
    ]

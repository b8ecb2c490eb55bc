"""The routes of the front end, below the server's own base URL.

| route | does |
|---|---|
| ``GET miglab/api/lease`` | how the server stands (`miglab_jupyterlab.state.shown`) |
| ``POST miglab/api/extend``, ``keepalive``, ``release`` | of the lease: the same |
| ``POST miglab/api/cancel``, ``requeue``, ``forget`` | of the ticket: the same |
| ``POST miglab/api/move`` | asks the hub to restart the server with what is offered |
| ``POST miglab/api/to-cpu`` | asks the hub to restart it without its slice |
| ``POST miglab/api/read`` | puts a message away |
| ``POST miglab/api/notice-read`` | the student knows what the course's staff are told |
| ``GET miglab/api/course`` | the notebooks, and how far one is (`miglab_jupyterlab.course`) |
| ``GET miglab/api/watch`` | a websocket: the same after each round; takes what a tab reports |

A websocket, and neither server-sent events nor a long poll: a browser opens only six plain
connections to one address, so the seventh tab of JupyterLab would hang.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web, websocket

from miglab_jupyterlab.asking import PoolRefused, PoolSilent
from miglab_jupyterlab.keeper import Keeper
from miglab_jupyterlab.state import CPU

AUTH_RESOURCE = "miglab"
REPORT_BYTES = 1000  # a tab's report is two numbers
SILENT = "The pool of GPU slices does not answer. Try again in a moment; your work is not touched."
Told = dict[str, Any]
Show = Callable[[], Awaitable[Told] | Told]
Act = Callable[[Keeper, dict[str, Any]], Awaitable[Told] | Told]


class ShowHandler(APIHandler):
    """``GET miglab/api/lease`` and ``course``."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, show: Show) -> None:
        self.show = show

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """How the lease stands, or the notebooks."""
        self.finish(json.dumps(await _settled(self.show())))


class ActHandler(APIHandler):
    """``POST miglab/api/(extend|keepalive|…)``."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, keeper: Keeper) -> None:
        self.keeper = keeper

    @web.authenticated
    @authorized
    async def post(self, what: str) -> None:
        """Do it; a refusal is passed on as it is."""
        try:
            answer = await _settled(ACTS[what](self.keeper, _said(self.get_json_body())))
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


async def _settled(answer: Awaitable[Told] | Told) -> Told:
    return await answer if inspect.isawaitable(answer) else answer


def _said(body: object) -> dict[str, Any]:
    """The body's three values: ``by_s``, ``message`` and ``leave_unsaved``; missing ones are 0.

    Raises:
        HTTPError: one of them is not what it should be.
    """
    given = body if isinstance(body, dict) else {}
    by_s, message = given.get("by_s", 0.0), given.get("message", 0)
    if isinstance(by_s, bool) or not isinstance(by_s, int | float):
        raise web.HTTPError(400, "by_s must be a number of seconds")
    if isinstance(message, bool) or not isinstance(message, int):
        raise web.HTTPError(400, "message must be the number of a message")
    leave_unsaved = given.get("leave_unsaved") is True
    return {"by_s": float(by_s), "message": message, "leave_unsaved": leave_unsaved}


ACTS: dict[str, Act] = {
    "extend": lambda keeper, said: keeper.lease_act("extend", by_s=said["by_s"]),
    "keepalive": lambda keeper, _: keeper.lease_act("keepalive"),
    "release": lambda keeper, _: keeper.lease_act("release", reason="released in JupyterLab"),
    "cancel": lambda keeper, _: keeper.cancel(),
    "requeue": lambda keeper, _: keeper.requeue(),
    "notice-read": lambda keeper, _: keeper.notice_read(),
    "forget": lambda keeper, _: keeper.forget(),
    "move": lambda keeper, said: keeper.move(leave_unsaved=said["leave_unsaved"]),
    "to-cpu": lambda keeper, said: keeper.move(CPU, leave_unsaved=said["leave_unsaved"]),
    "read": lambda keeper, said: keeper.read(said["message"]),
}


def routes(keeper: Keeper, course: Callable[[], Told]) -> list[tuple[str, type, dict[str, Any]]]:
    """The handlers, below the server's base URL; files are read beside everything else."""
    given = {"keeper": keeper}
    return [
        ("miglab/api/lease", ShowHandler, {"show": keeper.shown}),
        ("miglab/api/course", ShowHandler, {"show": partial(asyncio.to_thread, course)}),
        (f"miglab/api/({'|'.join(ACTS)})", ActHandler, given),
        ("miglab/api/watch", WatchHandler, given),
    ]

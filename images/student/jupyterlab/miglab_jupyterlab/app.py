"""The extension as Jupyter Server knows it: settings, start and stop, and the front end's routes.

| route below the server's own base URL | does |
|---|---|
| ``GET miglab/api/lease`` | how the server stands (`miglab_jupyterlab.state.front_end_status`) |
| ``POST miglab/api/extend``, ``keepalive``, ``release`` | of the lease: the same |
| ``POST miglab/api/cancel``, ``requeue``, ``forget`` | of the ticket: the same |
| ``GET miglab/api/choices`` | the slices that this server can ask for |
| ``POST miglab/api/choose`` | asks for one of them: this server waits on CPU |
| ``POST miglab/api/move`` | asks the hub to restart the server with what is offered |
| ``POST miglab/api/to-cpu`` | asks the hub to restart it without its slice |
| ``POST miglab/api/read`` | puts a message away |
| ``POST miglab/api/away-read`` | puts away what happened while the student was away |
| ``POST miglab/api/notice-read`` | the student knows what the course's staff are told |
| ``GET miglab/api/course`` | the notebooks, and how far one is (`miglab_jupyterlab.course`) |
| ``GET miglab/api/watch`` | a websocket: the same after each round; takes what a tab reports |

A websocket, and neither server-sent events nor a long poll: a browser opens only six plain
connections to one address, so the seventh tab of JupyterLab would hang.
"""

import asyncio
import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.extension.application import ExtensionApp
from tornado import web, websocket
from traitlets import Float, Unicode, default

from miglab_jupyterlab.absence import Absence
from miglab_jupyterlab.asking import ApiClient, HubClient, PoolRefused, PoolSilent
from miglab_jupyterlab.course import course, measured_ages, progress
from miglab_jupyterlab.downloads import reduce_downloads
from miglab_jupyterlab.keeper import Keeper, OwnCourse
from miglab_jupyterlab.state import BORROW, CPU

PICTURE = ("title", "picture")  # of the shape, in words and as SVG: MIGLAB_SHAPE_TITLE …
AUTH_RESOURCE = "miglab"
LAST_LOOK = "miglab-last-look.json"  # in Jupyter's data folder, which is in the student's home
REPORT_BYTES = 1000  # a tab's report is two numbers
SILENT = "The pool of GPU slices does not answer. Try again in a moment; your work is not touched."
StatusJson = dict[str, Any]
Show = Callable[[], Awaitable[StatusJson] | StatusJson]
Action = Callable[[Keeper, dict[str, Any]], Awaitable[StatusJson] | StatusJson]


class LeaseExtension(ExtensionApp):
    """``c.LeaseExtension``: silent unless the spawner said where the pool is (``MIGLAB_API``)."""

    name = "miglab_jupyterlab"

    interval_s = Float(
        15.0,
        min=0.1,
        help="""Seconds between two reports to the pool.

        Unless it is set here, the lab's own word (``MIGLAB_REPORT_S``) counts.
        """,
    ).tag(config=True)
    warned_s = Float(
        5.0,
        min=0.1,
        help="""Seconds between two reports while the slice is about to be reclaimed.

        Open documents are saved when less than 20 s are left; keep it well below that.
        """,
    ).tag(config=True)
    longest_s = Float(
        60.0,
        min=0.1,
        help="Seconds: how far apart the attempts get while the pool does not answer.",
    ).tag(config=True)
    patience_s = Float(
        10.0, min=0.1, help="Seconds that one answer of the pool may take; then it is silent."
    ).tag(config=True)

    notebooks = Unicode(
        "notebooks",
        help="Folder of the course's notebooks, which the start page lists, below the server's.",
    ).tag(config=True)

    @default("interval_s")
    def _lab_interval_s(self) -> float:
        return float(os.environ.get("MIGLAB_REPORT_S") or 15.0)

    @default("warned_s")
    def _default_warned_s(self) -> float:
        return min(5.0, float(self.interval_s))

    def initialize_settings(self) -> None:
        """Create the keeper, and give the page its course and shape."""
        assert self.serverapp is not None  # linked before anything is initialised
        pool = self._pool()
        has_slice = pool is not None and bool(os.environ.get("MIGLAB_LEASE"))
        shape = os.environ.get("MIGLAB_SHAPE", CPU)
        shape = shape if has_slice or shape == BORROW else CPU
        settings = self.serverapp.web_app.settings
        title = os.environ.get("MIGLAB_COURSE_TITLE", "")
        root, folder = Path(self.serverapp.root_dir), self.notebooks.strip("/")
        self.course = partial(course, title, root, folder)
        name = os.environ.get("MIGLAB_COURSE", "")
        files = (partial(progress, root, folder), partial(measured_ages, root, folder))
        own_course = OwnCourse(name, *files) if name else None
        absence = Absence(Path(self.serverapp.data_dir) / LAST_LOOK)
        pace = (self.interval_s, self.warned_s, self.longest_s)
        self.keeper = Keeper(
            pool, self._hub(), shape, settings, absence, pace, self.log, own_course
        )
        if pool is not None and title:
            settings.setdefault("page_config_data", {})["miglabCourse"] = title
        if has_slice:
            picture = {key: os.environ.get(f"MIGLAB_SHAPE_{key.upper()}") for key in PICTURE}
            settings.setdefault("page_config_data", {})["miglabShape"] = picture

    def initialize_handlers(self) -> None:
        """Register the routes; Jupyter Server adds the base URL."""
        keeper = {"keeper": self.keeper}
        listed = partial(asyncio.to_thread, self.course)  # files are read beside everything else
        self.handlers.extend(
            [
                ("miglab/api/lease", ShowHandler, {"show": self.keeper.status}),
                ("miglab/api/course", ShowHandler, {"show": listed}),
                ("miglab/api/choices", ShowHandler, {"show": self.keeper.choices}),
                (f"miglab/api/({'|'.join(ACTIONS)})", ActionHandler, keeper),
                ("miglab/api/watch", WatchHandler, keeper),
            ]
        )
        if find_spec("nbgitpuller"):
            assert self.serverapp is not None
            from nbgitpuller._compat import get_base_handler

            get_base_handler(self.serverapp)  # before its handlers are imported
            from miglab_jupyterlab.git_handlers import git_routes

            self.handlers.extend(git_routes(Path(self.serverapp.root_dir)))

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """Start the keeper: the event loop runs now, and every extension has been loaded."""
        reduce_downloads(serverapp.web_app, serverapp.base_url)
        self.keeper.start()

    async def stop_extension(self) -> None:
        """Stop the keeper: the server ends."""
        await self.keeper.stop()

    def _pool(self) -> ApiClient | None:
        url, token = os.environ.get("MIGLAB_API", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")
        return ApiClient(url, token, self.patience_s) if url and token else None

    def _hub(self) -> HubClient | None:
        names = ("API_URL", "API_TOKEN", "USER", "SERVER_NAME")
        url, token, user, server = (os.environ.get(f"JUPYTERHUB_{name}", "") for name in names)
        return HubClient(url, token, self.patience_s, user, server) if url and user else None


class ShowHandler(APIHandler):
    """``GET miglab/api/lease``, ``choices`` and ``course``."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, show: Show) -> None:
        self.show = show

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with what `show` returns; pass on why the hub refuses, in its words."""
        await _finish_with(self, self.show)


class ActionHandler(APIHandler):
    """``POST miglab/api/(extend|keepalive|…)``."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, keeper: Keeper) -> None:
        self.keeper = keeper

    @web.authenticated
    @authorized
    async def post(self, action: str) -> None:
        """Carry the action out; pass on why the pool refuses, in its words."""
        body = _checked_body(self.get_json_body())
        await _finish_with(self, partial(ACTIONS[action], self.keeper, body))


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
        """Register the tab, and send it the status after each round."""
        self.keeper.tabs.add(self)
        self.keeper.listen(self._send)

    def on_message(self, message: str | bytes) -> None:
        """Take the report of a tab; ignore one that cannot be read."""
        try:
            report = json.loads(message) if len(message) <= REPORT_BYTES else None
        except ValueError:
            return
        if isinstance(report, dict):
            self.keeper.take_report(self, report)

    def on_close(self) -> None:
        """Unregister the tab."""
        self.keeper.unlisten(self._send)
        self.keeper.tabs.remove(self)

    def _send(self, status: Mapping[str, Any]) -> None:
        try:
            self.write_message(json.dumps(status))
        except websocket.WebSocketClosedError:  # the peer left without saying so
            self.keeper.unlisten(self._send)


async def _finish_with(handler: APIHandler, answer: Show) -> None:
    """Finish with an answer in JSON, or with why it was refused."""
    try:
        content = answer()
        content = await content if inspect.isawaitable(content) else content
    except PoolRefused as refusal:
        handler.set_status(refusal.status)
        content = {"reason": refusal.reason, "message": refusal.message}
    except PoolSilent:
        handler.set_status(503)
        content = {"reason": "pool-silent", "message": SILENT}
    handler.finish(json.dumps(content))


def _checked_body(body: object) -> dict[str, Any]:
    """Return the fields of a body that actions use; missing ones are 0, empty or false.

    Raises:
        HTTPError: one of them is not what it should be.
    """
    fields = body if isinstance(body, dict) else {}
    by_s, message = fields.get("by_s", 0.0), fields.get("message", 0)
    if isinstance(by_s, bool) or not isinstance(by_s, int | float):
        raise web.HTTPError(400, "by_s must be a number of seconds")
    if isinstance(message, bool) or not isinstance(message, int):
        raise web.HTTPError(400, "message must be the number of a message")
    choice = fields.get("choice", "")
    if not isinstance(choice, str):
        raise web.HTTPError(400, "choice must be a text")
    flags = {name: fields.get(name) is True for name in ("leave_unsaved", "only_if_free")}
    return {"by_s": float(by_s), "message": message, "choice": choice, **flags}


ACTIONS: dict[str, Action] = {
    "extend": lambda keeper, body: keeper.act_on_lease("extend", by_s=body["by_s"]),
    "keepalive": lambda keeper, _: keeper.act_on_lease("keepalive"),
    "release": lambda keeper, _: keeper.act_on_lease("release", reason="released in JupyterLab"),
    "cancel": lambda keeper, _: keeper.cancel(),
    "requeue": lambda keeper, _: keeper.requeue(),
    "notice-read": lambda keeper, _: keeper.notice_read(),
    "choose": lambda keeper, body: keeper.choose(body["choice"], only_if_free=body["only_if_free"]),
    "forget": lambda keeper, _: keeper.forget(),
    "move": lambda keeper, body: keeper.move(leave_unsaved=body["leave_unsaved"]),
    "to-cpu": lambda keeper, body: keeper.move(CPU, leave_unsaved=body["leave_unsaved"]),
    "away-read": lambda keeper, _: keeper.put_absence_away(),
    "read": lambda keeper, body: keeper.read(body["message"]),
}

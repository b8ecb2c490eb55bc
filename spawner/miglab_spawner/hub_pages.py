"""What the spawner adds to the hub's pages and API: to act on a wait, to move to a slice and back.

| route below ``/hub`` | does | for |
|---|---|---|
| ``GET api/miglab/line/:user/:server`` | where the user stands, as on every page | its user |
| ``GET api/miglab/waiting/:user/:server`` | how the server waits, and what is free | its user |
| ``POST api/miglab/waiting/:user/:server`` | ``{"shape": …}`` instead; empty: give up | its user |
| ``GET api/miglab/start/:user/:server`` | the last event of the start | its user |
| ``GET api/miglab/choose/:user/:server`` | the slices it can ask for | itself |
| ``POST api/miglab/choose/:user/:server`` | joins the queue while it runs on CPU | itself |
| ``POST api/miglab/move/:user/:server`` | restarts it with what is offered, or on CPU | itself |
| ``GET miglab/moving/:user/:server`` | a page that says so, until the start begins | its user |
| ``GET miglab/reading`` | the first notebook, to be read while waiting | users |
| ``POST api/miglab/runs/:user/:server`` | measures on a borrowed slice | itself |
| ``GET /user/…/static/lab/…`` | JupyterLab's files, while the server waits | anybody |
| ``GET miglab/static/…`` | the scripts of these pages | anybody |
| ``GET api/miglab/tokens`` | which running servers' tokens cannot see their lease | the pool |

Handlers of the hub and not of a service, as JupyterHub would have it: only the hub's own process
can speak to a start that is under way, and only it can end a server and begin it anew as one step.
"""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from jupyterhub.scopes import has_scope, scope_definitions
from jupyterhub.utils import format_exception, url_escape_path, url_path_join
from tornado import web
from tornado.iostream import StreamClosedError

from miglab_api import WEB
from miglab_api.base import SHAPE_MAX
from miglab_api.offers import CPU
from miglab_api.scopes import LEASE_SCOPE
from miglab_spawner import files_ahead, hub_users
from miglab_spawner.at_start import call_at_start
from miglab_spawner.backends import BackendError, RefusedByBackend
from miglab_spawner.borrower import RESULT_LIMIT
from miglab_spawner.mixin import CHOICES_A_MINUTE, MIGSpawnerMixin
from miglab_spawner.pages import reading
from miglab_spawner.pages.spawn_page import (
    BadChoice,
    SpawnChoice,
    from_form,
    needs_slice,
    parse_choice,
)
from miglab_spawner.pool_leases import PoolSpawnerMixin

TEMPLATES = Path(__file__).with_name("hub_templates")
SCRIPTS = Path(__file__).with_name("hub_scripts")
START_SCOPE = "start:servers" if "start:servers" in scope_definitions else "servers"  # JupyterHub 5
ANSWER_FIRST_S = 1.0  # the server passes our answer on to its browser before it ends

log = logging.getLogger(__name__)

_Server = tuple[str, str]


@dataclass
class _Move:
    """A restart of a server with or without a slice; holds its task, which asyncio does not."""

    shape: str = ""
    task: asyncio.Task[None] | None = None


_moves: dict[_Server, _Move] = {}


class ServerHandler(APIHandler):
    """The base of the routes: finds the server, checks the scope, passes refusals on."""

    def spawner_of(self, user_name: str, server_name: str, scope: str) -> MIGSpawnerMixin:
        """Return the server's spawner, if the request has this scope for it.

        A server's own request names its user as at its start.  If nobody is called that any more,
        it means itself: the token is the server's.

        Raises:
            HTTPError: 403, or 404 where there is no such server.
        """
        if self.find_user(user_name) is None and self._is_own_request(server_name):
            user_name = self.current_user.name
        server_scope = f"{scope}!server={user_name}/{server_name}"
        if not self.current_user or not has_scope(server_scope, self.parsed_scopes, db=self.db):
            raise web.HTTPError(403, "This is not your server.")
        user = self.find_user(user_name)
        if user is None or (server_name and server_name not in user.spawners):
            raise web.HTTPError(404, "There is no such server.")
        spawner = user.spawners[server_name]
        if not isinstance(spawner, MIGSpawnerMixin):
            raise web.HTTPError(404, "This server knows no slices.")
        return spawner

    def _is_own_request(self, server_name: str) -> bool:
        servers = getattr(self.current_user, "spawners", {})
        if server_name not in servers:
            return False
        token = self.get_auth_token()
        return bool(token) and token == servers[server_name].api_token

    def answer(self, body: object, status: int = 200) -> None:
        """Finish with JSON."""
        self.set_status(status)
        self.finish(json.dumps(body))

    def refuse(self, error: BackendError, spawner: MIGSpawnerMixin) -> None:
        """Finish with the backend's refusal, or say that the backend does not answer."""
        if isinstance(error, RefusedByBackend):
            self.answer({"reason": error.reason, "message": error.message}, error.status)
        else:
            log.warning("the %s did not help: %s", spawner.backend_name, error)
            problem = spawner.silence.partition(".")[0]
            message = f"{problem}. Try again in a moment; nothing was changed."
            self.answer({"reason": f"{spawner.backend_name}-unreachable", "message": message}, 503)


class LineHandler(ServerHandler):
    """``miglab/line/:user/:server``: the line, relayed, as the pool's cookie is not the hub's."""

    async def get(self, user_name: str, server_name: str) -> None:
        """Answer with the `Line` of the user."""
        spawner = self.spawner_of(user_name, server_name, "read:servers")
        try:
            line = await spawner.backend.line(spawner.user.name, server_name)
        except BackendError as error:
            self.refuse(error, spawner)
        else:
            self.set_header("Content-Type", "application/json")
            self.finish(line.model_dump_json())


class WaitingHandler(ServerHandler):
    """``miglab/waiting/:user/:server``: the waiting page."""

    async def get(self, user_name: str, server_name: str) -> None:
        """Answer with the state of the wait; null if the server does not wait."""
        spawner = self.spawner_of(user_name, server_name, "read:servers")
        try:
            self.answer(await spawner.waiting_status())
        except BackendError as error:
            self.refuse(error, spawner)

    async def post(self, user_name: str, server_name: str) -> None:
        """Continue the start with another shape, or cancel it."""
        spawner = self.spawner_of(user_name, server_name, START_SCOPE)
        try:
            shape = _requested_shape(self.get_json_body())
            await spawner.switch_to(shape)
        except BackendError as error:
            self.refuse(error, spawner)
        else:
            if not shape:
                await _wait_for_start_end(spawner)
            self.answer({}, 202)


class StartHandler(ServerHandler):
    """``miglab/start/:user/:server``: the last event of a start, where no stream can bring it."""

    async def get(self, user_name: str, server_name: str) -> None:
        """Answer with the event that JupyterHub's stream would have sent last.

        ``ready`` tells the page to load anew: the server runs, or nothing starts any more.
        """
        spawner = self.spawner_of(user_name, server_name, "read:servers")
        future = spawner._spawn_future
        if spawner.pending == "spawn":
            self.answer(spawner.last_event() or {"progress": 0})
        elif future is not None and future.done() and not future.cancelled() and future.exception():
            message, html_message = format_exception(future.exception())
            html = {"html_message": html_message} if html_message else {}
            failure = f"Spawn failed: {message}"
            self.answer({"progress": 100, "failed": True, "message": failure, **html})
        else:
            self.answer({"progress": 100, "ready": True})


class ChooseHandler(ServerHandler):
    """``miglab/choose/:user/:server``: from a running server without a GPU into the queue."""

    async def get(self, user_name: str, server_name: str) -> None:
        """Answer with the slices that can be chosen, in the words of the spawn page."""
        spawner = self.spawner_of(user_name, server_name, LEASE_SCOPE)
        try:
            self.answer(await spawner.slice_choices())
        except BackendError as error:
            self.refuse(error, spawner)

    async def post(self, user_name: str, server_name: str) -> None:
        """Join the queue, with ``only_if_free`` only if the slice is granted at once."""
        spawner = self.spawner_of(user_name, server_name, LEASE_SCOPE)
        if not spawner.ready or (spawner.user.name, server_name) in _moves:
            raise web.HTTPError(409, "The server is starting or stopping already.")
        if not spawner.may_choose():
            message = (
                f"You have chosen {CHOICES_A_MINUTE} times in a minute. Try again in a minute."
            )
            self.answer({"reason": "too-often", "message": message}, 409)
            return
        choice, only_if_free = _requested_slice(self.get_json_body())
        try:
            ticket = await spawner.request_slice(choice, only_if_free=only_if_free)
        except BackendError as error:
            self.refuse(error, spawner)
        else:
            self.answer({"ticket": ticket.id})


class MoveHandler(ServerHandler):
    """``miglab/move/:user/:server``: to the slice offered; with ``{"shape": "cpu"}`` from it."""

    async def post(self, user_name: str, server_name: str) -> None:
        """Take the offer, then restart the server; after the offer is taken nothing is refused.

        What the server held is given back when it has ended, as after every end.
        """
        spawner = self.spawner_of(user_name, server_name, LEASE_SCOPE)
        key = (spawner.user.name, server_name)
        if key not in _moves:
            if not spawner.ready:
                raise web.HTTPError(409, "The server is starting or stopping already.")
            _moves[key] = move = _Move()
            try:
                is_back = self.get_json_body() == {"shape": CPU}
                options = spawner.options_without_gpu() if is_back else await spawner.take_offer()
            except BaseException as error:
                del _moves[key]
                if not isinstance(error, BackendError):
                    raise
                self.refuse(error, spawner)
                return
            move.shape = str(options["shape"])
            move.task = asyncio.create_task(self._move(key, spawner, options))
        path = "/".join(url_escape_path(part) for part in key)  # it ends with / for the default one
        self.answer({"url": f"{self.hub.base_url}miglab/moving/{path}"}, 202)

    async def _move(self, key: _Server, spawner: Any, options: dict[str, Any]) -> None:
        """Restart the server; the hub's page shows a failure, and an unused lease expires."""
        try:
            await asyncio.sleep(ANSWER_FIRST_S)
            await (await self.stop_single_user(spawner.user, spawner.name))
            await self.spawn_single_user(spawner.user, spawner.name, options=options)
        except Exception:  # a task's outer frame
            log.exception("%s's server did not get to %s", spawner.user.name, options["shape"])
        finally:
            del _moves[key]


class MovingHandler(BaseHandler):
    """``/hub/miglab/moving/:user/:server``: the page between the old server and the new one."""

    @web.authenticated
    async def get(self, user_name: str, server_name: str) -> None:
        """Show the page until the new server starts, then redirect to JupyterHub's own page."""
        move = _moves.get((user_name, server_name))
        user = self.find_user(user_name)
        if user is None or user.name != self.current_user.name:
            raise web.HTTPError(404, "There is no such server of yours.")
        is_begun = server_name in user.spawners and user.spawners[server_name].pending == "spawn"
        if move is None or is_begun:
            parts = ("spawn-pending", user.escaped_name, url_escape_path(server_name))
            page = url_path_join(self.hub.base_url, *parts)
            self.redirect(f"{page}?{self.request.query}" if self.request.query else page)
            return
        self.finish(await self.render_template("moving.html", shape=move.shape))


class ReadingHandler(BaseHandler):
    """``/hub/miglab/reading``: the first notebook, as text."""

    @web.authenticated
    async def get(self) -> None:
        """Show the first notebook of `SpawnerTraits.reading_dir`; 404 if there is none."""
        spawner = self.current_user.spawner
        notebook = spawner.first_notebook if isinstance(spawner, MIGSpawnerMixin) else None
        if notebook is None:
            raise web.HTTPError(404, "There is no notebook to read here.")
        try:
            html = reading.render_notebook(notebook)
        except (OSError, ValueError) as error:
            raise web.HTTPError(404, f"The first notebook cannot be read: {error}") from error
        self.finish(await self.render_template("reading.html", notebook=html))


@web.stream_request_body
class RunHandler(ServerHandler):
    """``miglab/runs/:user/:server?shape=…``: measure on a borrowed slice.

    The body is a job, which the hub does not read; the answer is a stream of lines
    (`labkit.run.borrowed` names them) that ends with the job.  Who hangs up gives the job up.
    Only the hub can make a container from a student's image by the spawner's own settings.
    """

    _run: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Refuse before the first byte of the job is read."""
        await super().prepare()
        self._job = bytearray()
        user_name, server_name = self.path_args
        spawner = self.spawner_of(user_name, server_name, LEASE_SCOPE)
        if not isinstance(spawner, PoolSpawnerMixin) or not spawner.borrows:
            raise web.HTTPError(409, "This server does not borrow: it measures on what it holds.")
        if int(self.request.headers.get("Content-Length", 0)) > RESULT_LIMIT:
            raise web.HTTPError(413, "This job cannot be sent: it is larger than 16 MiB.")
        self._spawner = spawner
        connection: Any = self.request.connection
        connection.set_max_body_size(RESULT_LIMIT)

    def data_received(self, chunk: bytes) -> None:
        """Collect a part of the job."""
        self._job += chunk

    async def post(self, _user_name: str, _server_name: str) -> None:
        """Run one job to its end."""
        shape = self.get_query_argument("shape")[:SHAPE_MAX]
        self.set_header("Content-Type", "application/x-ndjson")
        self._run = asyncio.create_task(
            self._spawner.borrower.run(shape, bytes(self._job), self._write_line)
        )
        with contextlib.suppress(asyncio.CancelledError, StreamClosedError):
            await self._run
        self.finish()

    def on_connection_close(self) -> None:
        """Cancel the run, because its student has closed the connection."""
        super().on_connection_close()
        if self._run is not None:
            self._run.cancel()

    async def _write_line(self, line: bytes) -> None:
        """Write a line of the answer, and wait until the client has taken it."""
        self.write(line + b"\n")
        await self.flush()


class TokensHandler(APIHandler):
    """``miglab/tokens``: whether servers can see their leases, as this hub has made their tokens.

    A site may narrow what servers and users may do at any time; the servers notice, and say so to
    nobody.
    """

    async def get(self) -> None:
        """Answer with the number of running servers, and those whose tokens lack the scope."""
        if not has_scope(LEASE_SCOPE, self.parsed_scopes, db=self.db):
            raise web.HTTPError(403, f"This needs the scope {LEASE_SCOPE}.")
        spawners = [
            spawner
            for user in self.users.values()
            for spawner in user.spawners.values()
            if isinstance(spawner, MIGSpawnerMixin) and spawner.ready
        ]
        lacking = sorted(
            f"{spawner.user.name}/{spawner.name}"
            for spawner in spawners
            if not spawner.token_has_scope()
        )
        self.finish(json.dumps({"servers": len(spawners), "lacking": lacking}))


async def _wait_for_start_end(spawner: Any) -> None:
    """Wait until a cancelled start is over, so that the spawn page offers a new one."""
    if spawner._spawn_future is not None:
        await asyncio.wait([spawner._spawn_future])


def _requested_shape(body: object) -> str:
    shape = body.get("shape") if isinstance(body, dict) else None
    if not isinstance(shape, str) or len(shape) > SHAPE_MAX:
        raise web.HTTPError(400, "“shape” must be a short text.")
    return shape


def _requested_slice(body: object) -> tuple[SpawnChoice, bool]:
    """Return the choice of a request, and whether it is to be refused instead of waiting."""
    fields = body if isinstance(body, dict) else {}
    value, only_if_free = fields.get("choice"), fields.get("only_if_free", False)
    if not isinstance(value, str) or not isinstance(only_if_free, bool):
        raise web.HTTPError(400, "“choice” must be a text, and “only_if_free” true or false.")
    try:
        choice = parse_choice(from_form({"shape": [value]}))
    except BadChoice as error:
        raise web.HTTPError(400, str(error)) from error
    if not choice.shape or not needs_slice(choice.shape):
        raise web.HTTPError(400, "“choice” is no slice.")
    return choice, only_if_free


HANDLERS = [
    (r"/api/miglab/line/([^/]+)/([^/]*)", LineHandler),
    (r"/miglab/static/api/(.*)", CacheControlStaticFilesHandler, {"path": str(WEB)}),
    (r"/miglab/static/(.*)", CacheControlStaticFilesHandler, {"path": str(SCRIPTS)}),
    (r"/api/miglab/waiting/([^/]+)/([^/]*)", WaitingHandler),
    (r"/api/miglab/start/([^/]+)/([^/]*)", StartHandler),
    (r"/api/miglab/choose/([^/]+)/([^/]*)", ChooseHandler),
    (r"/api/miglab/move/([^/]+)/([^/]*)", MoveHandler),
    (r"/api/miglab/runs/([^/]+)/([^/]*)", RunHandler),
    (r"/api/miglab/tokens", TokensHandler),
    (r"/miglab/moving/([^/]+)/([^/]*)", MovingHandler),
    (r"/miglab/reading", ReadingHandler),
]


def add_hub_pages(c: Any) -> None:
    """Add the routes and pages to a hub; templates of the site take precedence.

    Users can be deleted and renamed whatever their servers do.
    """
    hub_users.replace_user_handlers()
    call_at_start(c, _add_pages)


def _add_pages(app: Any) -> None:
    files_ahead.serve(app)
    app.extra_handlers = [*app.extra_handlers, *HANDLERS]
    (jupyterhubs, *_) = app._template_paths_default()  # the hub looks there last
    paths = [path for path in app.template_paths if path != jupyterhubs]
    app.template_paths = [*paths, str(TEMPLATES)]

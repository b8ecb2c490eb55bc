"""What the spawner adds to the hub's pages and API: to act on a wait, and to move to a slice.

| route below ``/hub/api`` | does | for |
|---|---|---|
| ``GET miglab/waiting/:user/:server`` | how the server waits, and what is free instead | its user |
| ``POST miglab/waiting/:user/:server`` | ``{"shape": …}`` instead; empty: give up | its user |
| ``POST miglab/move/:user/:server`` | restarts the server with what is offered to it | itself |

Handlers of the hub and not of a service, as JupyterHub would have it: only the hub's own process
can speak to a start that is under way, and only it can end a server and begin it anew as one step.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import has_scope
from jupyterhub.utils import url_escape_path, url_path_join
from tornado import web

from miglab_spawner.client import PoolError, Refused
from miglab_spawner.hub_setup import LEASE_SCOPE
from miglab_spawner.messages import SHAPE_MAX
from miglab_spawner.mig_spawner import MIGSpawnerMixin

TEMPLATES = Path(__file__).with_name("hub_templates")
ANSWER_FIRST_S = 1.0  # the server passes our answer on to its browser before it ends
_POOL_SILENT = "The GPU pool does not answer. Try again in a moment; nothing was changed."

log = logging.getLogger(__name__)
_moves: set[asyncio.Task[None]] = set()


class _ServerHandler(APIHandler):  # type: ignore[misc]  # base is untyped
    """What the routes share: whose server it is, and refusals in the pool's words."""

    def spawner_of(self, user_name: str, server_name: str, scope: str) -> MIGSpawnerMixin:
        """The server's spawner, for whoever has this scope over it.

        Raises:
            HTTPError: 403, or 404 where there is no such server.
        """
        wanted = f"{scope}!server={user_name}/{server_name}"
        if not self.current_user or not has_scope(wanted, self.parsed_scopes, db=self.db):
            raise web.HTTPError(403, "This is not your server.")
        user = self.find_user(user_name)
        if user is None or (server_name and server_name not in user.spawners):
            raise web.HTTPError(404, "There is no such server.")
        spawner = user.spawners[server_name]
        if not isinstance(spawner, MIGSpawnerMixin):
            raise web.HTTPError(404, "This server knows no slices.")
        return spawner

    def answer(self, body: object, status: int = 200) -> None:
        """Finish with JSON."""
        self.set_status(status)
        self.finish(json.dumps(body))

    def refuse(self, error: PoolError) -> None:
        """Finish with the pool's no, or with its silence."""
        if isinstance(error, Refused):
            self.answer({"reason": error.reason, "message": error.message}, error.status)
        else:
            log.warning("the pool did not help: %s", error)
            self.answer({"reason": "pool-unreachable", "message": _POOL_SILENT}, 503)


class WaitingHandler(_ServerHandler):
    """``miglab/waiting/:user/:server``: the waiting page."""

    async def get(self, user_name: str, server_name: str) -> None:
        """How the server waits; null if it does not."""
        spawner = self.spawner_of(user_name, server_name, "read:servers")
        try:
            self.answer(await spawner.waiting())
        except PoolError as error:
            self.refuse(error)

    async def post(self, user_name: str, server_name: str) -> None:
        """Go on with another shape, or give up."""
        spawner = self.spawner_of(user_name, server_name, "start:servers")
        try:
            await spawner.instead(_shape(self.get_json_body()))
        except PoolError as error:
            self.refuse(error)
        else:
            self.answer({}, 202)


class MoveHandler(_ServerHandler):
    """``miglab/move/:user/:server``: from a server without a GPU to the slice that is offered."""

    async def post(self, user_name: str, server_name: str) -> None:
        """Take the offer, which is the last moment to refuse; then end the server and begin it."""
        spawner = self.spawner_of(user_name, server_name, LEASE_SCOPE)
        if not spawner.is_moving:
            if not spawner.ready:
                raise web.HTTPError(409, "The server is starting or stopping already.")
            spawner.is_moving = True
            try:
                options = await spawner.take_offer()
            except PoolError as error:
                spawner.is_moving = False
                self.refuse(error)
                return
            self._begin(spawner, options)
        self.answer({"url": self._waiting_page(spawner)}, 202)

    def _begin(self, spawner: Any, options: dict[str, Any]) -> None:
        move = asyncio.create_task(self._move(spawner, options))
        _moves.add(move)  # the loop itself keeps no hold of it
        move.add_done_callback(_moves.discard)

    async def _move(self, spawner: Any, options: dict[str, Any]) -> None:
        """What fails here the student reads on the hub's page; the lease lapses by itself."""
        user, name = spawner.user, spawner.name
        try:
            await asyncio.sleep(ANSWER_FIRST_S)
            await (await self.stop_single_user(user, name))
            await self.spawn_single_user(user, name, options=options)
        except Exception:  # a task's outer frame
            log.exception("%s's server did not get to its slice", user.name)
        finally:
            spawner.is_moving, spawner.moves_to = False, ""

    def _waiting_page(self, spawner: Any) -> str:
        parts = ("spawn-pending", spawner.user.escaped_name, url_escape_path(spawner.name))
        return str(url_path_join(self.hub.base_url, *parts))


def _shape(body: object) -> str:
    shape = body.get("shape") if isinstance(body, dict) else None
    if not isinstance(shape, str) or len(shape) > SHAPE_MAX:
        raise web.HTTPError(400, "“shape” must be a short text.")
    return shape


HANDLERS = [
    (r"/api/miglab/waiting/([^/]+)/([^/]*)", WaitingHandler),
    (r"/api/miglab/move/([^/]+)/([^/]*)", MoveHandler),
]


def add_to(c: Any) -> None:
    """Give a hub the routes and the two pages that use them; a page of the site's own stays."""
    hub = c.JupyterHub
    hub.setdefault("extra_handlers", []).extend(HANDLERS)
    hub.setdefault("template_paths", []).append(str(TEMPLATES))

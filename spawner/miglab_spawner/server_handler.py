"""What the spawner's routes of the hub's API share: whose server it is, and how a no is said."""

import json
import logging

from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import has_scope
from tornado import web

from miglab_spawner.backends.base import BackendError, RefusedByBackend
from miglab_spawner.mixin import MIGSpawnerMixin

log = logging.getLogger(__name__)


class ServerHandler(APIHandler):
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

    def refuse(self, error: BackendError, spawner: MIGSpawnerMixin) -> None:
        """Finish with the backend's no, or with its silence."""
        if isinstance(error, RefusedByBackend):
            self.answer({"reason": error.reason, "message": error.message}, error.status)
        else:
            log.warning("the %s did not help: %s", spawner.backend_name, error)
            who = spawner.silence.partition(".")[0]
            said = f"{who}. Try again in a moment; nothing was changed."
            self.answer({"reason": f"{spawner.backend_name}-unreachable", "message": said}, 503)

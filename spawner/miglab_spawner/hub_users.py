"""What JupyterHub's own API does to users, where it forgets their servers (5.5 and 6.1).

Deleting: JupyterHub stops the default server if it runs; then it refuses with HTTP 500 to delete a
user of whom a server is still active: one that starts, one that stops, a named one
(`User._delete_spawner`).  A start that waits for a slice can be active for an hour.

Identity: ``api/user`` says nobody's id, by which the pool knows people.

Renaming: a running server's token has scopes that name the server by its user's old name, and so
may nothing any more.  A backend that knows people by name refuses by `rename_refusal`.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from jupyterhub import apihandlers, orm
from jupyterhub.apihandlers.users import SelfAPIHandler, UserAPIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

from miglab_api.base import USER_ID_KEY
from miglab_spawner.mixin import MIGSpawnerMixin
from miglab_spawner.people import user_id_of

LONGEST_END_S = 60.0


class SelfHandler(SelfAPIHandler):
    """JupyterHub's ``api/user``, which also says who a user is, whatever they are called."""

    def user_model(self, user: Any) -> dict[str, Any]:
        """Return JupyterHub's model of the user, with the user id."""
        return {**super().user_model(user), USER_ID_KEY: user_id_of(self.db, user.id)}


class UserHandler(UserAPIHandler):
    """JupyterHub's ``api/users/:user``, also for users with active servers."""

    @needs_scope("delete:users")
    async def delete(self, user_name: str) -> None:
        """End the user's servers, then delete the user as JupyterHub does.

        Raises:
            HTTPError: 400, a server did not end in time; what JupyterHub raises.
        """
        user = self.find_user(user_name)
        if user is not None and user.name != self.current_user.name:
            for spawner in list(user.spawners.values()):
                await self._end_server(user, spawner)
        await super().delete(user_name)

    @needs_scope("admin:users")
    async def patch(self, user_name: str) -> None:
        """Rename as JupyterHub does, and pass the new name on to tokens and pool.

        A pool that does not answer is told by the next start, or the next look at the spawn page.

        Raises:
            HTTPError: 409, a server of theirs cannot bear another name now; what JupyterHub raises.
        """
        user = self.find_user(user_name)
        if user is not None and self._asks_for_rename(user_name):
            _refuse_impossible_rename(user)
        await super().patch(user_name)
        if user is None or user.name == user_name:
            return
        for spawner in user.spawners.values():
            _rename_in_token(self.db, spawner, user_name)
        for spawner in list(user.spawners.values()):
            if isinstance(spawner, MIGSpawnerMixin):
                await spawner.report_user_name()
                return

    def _asks_for_rename(self, user_name: str) -> bool:
        data = self.get_json_body()
        return isinstance(data, dict) and data.get("name", user_name) != user_name

    async def _end_server(self, user: Any, spawner: Any) -> None:
        start = spawner._spawn_future
        if start is not None and not start.done():
            start.cancel()
            await self._await_end(spawner, asyncio.wait([start]))
        if spawner.pending == "stop":
            stop = spawner._stop_future
        else:
            stop = await self.stop_single_user(user, spawner.name) if spawner.active else None
        if stop is not None:
            await self._await_end(spawner, asyncio.wait([stop]))

    async def _await_end(self, spawner: Any, end: Awaitable[object]) -> None:
        try:
            await asyncio.wait_for(end, LONGEST_END_S)
        except TimeoutError:
            message = f"{spawner._log_name} has not stopped yet. Delete the user again in a minute."
            raise web.HTTPError(400, message) from None


def _refuse_impossible_rename(user: Any) -> None:
    """Refuse a new name that a server of the user's cannot bear now.

    Raises:
        HTTPError: 409, in the words of that server's spawner.
    """
    for spawner in user.spawners.values():
        if isinstance(spawner, MIGSpawnerMixin) and (message := spawner.rename_refusal()):
            raise web.HTTPError(409, message)


def _rename_in_token(db: Any, spawner: Any, old_name: str) -> None:
    """Replace the user's old name in the scopes of a server's token."""
    token = orm.APIToken.find(db, spawner.api_token) if spawner.api_token else None
    if token is None:
        return
    before, now = f"!server={old_name}/", f"!server={spawner.user.name}/"
    token.scopes = [scope.replace(before, now) for scope in token.scopes]
    db.commit()


def replace_user_handlers() -> None:
    """Replace JupyterHub's handlers of users by ours; JupyterHub has no setting for that."""
    handlers = {SelfAPIHandler: SelfHandler, UserAPIHandler: UserHandler}
    apihandlers.default_handlers[:] = [
        (path, handlers.get(handler, handler), *arguments)
        for path, handler, *arguments in apihandlers.default_handlers
    ]

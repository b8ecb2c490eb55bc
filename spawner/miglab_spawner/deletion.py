"""Deleting a user ends the user's servers first, whatever these do.

JupyterHub stops the default server if it runs; then it refuses with HTTP 500 to delete a user of
whom a server is still active: one that starts, one that stops, a named one (5.5 and 6.1,
`User._delete_spawner`).  A start that waits for a slice can be active for an hour.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from jupyterhub import apihandlers
from jupyterhub.apihandlers.users import UserAPIHandler
from jupyterhub.scopes import needs_scope
from tornado import web

LONGEST_END_S = 60.0


class UserDeletionHandler(UserAPIHandler):
    """JupyterHub's ``api/users/:user``; only the deletion differs."""

    @needs_scope("delete:users")
    async def delete(self, user_name: str) -> None:
        """End the user's servers, then delete the user as JupyterHub does.

        Raises:
            HTTPError: 400, a server did not end in time; what JupyterHub raises.
        """
        user = self.find_user(user_name)
        if user is not None and user.name != self.current_user.name:
            for spawner in list(user.spawners.values()):
                await self._end(user, spawner)
        await super().delete(user_name)

    async def _end(self, user: Any, spawner: Any) -> None:
        start = spawner._spawn_future
        if start is not None and not start.done():
            start.cancel()
            await self._in_time(spawner, asyncio.wait([start]))
        if spawner.pending == "stop":
            stop = spawner._stop_future
        else:
            stop = await self.stop_single_user(user, spawner.name) if spawner.active else None
        if stop is not None:
            await self._in_time(spawner, asyncio.wait([stop]))

    async def _in_time(self, spawner: Any, end: Awaitable[object]) -> None:
        try:
            await asyncio.wait_for(end, LONGEST_END_S)
        except TimeoutError:
            message = f"{spawner._log_name} has not stopped yet. Delete the user again in a minute."
            raise web.HTTPError(400, message) from None


def add_to_hub() -> None:
    """Answer deletions by our handler; JupyterHub knows no way to configure one of its own."""
    apihandlers.default_handlers[:] = [
        (path, UserDeletionHandler if handler is UserAPIHandler else handler, *others)
        for path, handler, *others in apihandlers.default_handlers
    ]

"""The scopes of a server's own token: what the site gives, and the lease of that very server."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from jupyterhub import orm
from jupyterhub.scopes import scope_definitions

from miglab_api.scopes import LEASE_SCOPE

TokenScopes = Callable[[Any], list[str] | Awaitable[list[str]]]


def with_lease_scope(site_scopes: Any) -> TokenScopes:
    """Return the scopes of a server's own token: the site's, and the lease of that server.

    Args:
        site_scopes: of the site's `server_token_scopes`, a list or a callable; empty for what the
            hub's role ``server`` has, as in JupyterHub.

    Returns:
        A callable, as JupyterHub takes it.  A hub that does not define the scope gives its servers
        no more than the site does.
    """

    def add_lease(scopes: Iterable[str], spawner: Any) -> list[str]:
        lease = [f"{LEASE_SCOPE}!server"] if LEASE_SCOPE in scope_definitions else []
        return [*(scopes or orm.Role.find(spawner.user.db, "server").scopes), *lease]

    async def add_lease_later(scopes: Awaitable[Iterable[str]], spawner: Any) -> list[str]:
        return add_lease(await scopes, spawner)

    def token_scopes(spawner: Any) -> list[str] | Awaitable[list[str]]:
        # Not a coroutine by itself: while JupyterHub waits here, it loses the server's address,
        # which is not yet in its database (6.1 and 5.5, with `slow_spawn_timeout` 0).
        scopes = site_scopes(spawner) if callable(site_scopes) else site_scopes
        add = add_lease_later if inspect.isawaitable(scopes) else add_lease
        return add(scopes, spawner)

    return token_scopes

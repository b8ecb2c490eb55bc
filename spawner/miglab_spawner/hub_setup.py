"""What a hub must be told besides its spawner class.

from miglab_spawner.hub_setup import set_up
set_up(c, pool="http://127.0.0.1:8003", token_file="/srv/miglab/.lab/service.token")

Everything is added to what the site has, and nothing is assigned.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyterhub.user import UserDict

from miglab_api.scopes import (
    ADMIN_SCOPE,
    CUSTOM_SCOPES,
    LEASE_SCOPE,
    POOL_SCOPES,
    SERVICE,
    SERVICE_SCOPE,
    STAFF_SCOPE,
)
from miglab_spawner import hub_pages
from miglab_spawner.at_start import call_at_start
from miglab_spawner.mixin import MIGSpawnerMixin

POOL_ROLE = {"name": "miglab-pool", "scopes": list(POOL_SCOPES), "services": [SERVICE]}
NO_INTERNAL_SSL = (
    "miglab does not work with c.JupyterHub.internal_ssl: the pool service has no certificate of "
    "this hub. Set it to False, or take miglab's set_up out of the configuration."
)

_count_active_users = UserDict.count_active_users


def set_up(c: Any, pool: str = "", token_file: str | Path = "") -> None:
    """Add what the spawner needs of its hub; the hub starts with both, ours and the site's.

    - the custom scope, the users' right to it, and the pool service with its role;
    - students who wait for a slice count neither as active nor as starting servers;
    - ``cleanup_servers`` is False unless the site sets it: a hub restart must not end servers;
    - what a student can do who waits, on the hub's own pages.

    Args:
        c: JupyterHub's configuration object.
        pool: the origin of the pool's management listener, as hub and proxy reach it; empty if the
            site defines the service by itself, or needs none.
        token_file: the file with the service's own hub token; needed with ``pool``.
    """
    call_at_start(c, refuse_internal_ssl)
    call_at_start(c, add_scopes)
    if pool:
        call_at_start(c, PoolService(pool.rstrip("/"), Path(token_file)))
    c.JupyterHub.setdefault("cleanup_servers", False)
    exclude_waiting_servers()
    hub_pages.add_hub_pages(c)


def refuse_internal_ssl(app: Any) -> None:
    """Stop a hub whose parts talk by TLS among themselves."""
    if app.internal_ssl:
        app.log.critical(NO_INTERNAL_SSL)
        app.exit(1)


def add_scopes(app: Any) -> None:
    """Define the custom scopes, and let every user, and so every server, have its lease."""
    app.custom_scopes = {**CUSTOM_SCOPES, **app.custom_scopes}
    add_user_scopes(app, f"{LEASE_SCOPE}!user")


def add_user_scopes(app: Any, *scopes: str) -> None:
    """Give every user these scopes beside those that the site gives them.

    A site may define the role ``user`` itself; JupyterHub 6 then ignores ``extra_user_scopes``,
    which JupyterHub 5 does not have.
    """
    site_role = _find_by_name("user", app.load_roles)
    if "scopes" not in site_role and hasattr(app, "extra_user_scopes"):
        app.extra_user_scopes = {*app.extra_user_scopes, *scopes}
        return
    all_scopes = _merge_names(site_role.get("scopes", ["self"]), scopes)
    other_roles = [role for role in app.load_roles if role is not site_role]
    app.load_roles = [*other_roles, {"name": "user", **site_role, "scopes": all_scopes}]


@dataclass(frozen=True)
class PoolService:
    """Adds the pool as a service of the hub, with its role and the users' right to its pages."""

    origin: str
    token_file: Path

    def __call__(self, app: Any) -> None:
        """Add it; a service or role of that name that the site has keeps all that it says."""
        add_user_scopes(app, SERVICE_SCOPE)
        site_service = _find_by_name(SERVICE, app.services)
        if site_service.get("url", self.origin).rstrip("/") != self.origin:
            app.log.critical(
                'This hub already has another service called "%s", at %s; miglab\'s pool is at %s. '
                "Rename that service.", SERVICE, site_service["url"], self.origin,
            )  # fmt: skip
            app.exit(1)
        service = {**self._service(app), **site_service}
        app.services = [*(other for other in app.services if other is not site_service), service]
        _add_role(app, POOL_ROLE)

    def _service(self, app: Any) -> dict[str, Any]:
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
        except OSError as error:
            app.log.critical(
                "miglab's service token cannot be read: %s. Start the pool service once, which "
                "writes it, and run hub and pool as the same user.", error,
            )  # fmt: skip
            app.exit(1)
        return pool_service(self.origin, token)


def pool_service(origin: str, token: str) -> dict[str, Any]:
    """Return the pool as a service of the hub, behind the proxy and with OAuth.

    Args:
        origin: of its management listener, as hub and proxy reach it.
        token: its own hub token.
    """
    return {
        "name": SERVICE,
        "url": origin,
        "api_token": token,
        "oauth_client_allowed_scopes": [SERVICE_SCOPE, STAFF_SCOPE, ADMIN_SCOPE],
        "oauth_no_confirm": True,
        "display": True,
    }


def _add_role(app: Any, role: dict[str, Any]) -> None:
    """Add a role, or extend the site's role of that name."""
    site_role = _find_by_name(role["name"], app.load_roles)
    lists = {key: _merge_names(site_role.get(key, ()), role[key]) for key in ("scopes", "services")}
    other_roles = [other for other in app.load_roles if other is not site_role]
    app.load_roles = [*other_roles, {**role, **site_role, **lists}]


def _find_by_name(name: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the role or service of that name; empty if the site has none."""
    return next((item for item in items if item.get("name") == name), {})


def _merge_names(present: Iterable[str], added: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*present, *added)))


def exclude_waiting_servers() -> None:
    """Exclude servers that wait for a slice from ``active_server_limit``.

    Nor towards ``concurrent_spawn_limit``: a waiting student uses nothing that these protect, and
    would keep others from servers that could start at once.  JupyterHub asks here for both.
    """
    UserDict.count_active_users = _count_without_waiting


def _count_without_waiting(users: Any) -> dict[str, int]:
    counts: dict[str, int] = _count_active_users(users)
    spawners = [spawner for user in users.values() for spawner in user.spawners.values()]
    waiting = sum(
        isinstance(spawner, MIGSpawnerMixin) and spawner.pending == "spawn" and spawner.is_waiting
        for spawner in spawners
    )
    for key in ("pending", "spawn_pending", "active"):
        counts[key] -= waiting
    return counts

"""What a hub must be told besides its spawner class.

from miglab_spawner.hub_setup import set_up
set_up(c)
"""

from typing import Any

from jupyterhub.scopes import scope_definitions

#: Lets a server see, extend and release its own lease, and nothing else.
LEASE_SCOPE = "custom:miglab:lease"

#: What JupyterHub's own role ``server`` holds.
_SERVER_SCOPES = ("users:activity!user", "access:servers!server")


def custom_scopes() -> dict[str, dict[str, str]]:
    """The scope's definition, for ``c.JupyterHub.custom_scopes``."""
    return {LEASE_SCOPE: {"description": "See, extend and release the lease of a server."}}


def user_role() -> dict[str, Any]:
    """The role ``user`` with the scope: a server gets only what its user holds."""
    return {"name": "user", "scopes": ["self", f"{LEASE_SCOPE}!user"]}


def server_token_scopes(_spawner: object = None) -> list[str]:
    """The scopes of a server's own token: JupyterHub's, and the lease of that very server.

    A hub that does not define the scope gives its servers no more than JupyterHub does.
    """
    scopes = list(_SERVER_SCOPES)
    if LEASE_SCOPE in scope_definitions:
        scopes.append(f"{LEASE_SCOPE}!server")
    return scopes


def set_up(c: Any) -> None:
    """Set what the spawner needs of its hub, where the configuration has not done so.

    - the custom scope, and the users' right to it;
    - ``concurrent_spawn_limit`` 0: it counts those who wait for a slice, so that 100 waiting
      students would lock out everybody who needs none;
    - ``cleanup_servers`` False: a hub restart must not end servers and leases;
    - what a student can do who waits, on the hub's own pages.
    """
    from miglab_spawner import hub_pages  # it knows the spawner, and the spawner this module

    hub = c.JupyterHub
    hub.setdefault("custom_scopes", {}).update(custom_scopes())
    roles = hub.setdefault("load_roles", [])
    if not any(role.get("name") == "user" for role in roles):
        roles.append(user_role())
    hub.setdefault("concurrent_spawn_limit", 0)
    hub.setdefault("cleanup_servers", False)
    hub_pages.add_to(c)

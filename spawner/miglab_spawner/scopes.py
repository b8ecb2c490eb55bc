"""The custom scope by which a server sees and steers its own lease, and who holds it."""

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

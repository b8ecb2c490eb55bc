"""The custom scope by which a server sees and steers its own lease, and who holds it."""

from jupyterhub.scopes import scope_definitions

#: Lets a server see, extend and release its own lease, and nothing else.
LEASE_SCOPE = "custom:miglab:lease"

#: Its definition, for ``c.JupyterHub.custom_scopes``.
CUSTOM_SCOPES = {LEASE_SCOPE: {"description": "See, extend and release the lease of a server."}}

#: What JupyterHub's own role ``server`` holds.
_SERVER_SCOPES = ("users:activity!user", "access:servers!server")


def server_token_scopes(_spawner: object = None) -> list[str]:
    """The scopes of a server's own token: JupyterHub's, and the lease of that very server.

    A hub that does not define the scope gives its servers no more than JupyterHub does.
    """
    scopes = list(_SERVER_SCOPES)
    if LEASE_SCOPE in scope_definitions:
        scopes.append(f"{LEASE_SCOPE}!server")
    return scopes

"""The scopes by which a hub lets people, servers and the pool do what they do."""

SERVICE = "pool"
"""The pool's name among the hub's services."""

LEASE_SCOPE = "custom:miglab:lease"
"""Lets a server see, extend and release its own lease, and nothing else."""

STAFF_SCOPE = "custom:miglab:staff"
ADMIN_SCOPE = "custom:miglab:admin"

SERVICE_SCOPE = f"access:services!service={SERVICE}"
"""Lets a person open the pool's pages."""

POOL_SCOPES = (
    "read:servers",
    "delete:servers",
    LEASE_SCOPE,
    "read:groups",
    "list:users",
    "read:users:groups",
)
"""What the pool service needs: to end a server with its lease, or to start it without a GPU; to
know who is in a course, and who is in none and so in the default one."""

CUSTOM_SCOPES = {
    LEASE_SCOPE: {"description": "See, extend and release the lease of a server."},
    STAFF_SCOPE: {"description": "Instruct every course: see its leases and steer them."},
    ADMIN_SCOPE: {"description": "Steer the whole pool: GPUs, layouts, quarantine, pause."},
}
"""For ``c.JupyterHub.custom_scopes``."""

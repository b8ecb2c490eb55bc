"""What a hub must be told besides its spawner class.

from miglab_spawner.hub_setup import set_up
set_up(c)
"""

from typing import Any

from miglab_spawner import hub_pages
from miglab_spawner.mixin import CUSTOM_SCOPES, LEASE_SCOPE


def set_up(c: Any) -> None:
    """Set what the spawner needs of its hub, where the configuration has not done so.

    - the custom scope, and the users' right to it;
    - ``concurrent_spawn_limit`` 0: it counts those who wait for a slice, so that 100 waiting
      students would lock out everybody who needs none;
    - ``cleanup_servers`` False: a hub restart must not end servers and leases;
    - what a student can do who waits, on the hub's own pages.
    """
    hub = c.JupyterHub
    hub.setdefault("custom_scopes", {}).update(CUSTOM_SCOPES)
    roles = hub.setdefault("load_roles", [])
    if not any(role.get("name") == "user" for role in roles):
        # a server gets only what its user holds
        roles.append({"name": "user", "scopes": ["self", f"{LEASE_SCOPE}!user"]})
    hub.setdefault("concurrent_spawn_limit", 0)
    hub.setdefault("cleanup_servers", False)
    hub_pages.add_to(c)

"""Adds to a hub's configuration once the hub has read all of it, and so takes nothing away.

A configuration file may set a list before our line, after it, or add to JupyterHub's default
(`LazyConfigValue`).  What we add to that list waits in a section of its own, and joins what the
site has in the end.
"""

from collections.abc import Callable
from typing import Any

from jupyterhub.app import JupyterHub

SECTION = "MIGLab"
Addition = Callable[[Any], None]

_init_internal_ssl = JupyterHub.init_internal_ssl


def call_at_start(c: Any, addition: Addition) -> None:
    """Call ``addition(app)`` when the hub starts, before it opens its database.

    Args:
        c: JupyterHub's configuration object.
        addition: changes the hub's traits; asked for twice, it is called once.
    """
    additions = c[SECTION].setdefault("additions", [])
    if addition not in additions:
        additions.append(addition)
    JupyterHub.init_internal_ssl = _init_with_additions


def _init_with_additions(app: Any) -> None:
    """Run the additions before JupyterHub's first step after its configuration (5.5 and 6.1)."""
    for addition in app.config[SECTION].get("additions", ()):
        addition(app)
    _init_internal_ssl(app)

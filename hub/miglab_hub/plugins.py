"""What a scheduler's own package adds to the lab, found by entry points; nothing imports it.

The entry points are called like the value of `servers.spawner` that they are for:

| group | what it is |
|---|---|
| ``miglab.settings`` | `Settings` with the package's own tables, paths and service |
| ``miglab.hub`` | ``(c, settings)``: sets what JupyterHub is to know beside |
| ``miglab.start`` | ``(settings)``: raises StartError where the lab cannot start |
| ``miglab.doctor`` | ``(settings, has_jobs=…)``: findings |
| ``miglab.forget`` | a module: ``kept_of(settings, user)``, ``forget(settings, user, pseudonym)`` |

Its spawner comes by JupyterHub's own group, ``jupyterhub.spawners``.
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any


@cache  # looking through all that is installed takes as long as all else of reading lab.toml
def plugin(group: str, name: str) -> Any:
    """Return what a package adds to a group under a name; None if none is installed."""
    for point in entry_points(group=f"miglab.{group}", name=name):
        return point.load()
    return None


def plugins(group: str) -> list[Any]:
    """Return all that packages add to a group."""
    return [point.load() for point in entry_points(group=f"miglab.{group}")]

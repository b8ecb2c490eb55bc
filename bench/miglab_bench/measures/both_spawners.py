"""The configuration of a storm's hub: a student's name decides which spawner starts the server.

Both start the same processes; one asks the pool for a slice first, the other is JupyterHub's own.
"""

from importlib.metadata import version
from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.user import User

from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.temporary import SMALLEST_SERVER
from miglab_bench.measures.storm import PLAIN
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load
from miglab_spawner.local import MIGLocalSpawner


class PlainSpawner(SimpleLocalProcessSpawner):  # type: ignore[misc]  # base is untyped
    """JupyterHub's own local processes, without a pool; they open no page of JupyterLab."""


def use_both_spawners(c: Any) -> None:
    """Configure a hub for both: students whose names begin with `PLAIN` get the plain one."""
    settings = load()
    configure(c, settings)
    for spawner in (c.MIGLocalSpawner, c.PlainSpawner):
        spawner.cmd = SMALLEST_SERVER
        spawner.args = []
        spawner.environment = {"MIGLAB_HUB_VERSION": version("jupyterhub")}
    c.PlainSpawner.http_timeout = c.MIGLocalSpawner.http_timeout
    c.PlainSpawner.home_dir_template = f"{settings.homes}/plain-{{username}}"
    # Both forms are filled in alike.
    c.PlainSpawner.options_form = f'<input type="radio" name="shape" value="{SHAPE}" checked>'
    User.spawner_class = property(lambda user: class_for(user.name))


def class_for(user: str) -> type[LocalProcessSpawner]:
    """The spawner class of a user."""
    return PlainSpawner if user.startswith(PLAIN) else MIGLocalSpawner

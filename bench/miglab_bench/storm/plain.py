"""A hub in which a student's name decides which spawner starts the server.

Both start the same processes; one asks the pool for a slice first, the other is JupyterHub's own.
"""

from typing import Any

from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.user import User

from miglab_spawner.local import MIGLocalSpawner

PLAIN, OURS = "plain", "miglab"
FORM = '<input type="radio" name="shape" value="{shape}" checked>'


class PlainSpawner(SimpleLocalProcessSpawner):  # type: ignore[misc]  # base is untyped
    """JupyterHub's own local processes, without a pool; they open no page of JupyterLab."""


def use_both_spawners(c: Any, command: list[str], shape: str, version: str, homes: str) -> None:
    """Configure a hub for both: students whose names begin with `PLAIN` get the plain one.

    Args:
        c: JupyterHub's configuration object, as the lab has configured it.
        command: the students' server.
        shape: what the plain spawner's form offers, so that both forms are filled in alike.
        version: of JupyterHub, which the server must say.
        homes: folder for the plain spawner's homes.
    """
    for spawner in (c.MIGLocalSpawner, c.PlainSpawner):
        spawner.cmd = command
        spawner.args = []
        spawner.environment = {"MIGLAB_HUB_VERSION": version}
    c.PlainSpawner.http_timeout = c.MIGLocalSpawner.http_timeout
    c.PlainSpawner.home_dir_template = f"{homes}/plain-{{username}}"
    c.PlainSpawner.options_form = FORM.format(shape=shape)
    User.spawner_class = property(lambda user: class_for(user.name))


def class_for(user: str) -> type[LocalProcessSpawner]:
    """The spawner class of a user."""
    return PlainSpawner if user.startswith(PLAIN) else MIGLocalSpawner

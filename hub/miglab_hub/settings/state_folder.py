"""The files and folders of a lab's state folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class HasState(Protocol):
    """Whatever has a state folder."""

    @property
    def state(self) -> Path:
        """The state folder, absolute."""


@dataclass(frozen=True)
class StatePath:
    """A path in the state folder."""

    name: str

    def __get__(self, lab: HasState, _owner: type) -> Path:
        """The absolute path."""
        return lab.state / self.name


class StateFolder:
    """The files and folders of a lab, each by the name of what it holds."""

    #: The pool's ledger.
    ledger = StatePath("ledger.sqlite")
    #: JupyterHub's database, and the file with which it signs its cookies.
    hub_database = StatePath("jupyterhub.sqlite")
    home_names = StatePath("home-names.json")
    cookie_secret = StatePath("jupyterhub_cookie_secret")
    #: The backups that the lab makes by itself, before an upgrade changes the ledger.
    backups = StatePath("backups")
    #: What `./lab up` holds for as long as it runs; and what makes a second pool service stop.
    lab_lock = StatePath("lab.lock")
    pool_lock = StatePath("pool.lock")
    #: By which the spawner proves itself to the pool, the service and `miglab roster` to the hub.
    pool_secret = StatePath("pool.secret")
    service_token = StatePath("service.token")
    roster_token = StatePath("roster.token")
    #: By which the hub proves itself to the proxy, in a folder of its own: a proxy in a container
    #: is given that and no other secret.
    proxy_token = StatePath("proxy/proxy.token")
    #: Where a running lab says the port that ``--port`` gave it.
    port_file = StatePath("port")
    #: The passwords of the embedded default, a line ``role password`` each.
    passwords = StatePath("passwords")
    #: The logs of proxy, hub and pool; the homes of local students.
    logs = StatePath("logs")
    homes = StatePath("homes")

    def make_private_folder(self: HasState) -> None:
        """Make the state folder, which its owner alone may enter, whatever the umask.

        Raises:
            OSError: it cannot be made.
        """
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)

"""What marks a container or a network as a server's: labels, never a name.

A name comes again: with another hub on the same engine, with a restored backup, with whoever made a
container by hand.  So whatever is found by its name is looked at here before anybody acts on it.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miglab_api.holders import LAB_LABEL
from miglab_spawner.containers.host_config import SERVER, SavedLease, from_labels, to_labels

HOME = "miglab.home"

Labels = Mapping[str, str] | None


@dataclass(frozen=True)
class ServerLabels:
    """The labels of one server, with what it holds now.

    Attributes:
        lab: the lab's name.
        home: the name under which its user's home and containers go.
        server: its name; empty for the default server.
        grant: what it holds; None without a lease.
    """

    lab: str
    home: str
    server: str
    grant: SavedLease | None = None

    def as_labels(self) -> dict[str, str]:
        """Return the labels for containers and networks of this server."""
        lease = to_labels(self.lab, self.grant) if self.grant else {}
        return {**lease, LAB_LABEL: self.lab, HOME: self.home, SERVER: self.server}

    def matches_server(self, labels: Labels) -> bool:
        """Whether these labels name this server, with whatever lease."""
        marks = {LAB_LABEL: self.lab, HOME: self.home, SERVER: self.server}
        return marks.items() <= dict(labels or {}).items()

    def matches_lease(self, labels: Labels) -> bool:
        """Whether these labels name this server and the lease that it holds now."""
        return self.matches_server(labels) and _fence(from_labels(self.lab, labels)) == _fence(
            self.grant
        )


def are_server_labels(labels: Labels) -> bool:
    """Whether these labels mark something that was made for one server alone."""
    return {HOME, SERVER} <= set(labels or {})


def labels_of(container: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's labels from Docker's inspect."""
    return dict(container["Config"].get("Labels") or {})


def _fence(grant: SavedLease | None) -> tuple[int, int, str] | None:
    return None if grant is None else (grant.lease, grant.generation, grant.ledger)

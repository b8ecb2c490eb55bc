"""What a container of ours is known by: its labels, its holder's name.

The hub saves a spawner's state only after ``start()`` returned, so a crash before loses it.  The
labels are on the container itself and outlive every crash: pool and spawner reconcile from them.
Must not import JupyterHub, Docker or the pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from miglab_api.holders import (
    CONTAINER,
    GENERATION_LABEL,
    LAB_LABEL,
    LEASE_LABEL,
    LEDGER_LABEL,
    SLICES_LABEL,
)
from miglab_api.leases import LeaseView

USER, SERVER = "miglab.user", "miglab.server"


@dataclass(frozen=True)
class SavedLease:
    """What a server holds: the part of a lease that must survive a hub crash.

    Attributes:
        lease: the lease's id.
        generation: the fence that attach presents.
        ledger: the id of the ledger that granted it; empty before there was one.
        uuids: the slices, in the lease's order.
    """

    lease: int
    generation: int
    user: str
    server: str
    uuids: tuple[str, ...]
    ledger: str = ""

    @classmethod
    def of(cls, lease: LeaseView) -> Self:
        """What a server holds by this lease."""
        own = (lease.id, lease.generation, lease.user, lease.server, lease.uuids, lease.ledger)
        return cls(*own)


def to_labels(lab: str, grant: SavedLease) -> dict[str, str]:
    """The labels of a container that is to hold this grant."""
    return {
        LAB_LABEL: lab,
        LEASE_LABEL: str(grant.lease),
        GENERATION_LABEL: str(grant.generation),
        USER: grant.user,
        SERVER: grant.server,
        SLICES_LABEL: ",".join(grant.uuids),
        LEDGER_LABEL: grant.ledger,
    }


def from_labels(lab: str, labels: Mapping[str, str] | None) -> SavedLease | None:
    """The grant a container's labels name; None if they name none, or another lab's."""
    if not labels or labels.get(LAB_LABEL) != lab:
        return None
    lease, generation = labels.get(LEASE_LABEL, ""), labels.get(GENERATION_LABEL, "")
    if not (lease.isdecimal() and generation.isdecimal()):
        return None
    uuids = tuple(uuid for uuid in labels.get(SLICES_LABEL, "").split(",") if uuid)
    user, server = labels.get(USER, ""), labels.get(SERVER, "")
    return SavedLease(
        int(lease), int(generation), user, server, uuids, labels.get(LEDGER_LABEL, "")
    )


def container_holder(container_id: str) -> str:
    """The holder's name of a container: its full id, never its name, which is used again."""
    return f"{CONTAINER}:{container_id}"


def container_of(holder: str) -> str:
    """The container id a holder names; empty for another kind of holder."""
    kind, _, rest = holder.partition(":")
    return rest if kind == CONTAINER else ""

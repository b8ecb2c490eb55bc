"""Nodes and reservations as `sinfo -N -O` and `scontrol` tell them; text in, frozen records out.

A node that saves power is as free as any other: a job that is given it waits until it is up.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from miglab_slurm.records import (
    NONE,
    Listing,
    Row,
    gres_of,
    hosts_of,
    number_in,
    text_in,
    time_in,
    unique_rows,
)

NODE_FIELDS = (
    "NodeList", "NodeAddr", "StateComplete", "Gres", "GresUsed", "Partition", "Available", "Reason",
    "Features", "CPUsState", "Memory", "AllocMem",
)  # fmt: skip
NEVER = 2.0**32  # an end that Slurm does not tell
_TAKES_JOBS = frozenset({"idle", "mixed", "allocated"})
_HARMLESS = frozenset(
    {
        "planned", "cloud", "dynamic_norm", "dynamic_future", "powered_down", "power_up",
        "powering_up",
    }
)  # fmt: skip
_PASSING = frozenset({"reserved", "completing", "power_down", "powering_down"})
"""Nothing starts there now, and something may soon."""
_OFF = frozenset({"powered_down", "power_up", "powering_up"})
_SIGNS = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "%": "powering_down",
    "!": "power_down", "$": "maint", "@": "reboot_requested", "^": "reboot_issued", "-": "planned",
}  # fmt: skip
"""Behind a state, as `sinfo` writes it short."""


@dataclass(frozen=True)
class Amount:
    """How much a node has of something that Slurm hands out in parts."""

    total: int
    used: int

    @property
    def free(self) -> int:
        """What nobody holds."""
        return max(0, self.total - self.used)


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        total: gres without count to count.
        used: the same, for what running jobs hold.
        state: its parts, in lower case: ``{"mixed", "drain"}``.
        partitions: partition to whether it takes jobs.
        reason: what the operator wrote who drained it; empty for nothing.
        features: what a job's constraint may name.
        cpus, memory_mib: None where Slurm does not say.
    """

    name: str
    address: str
    state: frozenset[str]
    total: Mapping[str, int]
    used: Mapping[str, int]
    partitions: Mapping[str, bool]
    reason: str
    features: frozenset[str] = frozenset()
    cpus: Amount | None = None
    memory_mib: Amount | None = None

    @property
    def takes_jobs(self) -> bool:
        """Whether Slurm gives this node to a new job now: up or switched off, and not drained.

        One job that is completing blocks its whole node, though its slice shows as free; so does
        switching it off, until that is done.
        """
        return self.will_take_jobs and not self.state & (_PASSING - {"reserved"})

    @property
    def will_take_jobs(self) -> bool:
        """Whether it does so now, or in a moment, when what is completing is gone."""
        troubles = self.state - _TAKES_JOBS - _HARMLESS
        if self.is_off:
            troubles -= {"not_responding"}  # as everything that is switched off
        return bool(self.state & _TAKES_JOBS) and troubles <= _PASSING

    @property
    def is_off(self) -> bool:
        """Whether it saves power, or boots: a job that is given it waits until it is up."""
        return bool(self.state & _OFF)

    @property
    def is_reserved(self) -> bool:
        """Whether somebody's reservation holds it now."""
        return "reserved" in self.state

    @property
    def operators_command(self) -> str:
        """What its operator would type: to end a drain, or to begin one."""
        is_out = self.state & {"drain", "drained", "draining", "down"}
        end = "resume" if is_out else "drain reason=…"
        return f"scontrol update nodename={self.name} state={end}"

    def free(self, gres_type: str) -> int:
        """How many slices of a type nobody holds."""
        return max(0, self.total.get(gres_type, 0) - self.used.get(gres_type, 0))


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation, begun or not.

    Attributes:
        nodes: those that it takes whole.
        node_list: all of them, as Slurm writes them.
        owners: users, groups or accounts, for people.
    """

    name: str
    begins_at: float
    ends_at: float
    nodes: frozenset[str]
    node_list: str
    owners: str
    state: str


def nodes_of(listing: Listing, text: str) -> dict[str, Node]:
    """The nodes in the output of `sinfo -N`, which has a record for each node and partition."""
    nodes: dict[str, Node] = {}
    for row in unique_rows(list(listing.rows(text)), "NodeList", "Partition"):
        before = nodes.get(row["NodeList"])
        partitions = dict(before.partitions) if before else {}
        partitions[row["Partition"].rstrip("*")] = row["Available"] == "up"
        nodes[row["NodeList"]] = _node(row, partitions)
    return nodes


def reservations_of(text: str) -> tuple[SlurmReservation, ...]:
    """The reservations in the output of `scontrol -o show reservation`: only operators write it."""
    records = (dict(pair.partition("=")[::2] for pair in row.split()) for row in text.splitlines())
    return tuple(
        SlurmReservation(
            fields["ReservationName"],
            time_in(fields.get("StartTime", "")) or 0.0,
            time_in(fields.get("EndTime", "")) or NEVER,
            frozenset() if "CoreIDs" in fields else frozenset(hosts_of(fields.get("Nodes", ""))),
            fields.get("Nodes", ""),
            ", ".join(
                f"{key.lower()} {fields[key]}"
                for key in ("Users", "Groups", "Accounts")
                if fields.get(key, "") not in NONE
            ),
            fields.get("State", ""),
        )
        for fields in records
        if "ReservationName" in fields
    )


def resume_timeout_in(text: str) -> float | None:
    """How long a node may take to boot, seconds; from the output of `scontrol show config`."""
    match = re.search(r"^ResumeTimeout\s*=\s*(\d+)", text, re.MULTILINE)
    return float(match[1]) if match else None


def _node(row: Row, partitions: Mapping[str, bool]) -> Node:
    return Node(
        name=row["NodeList"],
        address=row["NodeAddr"],
        state=_node_state(row["StateComplete"].lower()),
        total=gres_of(row["Gres"]),
        used=gres_of(row["GresUsed"]),
        partitions=MappingProxyType(dict(partitions)),
        reason=text_in(row["Reason"]),
        features=frozenset(filter(None, text_in(row["Features"]).split(","))),
        cpus=_cpus(row["CPUsState"]),
        memory_mib=_amount(row["Memory"], row["AllocMem"]),
    )


def _node_state(text: str) -> frozenset[str]:
    """A node's state in its parts: ``mixed+drain``, or short: ``idle*``."""
    plain = text.rstrip("".join(_SIGNS))
    return frozenset({*re.split(r"[+\s]", plain), *(_SIGNS[sign] for sign in text[len(plain) :])})


def _cpus(text: str) -> Amount | None:
    """The CPUs of a node: allocated/idle/other/total."""
    parts = [number_in(part) for part in text.split("/")]
    if len(parts) != 4 or parts[1] is None or parts[3] is None:
        return None
    return Amount(parts[3], parts[3] - parts[1])


def _amount(total: str, used: str) -> Amount | None:
    numbers = number_in(total), number_in(used)
    return None if numbers[0] is None or numbers[1] is None else Amount(numbers[0], numbers[1])

"""How Slurm counts: what a job of a shape takes of a node, by the site's configuration.

Observed on a slurmctld 22.05.8: a job takes whole cores, or sockets or nodes where the site says
so, with `CR_CPU` too; memory per CPU counts every CPU that it takes, but with `CR_CPU` only those
that it asked for; a partition's default stands before the cluster's, and a job for which neither
has one takes the whole memory of its node.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from miglab_slurm.commands import run
from miglab_slurm.lab import SlurmShape, SlurmSite
from miglab_slurm.nodes import Node, resume_timeout_in
from miglab_slurm.records import number_in
from miglab_spawner.backends import BackendError

RULES_S = 60.0
"""For so long the configuration that was read counts: operators change it rarely."""


class Unit(Enum):
    """The least that a job takes of a node."""

    CORE = auto()
    SOCKET = auto()
    NODE = auto()


@dataclass(frozen=True)
class Quantity:
    """CPUs and memory of a node."""

    cpus: int
    memory_mib: int


@dataclass(frozen=True)
class Hardware:
    """How the CPUs of a node are parts of it.

    Attributes:
        system: what its operating system keeps: it is listed as idle, and no job gets it.
    """

    cpus_per_core: int = 1
    cpus_per_socket: int = 1
    system: Quantity = Quantity(0, 0)


@dataclass(frozen=True)
class PartitionRules:
    """How the jobs of a partition are counted.

    Attributes:
        unit: the least that a job takes.
        counts_memory: whether memory is handed out in parts at all.
        counts_cpus_taken: whether memory per CPU counts the CPUs that a job takes, and not only
            those that it asked for.
        memory_per_cpu_mib: of a job that does not say how much it needs; None where the default
            is for a node, or where there is none.
        memory_per_node_mib: the same; None where the default is for a CPU, or where there is none.
    """

    unit: Unit = Unit.CORE
    counts_memory: bool = True
    counts_cpus_taken: bool = True
    memory_per_cpu_mib: int | None = None
    memory_per_node_mib: int | None = None


@dataclass(frozen=True)
class SlurmRules:
    """The configuration, as far as it decides what is free; what is not in it is not known.

    Attributes:
        read_at: by the loop's clock.
        resume_timeout_s: how long a node that is off may take to boot; None if it is not known.
    """

    partitions: Mapping[str, PartitionRules] = field(default_factory=dict)
    hardware: Mapping[str, Hardware] = field(default_factory=dict)
    read_at: float = 0.0
    resume_timeout_s: float | None = None

    def demand(self, node: Node, shape: SlurmShape, partition: str) -> Quantity:
        """What a job of a shape takes of a node, were it the node's first.

        Where the rules are not known, it takes what it asks for, or any memory.
        """
        rules = self.partitions.get(partition)
        if rules is None:
            return Quantity(shape.cpus, shape.memory_mib or 1)
        hardware = self.hardware.get(node.name, Hardware())
        cpus = shape.cpus
        if rules.unit is Unit.NODE and node.cpus is not None:
            cpus = node.cpus.total - hardware.system.cpus
        elif rules.unit is not Unit.NODE:
            is_core = rules.unit is Unit.CORE
            least = hardware.cpus_per_core if is_core else hardware.cpus_per_socket
            cpus = math.ceil(shape.cpus / least) * least
        return Quantity(cpus, _memory_mib(node, shape, rules, hardware, cpus))

    def system_of(self, node: Node) -> Quantity:
        """What the operating system of a node keeps from all jobs."""
        return self.hardware.get(node.name, Hardware()).system


UNKNOWN_RULES = SlurmRules()


async def read_rules(site: SlurmSite, nodes: Iterable[str], at: float) -> SlurmRules:
    """The rules of these nodes and of the site's partitions; what Slurm does not tell is left out.

    Args:
        site: its tables.
        nodes: their names.
        at: now, by the loop's clock.
    """
    show = ("scontrol", "-a", "-o", "show")
    config, partitions, hardware = await asyncio.gather(
        _text_of(site, "scontrol", "show", "config"),
        _text_of(site, *show, "partition"),
        _text_of(site, *show, "node", ",".join(nodes)),
    )
    return SlurmRules(
        dict(_partitions_in(config, partitions)) if config else {},
        dict(_hardware_in(hardware)),
        at,
        resume_timeout_in(config),
    )


async def _text_of(site: SlurmSite, *command: str) -> str:
    try:
        return await run(command, site.command_timeout_s)
    except BackendError:
        return ""


def _memory_mib(
    node: Node, shape: SlurmShape, rules: PartitionRules, hardware: Hardware, cpus: int
) -> int:
    if not rules.counts_memory:
        return 0
    if shape.memory_mib:
        return shape.memory_mib
    if rules.memory_per_cpu_mib is not None:
        return rules.memory_per_cpu_mib * (cpus if rules.counts_cpus_taken else shape.cpus)
    if rules.memory_per_node_mib is not None:
        return rules.memory_per_node_mib
    return node.memory_mib.total - hardware.system.memory_mib if node.memory_mib else 1


def _partitions_in(config: str, text: str) -> Iterator[tuple[str, PartitionRules]]:
    """The rules of each partition; from `scontrol show config` and `scontrol -o show partition`."""
    lines = (line.partition("=") for line in config.splitlines())
    general = {name.strip(): setting.strip() for name, _, setting in lines}
    selection = general.get("SelectTypeParameters", "").upper()
    for fields in _records(text):
        units = f"{selection} {fields.get('SelectTypeParameters', '').upper()}"
        is_whole = "linear" in general.get("SelectType", "")
        is_whole |= fields.get("OverSubscribe", "") == "EXCLUSIVE"
        per_cpu, per_node = _default_memory(fields, general)
        yield (
            fields.get("PartitionName", ""),
            PartitionRules(
                Unit.NODE if is_whole else Unit.SOCKET if "SOCKET" in units else Unit.CORE,
                "MEMORY" in selection,
                "CR_CPU" not in selection,
                per_cpu,
                per_node,
            ),
        )


def _default_memory(*tables: Mapping[str, str]) -> tuple[int | None, int | None]:
    """The first default that is set, for a CPU or for a node; one of them is None, or both are."""
    for table in tables:
        per_cpu, per_node = (number_in(table.get(f"DefMemPer{of}", "")) for of in ("CPU", "Node"))
        if per_cpu or per_node:
            return per_cpu or None, per_node or None
    return None, None


def _hardware_in(text: str) -> Iterator[tuple[str, Hardware]]:
    """The hardware of each node; from `scontrol -o show node`."""
    for fields in _records(text):
        numbers = {name: number_in(fields.get(name, "")) for name in fields}
        cpus, sockets = numbers.get("CPUTot"), numbers.get("Sockets")
        cores_per_socket = numbers.get("CoresPerSocket")
        if not (cpus and sockets and cores_per_socket):
            continue
        yield (
            fields.get("NodeName", ""),
            Hardware(
                max(1, cpus // (sockets * cores_per_socket)),
                max(1, cpus // sockets),
                Quantity(
                    cpus - (numbers.get("CPUEfctv") or cpus), numbers.get("MemSpecLimit") or 0
                ),
            ),
        )


def _records(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        fields = dict(pair.partition("=")[::2] for pair in line.split() if "=" in pair)
        if fields:
            yield fields

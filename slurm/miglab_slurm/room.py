"""How many jobs of a shape a node holds, as Slurm counts: by slices, cores and memory.  Pure.

What Slurm does not say of a node limits nothing.
"""

from dataclasses import dataclass

from miglab_slurm.counting import SlurmRules
from miglab_slurm.lab import SlurmShape
from miglab_slurm.nodes import Node


@dataclass(frozen=True)
class ShapeRoom:
    """The room for jobs of one shape in its partition.

    Args:
        rules: what a job takes of a node.
    """

    shape: SlurmShape
    partition: str
    rules: SlurmRules

    def free_on(self, node: Node) -> int:
        """How many could start now, were nothing else planned there."""
        cpus = node.cpus.free if node.cpus else None
        memory_mib = node.memory_mib.free if node.memory_mib else None
        return self._fitting(node, node.free(self.shape.gres_type), cpus, memory_mib)

    def capacity_of(self, node: Node) -> int:
        """How many run there at a time, when nothing else does."""
        cpus = node.cpus.total if node.cpus else None
        memory_mib = node.memory_mib.total if node.memory_mib else None
        return self._fitting(node, node.total.get(self.shape.gres_type, 0), cpus, memory_mib)

    def free_slices(self, node: Node) -> int:
        """The free slices of its type that a job can have: none without cores or memory."""
        slices = node.free(self.shape.gres_type)
        return slices if slices < self.shape.count or self.free_on(node) else 0

    def _fitting(self, node: Node, slices: int, cpus: int | None, memory_mib: int | None) -> int:
        demand = self.rules.demand(node, self.shape, self.partition)
        system = self.rules.system_of(node)
        shares = [slices // self.shape.count] if self.shape.gres else []
        if cpus is not None and demand.cpus:
            shares.append(max(0, cpus - system.cpus) // demand.cpus)
        if memory_mib is not None and demand.memory_mib:
            shares.append(max(0, memory_mib - system.memory_mib) // demand.memory_mib)
        return min(shares, default=1)

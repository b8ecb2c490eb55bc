"""How many jobs of a shape a node holds, as Slurm counts: by slices, cores and memory.  Pure.

What Slurm does not say of a node limits nothing.  A shape without `memory_mib` gets what the
partition gives by default, which may be all that is free: then any free memory will do.
"""

from miglab_slurm.lab import SlurmShape
from miglab_slurm.nodes import Node


def free_on(node: Node, shape: SlurmShape) -> int:
    """How many could start now, were nothing else planned there."""
    cpus = node.cpus.free if node.cpus else None
    memory_mib = node.memory_mib.free if node.memory_mib else None
    return _fitting(shape, node.free(shape.gres_type), cpus, memory_mib)


def capacity_of(node: Node, shape: SlurmShape) -> int:
    """How many run there at a time, when nothing else does."""
    cpus = node.cpus.total if node.cpus else None
    memory_mib = node.memory_mib.total if node.memory_mib else None
    return _fitting(shape, node.total.get(shape.gres_type, 0), cpus, memory_mib)


def free_slices(node: Node, shape: SlurmShape) -> int:
    """The free slices of its type that a job can have: none where cores or memory are used up."""
    slices = node.free(shape.gres_type)
    return slices if slices < shape.count or free_on(node, shape) else 0


def _fitting(shape: SlurmShape, slices: int, cpus: int | None, memory_mib: int | None) -> int:
    shares = [
        *([slices // shape.count] if shape.gres else []),
        *([cpus // shape.cpus] if cpus is not None else []),
        *([memory_mib // (shape.memory_mib or 1)] if memory_mib is not None else []),
    ]
    return min(shares, default=1)

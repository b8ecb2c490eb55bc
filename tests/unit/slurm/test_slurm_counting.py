"""What a job takes of a node, by rules that are known, known in part, or not known."""

import pytest

from miglab_slurm.counting import (
    UNKNOWN_RULES,
    Hardware,
    PartitionRules,
    Quantity,
    SlurmRules,
    Unit,
)
from miglab_slurm.lab import SlurmShape
from miglab_slurm.nodes import Amount, Node

NODE = Node(
    "n1", "n1", frozenset({"idle"}), {}, {}, {"lab": True}, "",
    cpus=Amount(16, 0), memory_mib=Amount(64000, 0),
)  # fmt: skip
THREADS = Hardware(2, 8, Quantity(2, 4000))


@pytest.mark.parametrize(
    ("rules", "shape", "takes"),
    [
        (PartitionRules(), SlurmShape(cpus=3, memory_mib=100), Quantity(4, 100)),
        (PartitionRules(Unit.SOCKET), SlurmShape(cpus=9, memory_mib=100), Quantity(16, 100)),
        (PartitionRules(Unit.NODE), SlurmShape(memory_mib=100), Quantity(14, 100)),
        (PartitionRules(memory_per_cpu_mib=500), SlurmShape(cpus=3), Quantity(4, 2000)),
        (
            PartitionRules(counts_cpus_taken=False, memory_per_cpu_mib=500),
            SlurmShape(cpus=3),
            Quantity(4, 1500),
        ),
        (PartitionRules(memory_per_node_mib=3000), SlurmShape(), Quantity(2, 3000)),
        (PartitionRules(), SlurmShape(), Quantity(2, 60000)),
        (PartitionRules(counts_memory=False), SlurmShape(memory_mib=100), Quantity(2, 0)),
    ],
)
def test_what_a_job_takes(rules: PartitionRules, shape: SlurmShape, takes: Quantity):
    """Whole cores, sockets or nodes; its memory, the default, or all of the node's."""
    assert SlurmRules({"lab": rules}, {"n1": THREADS}).demand(NODE, shape, "lab") == takes


def test_what_is_not_known_takes_what_was_asked_for():
    """A silent `scontrol` hides no room that may be there."""
    shape = SlurmShape(cpus=3)
    assert UNKNOWN_RULES.demand(NODE, shape, "lab") == Quantity(3, 1)
    of_partition = SlurmRules({"lab": PartitionRules(memory_per_cpu_mib=500)})
    assert of_partition.demand(NODE, shape, "lab") == Quantity(3, 1500)
    assert UNKNOWN_RULES.system_of(NODE) == Quantity(0, 0)

"""Which faults of a lab on Slurm are drawn."""

from collections import Counter

from miglab_bench.slurm_faults.kinds import KINDS
from miglab_bench.slurm_faults.run import order_of


def test_faults_are_drawn_evenly_and_the_same_again() -> None:
    """A hundred faults: every kind nine or ten times, by the seed alone."""
    order = order_of(1, 100)
    assert order == order_of(1, 100) != order_of(2, 100)
    counts = Counter(order)
    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1

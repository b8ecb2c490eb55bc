"""This process's Slurm commands, for as long as a benchmark lasts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from miglab_slurm_bench.cluster import SlurmCluster

NAMES = ("SLURM_CONF", "PATH")


@contextmanager
def commands_find(cluster: SlurmCluster) -> Iterator[None]:
    """They find this cluster."""
    before = {name: os.environ.pop(name, None) for name in NAMES}
    os.environ.update({name: cluster.environment[name] for name in NAMES})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

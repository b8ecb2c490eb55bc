"""What the reclaimer is told by the site."""

from dataclasses import dataclass, field

from miglab_pool.model.closing_times import Closings
from miglab_pool.settings import Reclaim


@dataclass(frozen=True)
class Rules:
    """How the reclaimer works.

    Attributes:
        limits: [reclaim] as lab.toml has it.
        shows_holders: whether the GPUs show what the holders run; simulated ones do not.
        reads_slices: whether anybody reads what is on the slices; on a cluster's nodes nobody does,
            and the servers' own reports decide.
        ends_come_anyway: whether somebody else ends leases at their `ends_at`, so that their
            holders are warned even where nothing is reclaimed.
        closings: when classes end and when the lab is closed.
    """

    limits: Reclaim = field(default_factory=Reclaim)
    shows_holders: bool = True
    reads_slices: bool = True
    ends_come_anyway: bool = False
    closings: Closings = field(default_factory=Closings)

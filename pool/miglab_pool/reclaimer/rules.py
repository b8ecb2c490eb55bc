"""What the reclaimer is told by the site."""

from dataclasses import dataclass, field

from miglab_pool.model.closing_times import Closings
from miglab_pool.reclaimer.policy import IdleLimits


@dataclass(frozen=True)
class Rules:
    """How the reclaimer works; `IdleLimits` are the policy's own.

    Attributes:
        is_enabled: without, nobody is warned and nothing is taken back.
        is_dry_run: decide and say, and do nothing.
        limits: how long one may be idle.
        closings: when classes end and when the lab is closed.
    """

    is_enabled: bool = True
    is_dry_run: bool = False
    limits: IdleLimits = field(default_factory=IdleLimits)
    closings: Closings = field(default_factory=Closings)

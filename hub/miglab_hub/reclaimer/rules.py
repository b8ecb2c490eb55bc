"""How the reclaimer works here: from lab.toml to what the policy takes.  Pure."""

from dataclasses import dataclass, field

from miglab_hub.reclaimer.closing import Closings, class_end, window
from miglab_hub.reclaimer.policy import Limits
from miglab_hub.reclaimer.states import Bounds
from miglab_hub.settings import Settings


@dataclass(frozen=True)
class Rules:
    """How the reclaimer works; `Limits` are the policy's own.

    Attributes:
        is_enabled: without, nobody is warned and nothing is taken back.
        is_dry_run: decide and say, and do nothing.
        limits: how long one may be idle.
        closings: when classes end and when the lab is closed.
    """

    is_enabled: bool = True
    is_dry_run: bool = False
    limits: Limits = field(default_factory=Limits)
    closings: Closings = field(default_factory=Closings)


def rules_of(settings: Settings) -> Rules:
    """What [reclaim] and the courses say."""
    said, tz = settings.reclaim, settings.reclaim.timezone
    return Rules(
        is_enabled=said.enabled,
        is_dry_run=said.dry_run,
        limits=Limits(
            idle_s=said.idle_s,
            idle_wanted_s=said.idle_wanted_s,
            holding_factor=said.holding_factor,
            warning_s=said.warning_s,
            bounds=Bounds(
                said.stale_s, said.unused_s, not settings.gpus.simulated, said.gpu_busy_pct
            ),
        ),
        closings=Closings(
            maintenance=tuple(window(text, tz) for text in said.maintenance),
            classes={
                name: tuple(class_end(text, tz) for text in course.ends)
                for name, course in settings.courses.items()
            },
        ),
    )

"""How the reclaimer works here: from lab.toml to what the policy takes.  Pure."""

from miglab_hub.settings.lab_toml import Settings
from miglab_pool.model.closing_times import Closings, class_end, window
from miglab_pool.reclaimer.activity_states import Bounds
from miglab_pool.reclaimer.policy import IdleLimits
from miglab_pool.reclaimer.rules import Rules


def rules_of(settings: Settings) -> Rules:
    """What [reclaim] and the courses say."""
    said, tz = settings.reclaim, settings.reclaim.timezone
    return Rules(
        is_enabled=said.enabled,
        is_dry_run=said.dry_run,
        limits=IdleLimits(
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

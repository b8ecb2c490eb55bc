"""How the reclaimer works here: from lab.toml to what the policy takes.  Pure."""

from miglab_hub.settings.lab_toml import Settings
from miglab_pool.reclaim.policy import Rules
from miglab_pool.schedule import Closings, class_end


def rules_of(settings: Settings) -> Rules:
    """What [reclaim] and the courses say."""
    tz = settings.lab.timezone
    return Rules(
        limits=settings.reclaim,
        shows_holders=not settings.has_simulated_gpus,
        reads_slices=not settings.is_on_slurm,
        ends_come_anyway=settings.is_on_slurm,
        closings=Closings(
            maintenance=settings.maintenance_windows,
            classes={
                name: tuple(class_end(text, tz) for text in course.class_ends)
                for name, course in settings.courses.items()
            },
        ),
    )

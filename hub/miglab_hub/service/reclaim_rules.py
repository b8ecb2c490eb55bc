"""How the reclaimer works here: from lab.toml to what the policy takes.  Pure."""

from miglab_hub.settings.lab_toml import Settings
from miglab_pool.reclaim.policy import Rules


def rules_of(settings: Settings) -> Rules:
    """What [reclaim] and [lab] say."""
    return Rules(
        limits=settings.reclaim,
        shows_holders=not settings.has_simulated_gpus,
        reads_slices=not settings.is_on_slurm,
        ends_come_anyway=settings.is_on_slurm,
        maintenance=settings.maintenance_windows,
    )

"""What a lab on Slurm keeps of a person, for `miglab forget`: usage, and submitted jobs."""

from miglab_slurm.lab import SlurmSettings
from miglab_slurm.service.usage import UsageLog
from miglab_slurm.submissions import Submissions


def kept_of(settings: SlurmSettings, user: str) -> dict[str, list[dict[str, object]]]:
    """All of it, for the person to read."""
    submissions = _submissions(settings)
    return {
        "usage": UsageLog(settings.slurm_usage).kept_of(user),
        "slurm jobs": submissions.of_user(user) if submissions else [],
    }


def forget(settings: SlurmSettings, user: str, pseudonym: str) -> dict[str, int]:
    """Put a pseudonym in the person's place, or delete; the number of rows, by what they are."""
    submissions = _submissions(settings)
    counts = {
        settings.slurm_usage.stem: UsageLog(settings.slurm_usage).rename(user, pseudonym),
        "slurm jobs": submissions.forget(user) if submissions else 0,
    }
    return {name: count for name, count in counts.items() if count}


def _submissions(settings: SlurmSettings) -> Submissions | None:
    """What the lab has submitted; None where it never ran on Slurm."""
    there = settings.slurm_jobs.exists()
    return Submissions(settings.slurm_jobs, settings.lab_id) if there else None

"""What a lab on Slurm keeps of a person, for `miglab forget`: usage, and submitted jobs."""

from miglab_slurm.lab import SlurmSettings
from miglab_slurm.submissions import Submissions


def kept_of(settings: SlurmSettings, user: str) -> dict[str, list[dict[str, object]]]:
    """All of it, for the person to read."""
    if not settings.slurm_jobs.exists():  # it never ran on Slurm
        return {}
    submissions = Submissions(settings.slurm_jobs, settings.lab_id)
    return {
        "usage": [stay.__dict__ for stay in submissions.stays() if stay.user == user],
        "slurm jobs": submissions.of_user(user),
    }


def forget(settings: SlurmSettings, user: str, pseudonym: str) -> dict[str, int]:
    """Put a pseudonym in the person's place, or delete; the number of rows, by what they are."""
    if not settings.slurm_jobs.exists():
        return {}
    counts = Submissions(settings.slurm_jobs, settings.lab_id).forget(user, pseudonym)
    return {name: count for name, count in counts.items() if count}

"""Which job is whose server, and which only its student's place in the queue.  Pure.

Anybody may write any comment: what a job claims counts only if its account is that student's.
"""

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass

from miglab_api.slurm_site import SlurmSite
from miglab_spawner.backends.slurm.picture import ClusterPicture
from miglab_spawner.backends.slurm.records import SlurmJob

OVER = frozenset({"COMPLETING"})


@dataclass(frozen=True)
class ServerJobs:
    """The jobs of one server.

    Attributes:
        running: the server itself; None while there is none.
        waiting: its place in the queue, or what is offered to it; None for none.
    """

    running: SlurmJob | None = None
    waiting: SlurmJob | None = None


def account_of(site: SlurmSite, user: str) -> str:
    """The Unix account of a student's jobs."""
    return user if site.run_as else pwd.getpwuid(os.geteuid()).pw_name


def jobs_of_server(picture: ClusterPicture, lab: str, user: str, server: str) -> ServerJobs:
    """The jobs of one server.

    Of two that run, one is the server, on which its student works without a GPU, and the other has
    just been given what was waited for.
    """
    account = account_of(picture.site, user)
    jobs = [
        job
        for job in picture.own(lab, user, server)
        if job.account == account and job.state not in OVER
    ]
    running = sorted((job for job in jobs if not job.is_pending), key=_age)
    pending = [job for job in jobs if job.is_pending]
    waiting = [*running[1:], *pending]
    return ServerJobs(running[0] if running else None, waiting[0] if waiting else None)


def all_servers(picture: ClusterPicture, lab: str) -> Iterator[tuple[str, str, ServerJobs]]:
    """Every student's every server: user, server, jobs."""
    tags = {job.tag for job in picture.own(lab) if job.tag is not None}
    for user, server in sorted({(tag.user, tag.server) for tag in tags}):
        yield user, server, jobs_of_server(picture, lab, user, server)


def _age(job: SlurmJob) -> tuple[bool, float, int]:
    return bool(job.gres), job.started_at or 0.0, job.id

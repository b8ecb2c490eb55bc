"""Which job is whose server, and which only its student's place in the queue.  Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import SlurmJob

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


def jobs_of_server(picture: ClusterPicture, user: str, server: str) -> ServerJobs:
    """The jobs of one server.

    Of two that run, one is the server, on which its student works without a GPU, and the other has
    just been given what was waited for.
    """
    jobs = [job for job in picture.own(user, server) if job.state not in OVER]
    running = sorted((job for job in jobs if not job.is_pending), key=_age)
    pending = [job for job in jobs if job.is_pending]
    waiting = [*running[1:], *pending]
    return ServerJobs(running[0] if running else None, waiting[0] if waiting else None)


def all_servers(picture: ClusterPicture) -> Iterator[tuple[str, str, ServerJobs]]:
    """Every student's every server: user, server, jobs."""
    tags = {job.tag for job in picture.own() if job.tag is not None}
    for user, server in sorted({(tag.user, tag.server) for tag in tags}):
        yield user, server, jobs_of_server(picture, user, server)


def _age(job: SlurmJob) -> tuple[bool, float, int]:
    return bool(job.gres), job.started_at or 0.0, job.id

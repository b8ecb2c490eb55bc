"""A job as the pages know tickets and leases.  Pure: a picture in, a view out."""

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import duration
from miglab_slurm.estimate import estimate
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.site import SlurmShape
from miglab_slurm.words import why_it_ended, why_it_waits

GONE = "Your job is no longer in Slurm's queue. Start again."


def ticket_of(picture: ClusterPicture, job: SlurmJob) -> TicketView:
    """A job of ours as a ticket: its position by Slurm's order, and our own estimate."""
    tag, site = tag_of_ours(job), picture.site
    shape = site.shapes.get(tag.shape)
    words = why_it_waits(job.reason)
    state, reason, message = _state(job, shape)
    position, waiting, wait = None, 0, None
    if shape is not None and job.is_pending and state is TicketState.WAITING:
        message = words.message
        if message and job.started_at is not None:
            message += f" Slurm plans its start in {duration(job.started_at - picture.at)}."
        if not words.is_limit:  # else it is in no queue
            ids = [each.id for each in picture.queue(shape)]
            position = ids.index(job.id) + 1 if job.id in ids else len(ids) + 1
            waiting = max(len(ids), position)
        if not message:
            wait = estimate(picture, shape, job.id)
    is_offered = state is TicketState.OFFERED
    return TicketView(
        id=job.id,
        user=tag.user,
        server=tag.server,
        course=tag.course,
        shape=tag.shape,
        state=state,
        position=position,
        waiting=waiting,
        estimate=wait,
        created_at=job.submitted_at,
        expires_at=(job.started_at or picture.at) + site.offer_s if is_offered else None,
        reason=reason,
        message=message,
        lease=job.id if is_offered else None,
    )


def lease_of(job: SlurmJob) -> LeaseView:
    """A job that runs, as what a server holds; Slurm's cgroup is the fence, so it has no UUIDs."""
    tag = tag_of_ours(job)
    return LeaseView(
        id=job.id,
        ticket=job.id,
        generation=0,
        user=tag.user,
        server=tag.server,
        course=tag.course,
        shape=tag.shape,
        state=LeaseState.GRANTED,
        granted_at=job.started_at or job.submitted_at,
        ends_at=job.ends_at,
    )


def ticket_gone(job: int) -> TicketView:
    """A ticket of which Slurm knows nothing any more."""
    return TicketView(
        id=job, user=None, server=None, course="", shape="", state=TicketState.EXPIRED,
        created_at=0, reason="job-gone", message=GONE,
    )  # fmt: skip


def tag_of_ours(job: SlurmJob) -> Tag:
    """The tag of a job that is known to have one."""
    assert job.tag is not None
    return job.tag


def _state(job: SlurmJob, shape: SlurmShape | None) -> tuple[TicketState, str, str]:
    """A job's state as a ticket's, with the reason and the words for one that is over."""
    if job.is_running:
        return TicketState.OFFERED, "", ""
    if job.state == "CANCELLED":
        return TicketState.CANCELLED, "cancelled", "Your job was cancelled. Start again."
    if job.has_ended or job.state == "COMPLETING":
        said = why_it_ended(job.state, shape.time_limit_min if shape else 0)
        return TicketState.EXPIRED, "job-ended", said or "Your job ended before your server began."
    if why_it_waits(job.reason).never:
        return TicketState.REFUSED, "never-runs", why_it_waits(job.reason).message
    return TicketState.WAITING, "", ""

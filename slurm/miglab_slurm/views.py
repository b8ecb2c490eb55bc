"""Shows a job of the lab as the pages know it: as a ticket, or as the lease of a server.  Pure."""

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import duration, ordinal
from miglab_slurm.lab import SlurmShape
from miglab_slurm.picture import ClusterPicture, tag_of
from miglab_slurm.records import SlurmJob
from miglab_slurm.states import LOST
from miglab_slurm.wait_estimate import estimate
from miglab_slurm.words import why_it_ended, why_it_is_not_there, why_it_waits

GONE = "Your job is no longer in Slurm's queue. Start again."
SERVER_FIRST = (
    "You may run no further job beside this server, so your slice can start only after this server "
    "has ended."
)
FREE_AFTER_IT = (
    f"A {{shape}} is free now. {SERVER_FIRST} Restart with it: this server ends first, and its "
    "notebooks are saved. If somebody is faster, you wait in the queue at your position."
)
QUEUE_AFTER_IT = (
    f"{SERVER_FIRST} It would be {{place}} in the queue now, and whoever comes later may be served "
    "first. To wait in your turn, stop this server and ask for {shape} again at once: your "
    "position is kept."
)


def ticket_of(picture: ClusterPicture, job: SlurmJob) -> TicketView:
    """A job of ours as a ticket: its position by Slurm's order, and our own estimate."""
    tag, site = tag_of(job), picture.site
    shape = site.shapes.get(tag.shape)
    wait_words = why_it_waits(job.reason)
    state, reason, message = _state(job, shape)
    position, waiting, wait = None, 0, None
    if shape is not None and job.is_pending and state is TicketState.WAITING:
        message = wait_words.message
        if message and job.started_at is not None:
            message += f" Slurm plans its start in {duration(job.started_at - picture.at)}."
        if not wait_words.is_limit:  # else it is in no queue
            position = picture.waiting(shape, before=job.id) + 1
            waiting = max(picture.waiting(shape), position)
        if not message:
            wait = estimate(picture, shape, job.id)
        if picture.is_behind_own_server(job):
            state, message = _after_the_server(picture, job, shape)
    if state is TicketState.WAITING and not job.is_pending:
        message = picture.boot_message(job) or why_it_is_not_there(job.state)
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
        expires_at=(job.started_at or picture.at) + site.offer_s if job.is_running else None,
        reason=reason,
        message=message,
        lease=job.id if is_offered else None,
    )


def _after_the_server(
    picture: ClusterPicture, job: SlurmJob, shape: SlurmShape
) -> tuple[TicketState, str]:
    """A job that its student's own server holds up: what can be had once that has ended.

    While nobody else waits, a free slice can be taken.  Otherwise Slurm gives each slice that gets
    free to the next in the queue, in which this job is not.
    """
    name = tag_of(job).shape
    if picture.starts_at_once(shape):
        return TicketState.OFFERED, FREE_AFTER_IT.format(shape=name)
    before = (other.tasks for other in picture.queue(shape) if other.priority >= job.priority)
    place = ordinal(sum(before) + 1)
    return TicketState.WAITING, QUEUE_AFTER_IT.format(shape=name, place=place)


def lease_of(job: SlurmJob) -> LeaseView:
    """A job that runs, as what a server holds; Slurm's cgroup is the fence, so it has no UUIDs."""
    tag = tag_of(job)
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


def _state(job: SlurmJob, shape: SlurmShape | None) -> tuple[TicketState, str, str]:
    """A job's state as a ticket's, with the reason and the words for one that is over."""
    if job.is_running:
        return TicketState.OFFERED, "", ""
    if job.state == "CANCELLED":
        return TicketState.CANCELLED, "cancelled", "Your job was cancelled. Start again."
    if job.state == LOST:
        return TicketState.EXPIRED, "job-gone", GONE
    if job.has_left:
        explanation = why_it_ended(job.state, shape.time_limit_min if shape else 0)
        return (
            TicketState.EXPIRED,
            "job-ended",
            explanation or "Your job ended before your server began.",
        )
    if why_it_waits(job.reason).never:
        return TicketState.REFUSED, "never-runs", why_it_waits(job.reason).message
    return TicketState.WAITING, "", ""

"""A server's place in Slurm's queue, and what is told to whoever is at it."""

from collections.abc import Callable, Collection

from miglab_api.leases import ServerStatus
from miglab_api.staff import MessageRequest, SentMessage, StaffMessage, display_name
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import clock_time
from miglab_pool.reclaim.policy import LEAD
from miglab_pool.refused import Refused
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.picture import tag_of
from miglab_slurm.records import SlurmJob
from miglab_slurm.service.leases import ServerJobs, SlurmLeases, jobs_of_server
from miglab_slurm.views import ticket_gone, ticket_of

MOST_MESSAGES = 100


class SlurmTickets:
    """See the module."""

    def __init__(self, leases: SlurmLeases) -> None:
        self._leases = leases

    def server_status(
        self, user: str, server: str, known_ticket: int | None = None
    ) -> ServerStatus:
        """What a server holds and waits for; of ``known_ticket`` that is over, how it ended."""
        ticket = self._waiting(user, server)
        if ticket is None and known_ticket is not None:
            ticket = self._ended(user, known_ticket)
        return ServerStatus(lease=self._leases.lease_of_server(user, server), ticket=ticket)

    def end_outside(self, user: str, server: str, courses: Collection[str]) -> None:
        """Nothing: Slurm's accounts decide who may use a partition, when the job begins."""

    def cancel_of_server(self, user: str, server: str, actor: str, reason: str = "") -> TicketView:
        """Leave the queue, or give up the offer; staff say why.

        Raises:
            Refused: it has none.
        """
        waiting = self._jobs(user, server).waiting
        if waiting is None:
            raise Refused("unknown-ticket", "This server waits for nothing.", 404)
        return self.cancel_job(waiting, reason)

    def cancel_job(self, job: SlurmJob, reason: str) -> TicketView:
        """Take this very job out of the queue, or the offer back.

        Raises:
            Refused: it is over, or a server by now.
        """
        tag, picture = tag_of(job), self._leases.picture
        jobs = self._jobs(tag.user, tag.server)
        if picture is None or job.has_ended or job == jobs.running:
            raise Refused("unknown-ticket", f"Job {job.id} waits for nothing.", 404)
        self._leases.take_out(job, reason)
        ticket = ticket_of(picture, job)
        return ticket.model_copy(update={"state": TicketState.CANCELLED, "reason": "cancelled"})

    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Not here: only a start submits a job.

        Raises:
            Refused: always.
        """
        raise Refused("not-waiting", "Stop this server, then ask for the slice on its start page.")

    def _waiting(self, user: str, server: str) -> TicketView | None:
        job, picture = self._jobs(user, server).waiting, self._leases.picture
        if job is None or picture is None:
            return None
        return ticket_of(picture, job)

    def _ended(self, user: str, number: int) -> TicketView | None:
        picture = self._leases.picture
        if picture is None or number in self._leases.records:
            return None
        job = picture.jobs.get(number)
        if job is None or job.tag is None or job.tag.user != user:
            return ticket_gone(number)
        return ticket_of(picture, job)

    def _jobs(self, user: str, server: str) -> ServerJobs:
        picture = self._leases.picture
        if picture is None:
            return ServerJobs()
        return jobs_of_server(picture, user, server)


class SlurmMessages:
    """What staff say, and the end of a server without a GPU; memory only."""

    def __init__(
        self, settings: SlurmSettings, leases: SlurmLeases, now: Callable[[], float]
    ) -> None:
        self._settings, self._leases, self._now = settings, leases, now
        self._sent: list[SentMessage] = []
        self._next = int(now())

    def send(self, request: MessageRequest, actor: str) -> SentMessage:
        """Show a message from now on.

        Raises:
            Refused: too many are shown.
        """
        messages = self.shown()
        if len(messages) >= MOST_MESSAGES:
            raise Refused("too-many-messages", "As many messages are shown as may be.", 429)
        self._next += 1
        now = self._now()
        message = SentMessage(
            id=self._next, at=now, by=actor, to_user=request.to_user, to_server=request.to_server,
            to_course=request.to_course, text=request.text, until=now + request.minutes * 60,
        )  # fmt: skip
        self._sent = [*messages, message]
        return message

    def shown(self) -> list[SentMessage]:
        """Those that are shown now."""
        return [message for message in self._sent if message.until > self._now()]

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """What is to be shown to whoever is at this server."""
        for_server = [
            StaffMessage(
                id=message.id,
                at=message.at,
                by=display_name(message.by),
                text=message.text,
                until=message.until,
            )
            for message in reversed(self.shown())
            if _is_for(message, user, server, courses)
        ]
        return (*self._end_without_gpu(user, server), *for_server)

    def _end_without_gpu(self, user: str, server: str) -> list[StaffMessage]:
        """It has no lease that could be warned."""
        for record in self._leases.records.values():
            job, tag = record.job, record.job.tag
            if job.gres or tag is None or (tag.user, tag.server) != (user, server):
                continue
            lead_s = LEAD * self._settings.reclaim.warning_s
            if job.ends_at is None or job.ends_at - self._now() > lead_s:
                return []
            at = clock_time(job.ends_at, self._settings.lab.timezone)
            text = f"{at}: {record.end_reason}"
            return [
                StaffMessage(id=job.id, at=self._now(), by="Slurm", text=text, until=job.ends_at)
            ]
        return []


def _is_for(message: SentMessage, user: str, server: str, courses: Collection[str]) -> bool:
    if message.to_user is not None:
        return message.to_user == user and message.to_server in (None, server)
    return message.to_course is None or message.to_course in courses

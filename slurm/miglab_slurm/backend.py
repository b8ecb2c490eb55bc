"""Slurm answers what the lab's own pool answers: a ticket is a job, and so is a lease.

Slurm orders, limits, fences and accounts; this only submits, cancels, and puts what a picture says
into the words that all pages share.
"""

import asyncio
import logging
import shlex
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pwd import struct_passwd

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.line import Line
from miglab_api.offers import CPU, CourseOffers, Offers, ShapeOffer
from miglab_api.standings import line_of
from miglab_api.tickets import TicketRequest, TicketState, TicketView
from miglab_slurm import limits
from miglab_slurm.commands import CommandFailed, as_account, run
from miglab_slurm.lab import SlurmShape, SlurmSite
from miglab_slurm.picture import ClusterPicture, tag_of
from miglab_slurm.reader import SlurmReader
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.submissions import JobSubmission
from miglab_slurm.views import GONE, lease_of, ticket_gone, ticket_of
from miglab_slurm.wait_estimate import estimate
from miglab_slurm.words import refusal_of, why_it_waits
from miglab_spawner.backends import BackendUnreachable, RefusedByBackend

log = logging.getLogger(__name__)
EXHAUSTED = ("over-quota", "over-limit")  # it may be the very job that is given up


@dataclass(frozen=True)
class SlurmBackend:
    """A `Backend` for one student.

    Attributes:
        reader: the pictures.
        account: the Unix account of this student's jobs; raises RefusedByBackend for none.
        script: makes the job's script of its tag.
        home: the folder in which an account's job starts.
        log_file: where the job's own output goes, from there.
        kept_job: the job that keeps this server's position in the queue while it has no GPU.
        tickets: job number to the ticket of its submission, for the jobs that this server asked
            for; a number that another job has been given since is none of them.
    """

    reader: SlurmReader
    account: Callable[[], struct_passwd]
    script: Callable[[Tag, SlurmShape], str]
    home: Callable[[struct_passwd], str]
    log_file: str
    kept_job: int = 0
    tickets: dict[int, str] = field(default_factory=dict)

    @property
    def site(self) -> SlurmSite:
        """The site's table."""
        return self.reader.site

    # Tickets.

    async def request(self, request: TicketRequest) -> TicketView:
        """Submit a job, or find the one that this server has in the queue already."""
        self.account()
        shape = self._shape(request.shape)
        picture = await self._picture_with_all_of(request)
        if never := picture.why_never(shape):
            raise _refusal(never, is_closed=picture.is_closed(shape))
        if request.only_if_free and not picture.starts_at_once(shape):
            raise RefusedByBackend("not-free", f"No {request.shape} is free any more.", 409)
        superseded = []
        for job in self._jobs_of_server(picture, request.user, request.server):
            tag = tag_of(job)
            if (tag.shape, tag.course) == (request.shape, request.course):
                return self._adopt(picture, job)
            if job.id != self.kept_job:
                superseded.append(job)
        if superseded:
            await self._require_acceptable(request, shape)
        for job in superseded:
            await self._cancel(tag_of(job).ticket)
        ticket = await self._submit(request, shape)
        picture = await self.reader.picture(newer_than=asyncio.get_running_loop().time())
        return self._adopt(picture, picture.of_ticket(ticket))

    async def attend(self, ticket: int, wait_s: float) -> TicketView:
        """Attend a job: answers when what is said of it has changed, or after ``wait_s``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        picture = await self.reader.picture()
        first = self._ticket_view(picture, ticket)
        while True:
            if ticket in self.tickets:
                self.reader.claim(self.tickets[ticket])
            left_s = deadline - loop.time()
            if left_s <= 0:
                return self._ticket_view(picture, ticket)
            picture = await self.reader.next_picture(picture, left_s)
            now = self._ticket_view(picture, ticket)
            if now.model_copy(update={"estimate": first.estimate}) != first:
                return now

    async def cancel(self, ticket: int) -> TicketView:
        """Take the job out of the queue."""
        picture = await self.reader.picture()
        view = self._ticket_view(picture, ticket)
        if ticket in self.tickets:
            await self._cancel(self.tickets[ticket])
        return view.model_copy(update={"state": TicketState.CANCELLED, "reason": "cancelled"})

    async def take(self, ticket: int) -> LeaseView:
        """The job, as what its server holds."""
        picture = await self.reader.picture()
        job = self._job(picture, ticket)
        if job is None or job.has_ended:
            raise RefusedByBackend("expired", GONE, 409)
        return lease_of(job)

    # Readings.

    async def server_status(self, user: str, server: str) -> ServerStatus:
        """What a server holds and waits for."""
        picture = await self.reader.picture()
        server_jobs = self._jobs_of_server(picture, user, server)
        waiting = [
            job
            for job in server_jobs
            if job.is_pending or job.is_prepared or job.id == self.kept_job
        ]
        return ServerStatus(ticket=ticket_of(picture, waiting[0]) if waiting else None)

    async def line(self, user: str, server: str) -> Line:
        """Where a user stands: the jobs of all their servers, which wait or run."""
        picture = await self.reader.picture()
        servers = {server, *(tag_of(job).server for job in picture.lab_jobs(user))}
        jobs = [
            job
            for name in sorted(servers)
            for job in self._jobs_of_server(picture, user, name)
            if not job.has_ended
        ]
        queued = [job for job in jobs if job.is_pending or job.is_prepared]
        running = [lease_of(job) for job in jobs if job not in queued and job.id != self.kept_job]
        return line_of(running, [ticket_of(picture, job) for job in queued], time.time())

    async def alternatives(self, ticket: int) -> list[ShapeOffer]:
        """What who waits could have at once."""
        picture = await self.reader.picture()
        job = self._job(picture, ticket)
        if job is None or job.tag is None or why_it_waits(job.reason).is_limit:
            return []
        names = self._shapes_of(job.tag.course)
        return [
            self._offer(picture, name)
            for name in names
            if name not in (CPU, job.tag.shape) and picture.starts_at_once(self.site.shapes[name])
        ]

    async def meanwhile_notice(self, ticket: int) -> str:
        """What a limit on the student's jobs means for a server without a GPU; empty for none.

        Raises:
            BackendUnreachable: Slurm does not answer.
        """
        job = self._job(await self.reader.picture(), ticket)
        return (
            await limits.meanwhile_notice(self.site, job, self.account()) if job is not None else ""
        )

    async def offers(self, user: str, courses: Sequence[str], server: str | None = None) -> Offers:
        """What these courses offer now, and what the server waits for, if one is named.

        A name that is no course is left out.
        """
        picture = await self.reader.picture()
        offered_courses = [
            (name, self.site.courses[name]) for name in courses if name in self.site.courses
        ]
        return Offers(
            simulated=False,
            courses=tuple(
                CourseOffers(
                    course=name,
                    title=course.title,
                    shapes=tuple(
                        self._offer(picture, shape)
                        for shape in dict.fromkeys((*self._shapes_of(name), CPU))
                    ),
                    default=course.default,
                )
                for name, course in offered_courses
            ),
            ticket=None if server is None else (await self.server_status(user, server)).ticket,
        )

    # How it is done.

    def _shape(self, name: str) -> SlurmShape:
        shape = self.site.shapes.get(name)
        if shape is None:
            offered = ", ".join(self.site.shapes)
            message = f"This site has no “{name}”. It has: {offered}."
            raise RefusedByBackend("shape-not-offered", message, 400)
        return shape

    def _shapes_of(self, course: str) -> list[str]:
        table = self.site.courses.get(course)
        return [name for name in (table.shapes if table else ()) if name in self.site.shapes]

    def _jobs_of_server(self, picture: ClusterPicture, user: str, server: str) -> list[SlurmJob]:
        """The jobs of a server that wait or are alive, and that are not given up."""
        tickets = {row.tag.ticket for row in self.reader.submissions.open_for_server(user, server)}
        return [
            job
            for job in picture.lab_jobs(user, server)
            if not job.has_left and tag_of(job).ticket in tickets
        ]

    async def _picture_with_all_of(self, request: TicketRequest) -> ClusterPicture:
        """A picture in which every job is that this server was submitted, if Slurm shows it."""
        picture = await self.reader.picture()
        noted = self.reader.submissions.open_for_server(request.user, request.server)
        if all(picture.of_ticket(row.tag.ticket) for row in noted):
            return picture
        return await self.reader.picture(newer_than=asyncio.get_running_loop().time())

    def _job(self, picture: ClusterPicture, number: int) -> SlurmJob | None:
        """The job of this server that has a number; not another one that was given it since."""
        job = picture.jobs.get(number)
        if job is None or job.tag is None or job.tag.ticket != self.tickets.get(number):
            return None
        return job

    def _adopt(self, picture: ClusterPicture, job: SlurmJob | None) -> TicketView:
        """A job that was submitted for this server, from now on one of its tickets."""
        if job is None:
            raise BackendUnreachable("Slurm took a job, and its number is another job's by now")
        ticket = tag_of(job).ticket
        self.tickets[job.id] = ticket
        self.reader.claim(ticket)
        return ticket_of(picture, job)

    async def _require_acceptable(self, request: TicketRequest, shape: SlurmShape) -> None:
        """See that Slurm would take a job, before another one gives its position up for it.

        Raises:
            RefusedByBackend: it would not, whatever else waits.
        """
        try:
            await self._sbatch(self._tag(request), shape, "--test-only")
        except RefusedByBackend as refused:
            if refused.reason not in EXHAUSTED:
                raise

    def _tag(self, request: TicketRequest) -> Tag:
        lab, ticket = self.reader.submissions.lab, uuid.uuid4().hex
        return Tag(lab, request.user, request.server, request.course, request.shape, ticket)

    async def _submit(self, request: TicketRequest, shape: SlurmShape) -> str:
        """Submit a job, which is noted before; returns the ticket of its submission.

        Where the answer to an earlier `sbatch` of this start was lost, and Slurm has been asked
        since and shows no such job, it is the same submission once more, under the same name.

        Raises:
            BackendUnreachable: Slurm does not answer, or does not show what it may have taken.
            RefusedByBackend: Slurm refused the job.
        """
        submissions, account = self.reader.submissions, self.account().pw_name
        earlier = self._unanswered(request, account)
        tag = earlier.tag if earlier else self._tag(request)
        submission = submissions.intend(tag, account, time.time())
        try:
            job = await self._sbatch(
                tag,
                shape,
                f"--job-name={submission.name}",
                f"--comment={submissions.comment_of(submission)}",
            )
        except RefusedByBackend:
            if earlier is None:
                submissions.withdraw(tag.ticket)
            raise
        except BackendUnreachable:
            picture = await self.reader.picture(newer_than=asyncio.get_running_loop().time())
            if picture.of_ticket(tag.ticket) is None:
                raise
            return tag.ticket
        submissions.note_number(tag.ticket, job)
        return tag.ticket

    def _unanswered(self, request: TicketRequest, account: str) -> JobSubmission | None:
        """A submission for the same of which nobody knows whether Slurm took it."""
        start = (request.course, request.shape, account)
        for row in self.reader.submissions.open_for_server(request.user, request.server):
            if row.job is None and (row.tag.course, row.tag.shape, row.account) == start:
                return row
        return None

    async def _sbatch(self, tag: Tag, shape: SlurmShape, *further: str) -> int:
        """Run `sbatch`; the number that it prints, 0 for a mere test."""
        account = self.account()
        options = [*self._options(tag, shape, self.home(account)), *further]
        command = [*as_account(self.site.run_as, account.pw_name), "sbatch", *options]
        try:
            output = await run(command, self.site.command_timeout_s, self.script(tag, shape))
        except CommandFailed as failed:
            log.warning("Slurm refused a job: %s: %s", shlex.join(command), failed)
            raise refusal_of(failed) from failed
        number = output.strip().partition(";")[0]
        if number.isdecimal():
            return int(number)
        if "--test-only" in further:
            return 0
        raise BackendUnreachable(f"sbatch has printed no job's number, but {output!r}")

    def _options(self, tag: Tag, shape: SlurmShape, home: str) -> list[str]:
        """The options of `sbatch`."""
        memory = [f"--mem={shape.memory_mib}M"] if shape.memory_mib else []
        return [
            "--parsable", "--no-requeue", *self.site.options_of(shape, tag.course), *memory,
            f"--cpus-per-task={shape.cpus}", f"--chdir={home}", f"--output={self.log_file}",
        ]  # fmt: skip

    async def _cancel(self, ticket: str) -> None:
        self.reader.disown(ticket)
        await self.reader.cancel(ticket)

    def _ticket_view(self, picture: ClusterPicture, number: int) -> TicketView:
        job = self._job(picture, number)
        return ticket_of(picture, job) if job is not None else ticket_gone(number)

    def _offer(self, picture: ClusterPicture, name: str) -> ShapeOffer:
        shape, never = self.site.shapes[name], picture.why_never(self.site.shapes[name])
        free, starting = picture.free(shape), picture.starting(shape)
        return ShapeOffer(
            shape=name,
            sm_count=shape.sm_count if shape.gres else 0,
            memory_mib=round(shape.gpu_memory_gib * 1024) if shape.gres else 0,
            slices=shape.count,
            good_for=shape.good_for,
            free_now=starting if shape.gres else None,
            is_held=bool(shape.gres and free and not starting),
            total=picture.total(shape) if shape.gres else None,
            waiting=picture.waiting(shape) if shape.gres else 0,
            never=never,
            held_up=picture.why_nothing_starts(shape),
            slow=picture.why_slow(shape),
            wait=None if starting or never else estimate(picture, shape, None),
        )


def _refusal(never: str, *, is_closed: bool) -> RefusedByBackend:
    """What is refused before it is submitted."""
    if is_closed:
        message = f"{never} Choose another shape, or try again later."
        return RefusedByBackend("partition-down", message, 503)
    return RefusedByBackend("impossible-shape", f"{never} Choose another shape.", 400)

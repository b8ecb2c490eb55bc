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
from pwd import struct_passwd

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.offers import CPU, CourseOffers, Offers, ShapeOffer
from miglab_api.tickets import TicketRequest, TicketState, TicketView
from miglab_slurm.commands import CommandFailed, run
from miglab_slurm.estimate import estimate
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.reader import SlurmReader, as_account
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.site import SlurmShape, SlurmSite
from miglab_slurm.views import (
    GONE,
    lease_of,
    tag_of_ours,
    ticket_gone,
    ticket_of,
)
from miglab_slurm.words import refusal_of, why_it_waits
from miglab_spawner.backends.base import RefusedByBackend

log = logging.getLogger(__name__)
EXHAUSTED = ("over-quota", "over-limit")  # it may be the very job that is given up


class SlurmBackend:
    """A `Backend` for one student.

    Args:
        reader: the pictures.
        account: the Unix account of this student's jobs; raises RefusedByBackend for none.
        script: makes the job's script of its tag.
        home: the folder in which an account's job starts.
        log_file: where the job's own output goes, from there.
        kept: the job that keeps this server's position in the queue while it runs without a GPU.
    """

    def __init__(
        self,
        reader: SlurmReader,
        account: Callable[[], struct_passwd],
        script: Callable[[Tag, SlurmShape], str],
        home: Callable[[struct_passwd], str],
        log_file: str,
        kept: int = 0,
    ) -> None:
        self._reader = reader
        self._account = account
        self._script = script
        self._home = home
        self._log_file = log_file
        self._kept = kept

    @property
    def site(self) -> SlurmSite:
        """The site's table."""
        return self._reader.site

    # Tickets.

    async def request(self, request: TicketRequest) -> TicketView:
        """Submit a job, or find the one that this server has in the queue already."""
        self._account()
        shape = self._shape(request.shape)
        picture = await self._reader.picture()
        if never := picture.why_never(shape):
            raise _refused(never, is_closed=picture.is_closed(shape))
        if request.only_if_free and not picture.starts_at_once(shape):
            raise RefusedByBackend("not-free", f"No {request.shape} is free any more.", 409)
        others = []
        for job in self._own(picture, request.user, request.server):
            tag = tag_of_ours(job)
            if (tag.shape, tag.course) == (request.shape, request.course):
                self._reader.claim(job.id)
                return self._view(picture, job)
            if job.id != self._kept:
                others.append(job)
        if others:
            await self._check(request, shape)
        for job in others:
            await self._cancel(job.id)
        ticket = await self._submit(request, shape)
        asked = asyncio.get_running_loop().time()
        return await self._submitted(ticket, asked)

    async def attend(self, ticket: int, wait_s: float) -> TicketView:
        """Attend a job: answers when what is said of it has changed, or after ``wait_s``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        picture = await self._reader.picture()
        first = self._said(picture, ticket)
        while True:
            self._reader.claim(ticket)
            left_s = deadline - loop.time()
            if left_s <= 0:
                return self._said(picture, ticket)
            picture = await self._reader.changed(picture, left_s)
            now = self._said(picture, ticket)
            if now.model_copy(update={"estimate": first.estimate}) != first:
                return now

    async def cancel(self, ticket: int) -> TicketView:
        """Take the job out of the queue."""
        picture = await self._reader.picture()
        said = self._said(picture, ticket)
        await self._cancel(ticket)
        return said.model_copy(update={"state": TicketState.CANCELLED, "reason": "cancelled"})

    async def take(self, ticket: int) -> LeaseView:
        """The job, as what its server holds."""
        picture = await self._reader.picture()
        job = picture.jobs.get(ticket)
        if job is None or job.tag is None or job.has_ended:
            raise RefusedByBackend("expired", GONE, 409)
        return lease_of(job)

    # Readings.

    async def server_status(self, user: str, server: str) -> ServerStatus:
        """What a server holds and waits for."""
        picture = await self._reader.picture()
        own = self._own(picture, user, server)
        waiting = [job for job in own if job.is_pending or job.id == self._kept]
        return ServerStatus(ticket=self._view(picture, waiting[0]) if waiting else None)

    async def alternatives(self, ticket: int) -> list[ShapeOffer]:
        """What who waits could have at once."""
        picture = await self._reader.picture()
        job = picture.jobs.get(ticket)
        if job is None or job.tag is None or why_it_waits(job.reason).is_limit:
            return []
        names = self._shapes_of(job.tag.course)
        return [
            self._offer(picture, name)
            for name in names
            if name not in (CPU, job.tag.shape) and picture.starts_at_once(self.site.shapes[name])
        ]

    async def offers(self, user: str, courses: Sequence[str]) -> Offers:
        """What these courses offer now; a name that is no course is left out."""
        picture = await self._reader.picture()
        known = [(name, self.site.courses[name]) for name in courses if name in self.site.courses]
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
                for name, course in known
            ),
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

    def _own(self, picture: ClusterPicture, user: str, server: str) -> list[SlurmJob]:
        """The jobs of a server that wait, or run and have not been handed over."""
        return [
            job
            for job in picture.own(user, server)
            if (job.is_pending or job.is_running) and not self._reader.is_disowned(job.id)
        ]

    async def _check(self, request: TicketRequest, shape: SlurmShape) -> None:
        """See that Slurm would take a job, before another one gives its position up for it.

        Raises:
            RefusedByBackend: it would not, whatever else waits.
        """
        try:
            await self._sbatch(self._tag(request), shape, "", "--test-only")
        except RefusedByBackend as refused:
            if refused.reason not in EXHAUSTED:
                raise

    def _tag(self, request: TicketRequest) -> Tag:
        lab, ticket = self._reader.submissions.lab, uuid.uuid4().hex
        return Tag(lab, request.user, request.server, request.course, request.shape, ticket)

    async def _submit(self, request: TicketRequest, shape: SlurmShape) -> str:
        """Submit a job, which is noted before; returns what tells it from all others."""
        tag, submissions = self._tag(request), self._reader.submissions
        comment = submissions.intend(tag, self._account().pw_name, time.time())
        try:
            await self._sbatch(tag, shape, comment)
        except RefusedByBackend:
            submissions.withdraw(tag.ticket)
            raise
        return tag.ticket

    async def _sbatch(self, tag: Tag, shape: SlurmShape, comment: str, *more: str) -> None:
        account = self._account()
        options = [*self._options(tag, shape, self._home(account)), *more]
        words = [*as_account(self.site, account.pw_name), "sbatch", *options]
        given = [f"--comment={comment}"] if comment else []
        try:
            await run([*words, *given], self.site.command_timeout_s, self._script(tag, shape))
        except CommandFailed as failed:
            log.warning("Slurm refused a job: %s: %s", shlex.join(words), failed)
            raise refusal_of(failed) from failed

    def _options(self, tag: Tag, shape: SlurmShape, home: str) -> list[str]:
        """The options of `sbatch`; empty ones are left to Slurm."""
        own = self.site.accounts.get(tag.course, "")
        values = {
            "partition": self.site.partition_of(shape),
            "gres": shape.gres,
            "account": shape.account or own or self.site.account,
            "qos": shape.qos,
            "reservation": shape.reservation,
            "time": str(shape.time_limit_min),
            "cpus-per-task": str(shape.cpus),
            "mem": f"{shape.memory_mib}M" if shape.memory_mib else "",
            "job-name": f"jupyter-{tag.shape}",
            "chdir": home,
            "output": self._log_file,
        }
        given = [f"--{name}={value}" for name, value in values.items() if value]
        return ["--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", *given]

    async def _cancel(self, job: int) -> None:
        await self._reader.cancel(job)
        self._reader.disown(job)

    async def _submitted(self, ticket: str, asked: float) -> TicketView:
        """The job of a submission that Slurm has taken, as the next picture shows it."""
        picture = await self._reader.picture(newer_than=asked)
        for job in picture.jobs.values():
            if job.tag is not None and job.tag.ticket == ticket:
                self._reader.claim(job.id)
                return self._view(picture, job)
        message = "Slurm took the job, but does not show it as it was submitted."
        log.error("%s Does a job_submit plugin change comments? Ticket %s", message, ticket)
        raise RefusedByBackend("slurm-refused", f"{message} Tell your instructor.", 503)

    def _said(self, picture: ClusterPicture, job_id: int) -> TicketView:
        job = picture.jobs.get(job_id)
        if job is None or job.tag is None:
            return ticket_gone(job_id)
        return self._view(picture, job)

    def _view(self, picture: ClusterPicture, job: SlurmJob) -> TicketView:
        return ticket_of(picture, job, self._reader.stays_s)

    def _stays(self, shape: SlurmShape) -> Sequence[float]:
        return self._reader.stays_s.get(shape.gres_type, ())

    def _offer(self, picture: ClusterPicture, name: str) -> ShapeOffer:
        shape = self.site.shapes[name]
        held_up = picture.why_nothing_starts(shape)
        if not shape.gres:
            return ShapeOffer(
                shape=name, sm_count=0, memory_mib=0, slices=0, good_for=shape.good_for,
                free_now=None, never=picture.why_never(shape), held_up=held_up,
            )  # fmt: skip
        free, waiting = picture.free(shape), len(picture.queue(shape))
        never = picture.why_never(shape)
        has_room = picture.starts_at_once(shape)
        return ShapeOffer(
            shape=name,
            sm_count=shape.sm_count,
            memory_mib=round(shape.gpu_memory_gib * 1024),
            slices=shape.count,
            good_for=shape.good_for,
            free_now=free if has_room else 0,
            is_held=free > 0 and not has_room,
            total=picture.total(shape),
            waiting=waiting,
            never=never,
            held_up=held_up,
            wait=None if has_room or never else estimate(picture, shape, None, self._stays(shape)),
        )


def _refused(never: str, *, is_closed: bool) -> RefusedByBackend:
    """What is refused before it is submitted."""
    if is_closed:
        said = f"{never} Choose another shape, or try again later."
        return RefusedByBackend("partition-down", said, 503)
    return RefusedByBackend("impossible-shape", f"{never} Choose another shape.", 400)

"""A server that is a Slurm job: it reports, gets its environment, is watched, and is cancelled.

Knows nothing of shapes, pages and waits.  The job exists before the start: slurm.py sees to that.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from pwd import struct_passwd
from typing import Annotated, Any

from jupyterhub.spawner import Spawner
from pydantic import Field
from traitlets import Dict, TraitError, Unicode, default, validate

from miglab_api.base import WireModel
from miglab_slurm.lab import SlurmSite
from miglab_slurm.picture import ClusterPicture, tag_of
from miglab_slurm.reader import SlurmReader, reader_of
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.unix_accounts import NoAccountError, account_of
from miglab_spawner.backends import BackendError
from miglab_spawner.listening import is_listening, save_place
from miglab_spawner.refusals import NotStarted

LISTEN_PAUSE_S = 0.05
STOP_S = 60.0
POLL_S = 5
ANSWERS_WITHIN_S = 5.0
"""So long a node may take to accept or refuse a connection to a server."""
HANDOVER = "miglab/slurm/handover"
"""The route below the hub's API by which a job asks for its server's environment."""


class JobReport(WireModel):
    """What a job that runs says of itself.

    Attributes:
        tag: whose it says it is.
        secret: proves that the hub wrote the job's script.
        port: on which its server will listen.
    """

    tag: Tag
    secret: Annotated[str, Field(max_length=128)]
    job: Annotated[int, Field(ge=1, lt=2**32)]
    port: Annotated[int, Field(ge=1024, le=65535)]


class JobSpawner(Spawner):
    """A spawner whose server is a Slurm job that exists already: hand over, watch, end."""

    lab_id: str
    _patiently: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]

    slurm = Dict(
        help="""The site's table: shapes with gres, partition, account, QOS and time limit, and how
        a server is run.

        Its keys are those of `[slurm]` in lab.toml; the docs' page "Settings" lists them.
        """,
    ).tag(config=True)

    slurm_jobs_file = Unicode(
        "slurm-jobs.sqlite",
        help="""File (mode 0600) with the lab's identity, its key, and the jobs that it submitted.

        It is made at the first start, from the hub's working directory if the path is relative.  A
        lab that lost it does nothing to the jobs of before.
        """,
    ).tag(config=True)

    _job = 0
    """The number of the server's job; with its ticket in `_tickets` it is this job and no other."""
    _serving = ""
    """The ticket of the job whose server has answered."""
    _cancelled = 0
    _is_given_back = False

    def __init__(self, **kwargs: Any) -> None:
        self._reports: dict[str, JobReport] = {}
        self._tickets: dict[int, str] = {}
        self._changed = asyncio.Event()
        self._answer: dict[str, object] | None = None
        super().__init__(**kwargs)

    @validate("slurm")
    def _validate_site(self, proposal: Any) -> Any:
        try:
            SlurmSite.model_validate(proposal["value"])
        except ValueError as error:
            raise TraitError(str(error)) from error
        return proposal["value"]

    @default("ip")
    def _default_ip(self) -> str:
        return "0.0.0.0"  # noqa: S104 - the hub and the proxy are on another machine

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        """A node has its own PATH."""
        return []

    @default("poll_interval")
    def _default_poll_interval(self) -> int:
        """All look at one picture; a server that Slurm ended is seen soon."""
        return POLL_S

    @default("args")
    def _default_args(self) -> list[str]:
        return ["--allow-root"] if not self.site.run_as and os.geteuid() == 0 else []

    @property
    def site(self) -> SlurmSite:
        """The site's table."""
        return SlurmSite.model_validate(self.slurm)

    @property
    def reader(self) -> SlurmReader:
        """The pictures, one reader for all students."""
        return reader_of(Path(self.slurm_jobs_file), self.lab_id, self.site)

    def account(self) -> struct_passwd:
        """The Unix account of this student's jobs.

        Raises:
            NoAccountError: there is none, or it may run no jobs.
        """
        try:
            return account_of(self.site, self.user.name)
        except NoAccountError as error:
            self.log.warning("%r may run no server: %s", self.user.name, error.cause)
            raise

    # A start: the job runs, and asks.

    async def hand_over(self, report: JobReport) -> dict[str, object] | None:
        """For the job's own request: what it is to become, once `start` has come that far.

        None once this server is over: another start of it may want the job.

        Raises:
            LookupError: this server is another job.
        """
        ticket = report.tag.ticket
        if ticket == self._serving:
            raise LookupError("this job was begun anew, and its server has ended")
        self._reports[ticket] = report
        self._ring()
        while self._answer is None or ticket != self._tickets.get(self._job):
            if self._is_given_back:
                return None
            if not self.may_become(ticket):
                raise LookupError("this server is another job")
            await self._changed.wait()
        return self._answer

    def may_become(self, ticket: str) -> bool:
        """Whether the job of a submission that reports is, or may become, this server."""
        return not self._job or ticket == self._tickets.get(self._job)

    async def start(self) -> tuple[str, int]:
        """Hand the environment to the job that was granted, and wait for its server."""
        self._ring()
        report = await self._report_of(self._job)
        address = await self._address()
        self.port = report.port
        command = [*self.cmd, *self.get_args()]
        environment = self.get_env()
        save_place(self, address, report.port)
        self._answer = {"environment": environment, "command": command}
        self._ring()
        try:
            await self._until_listening(address, report.port)
        finally:
            self._answer = None
        self._serving = report.tag.ticket
        return address, report.port

    async def poll(self) -> int | None:
        """Gone only if somebody knows that the job is over; else alive."""
        if not self._job:
            return 0
        if self._job in self._tickets:
            self.reader.hold(self._tickets[self._job], self)
        try:
            picture = await self.reader.picture()
        except BackendError as error:
            self.log.warning("Does job %d run? Slurm: %s", self._job, error)
            return None
        if not self._is_over(picture) and not self._waits_again(picture):
            return None
        self.report_end(self._job_in(picture))
        return 1

    async def stop(self, now: bool = False) -> None:
        """Cancel the job, and wait until it is known to be over."""
        if self._job not in self._tickets:
            return
        ticket = self._tickets[self._job]
        self.reader.submissions.give_up(ticket)
        try:
            async with asyncio.timeout(STOP_S):
                await self._patiently(lambda: self.reader.cancel(ticket))
                self._cancelled = self._job
                while not now and not self._is_over(await self._new_picture()):
                    pass
        except TimeoutError:
            self.log.warning("Job %d may still run; it will be cancelled", self._job)

    async def is_silent(self) -> bool:
        """Whether the node refuses a connection to the server; one that is cut off does not."""
        if self.server is None or not self.server.port:
            return True
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                _, writer = await asyncio.open_connection(self.server.ip, self.server.port)
        except ConnectionRefusedError:
            return True
        except OSError:  # a time-out as well
            return False
        writer.close()
        return False

    def report_end(self, job: SlurmJob | None) -> None:
        """Slurm says that the job is over; None where it has forgotten how."""

    async def _new_picture(self) -> ClusterPicture:
        """A picture that was asked for after this call; waits until Slurm answers."""
        called_at = asyncio.get_running_loop().time()
        picture: ClusterPicture = await self._patiently(
            lambda: self.reader.picture(newer_than=called_at)
        )
        return picture

    def _job_in(self, picture: ClusterPicture) -> SlurmJob | None:
        """This server's job; not another one that has been given its number."""
        return picture.of_ticket(self._tickets.get(self._job, ""))

    def _is_over(self, picture: ClusterPicture) -> bool:
        """Whether somebody knows that the job is over; what a picture lacks may run on."""
        job = self._job_in(picture)
        if job is not None:
            return job.has_ended
        row = self.reader.submissions.find(self._tickets.get(self._job, ""))
        return row is not None and row.is_over

    def _waits_again(self, picture: ClusterPicture) -> bool:
        """Whether the job was put back into the queue, which has ended its server."""
        job = self._job_in(picture)
        return job is not None and job.is_pending and tag_of(job).ticket == self._serving

    async def _report_of(self, job: int) -> JobReport:
        while (report := self._reports.get(self._tickets.get(job, ""))) is None:
            await self._changed.wait()
        return report

    async def _address(self) -> str:
        """The address of the job's node, by Slurm's word and not by the job's.

        The latest picture will do where it shows the job running: one that is requeued waits.
        """
        picture = self.reader.latest or await self._new_picture()
        while True:
            job = self._job_in(picture)
            node = picture.nodes.get(job.nodes) if job is not None else None
            if job is not None and job.is_running and node is not None:
                return node.address
            picture = await self._new_picture()
            self._raise_if_over(picture)

    async def _until_listening(self, address: str, port: int) -> None:
        while not await is_listening(address, port, ANSWERS_WITHIN_S):
            await asyncio.sleep(LISTEN_PAUSE_S)
            self._raise_if_over(await self._patiently(self.reader.picture))

    def _raise_if_over(self, picture: ClusterPicture) -> None:
        if self._is_over(picture):
            raise NotStarted(
                "Your server ended before it answered. Try again; if it happens again, tell your "
                "instructor.",
                reason="job-ended",
                status_code=500,
            )

    def _ring(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

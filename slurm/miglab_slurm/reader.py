"""One picture for all: asks Slurm every few seconds, whatever the number of students.

Owns what the hub knows of the cluster beyond Slurm's own memory: observed stays, and which jobs
somebody of this hub still attends.  A job that the lab submitted and nobody attends is cancelled.
A job is named here by the ticket of its submission: its number can come again.
"""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from miglab_slurm.commands import CommandFailed, as_account, run, run_verbosely
from miglab_slurm.counting import RULES_S, SlurmRules, read_rules
from miglab_slurm.lab import SlurmSite
from miglab_slurm.nodes import NODE_FIELDS, nodes_of, reservations_of
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import JOB_FIELDS, Listing, SlurmJob, jobs_of
from miglab_slurm.submissions import JobSubmission, Submissions, look_alike_warning
from miglab_slurm.unshown import UnshownJobs
from miglab_slurm.wait_estimate import stays_of
from miglab_spawner.backends import BackendError, BackendUnreachable

LEAST_GAP_S = 0.25
"""Between two readings, whoever asks: a start that needs one now does not wait for the next."""
STAYS_KEPT = 200
TERMINATING = "Terminating job"
"""What `scancel --verbose` says of a job that it has Slurm cancel."""

log = logging.getLogger(__name__)


class JobServer(Protocol):
    """A server that is a job."""

    async def is_silent(self) -> bool:
        """Whether its node refuses a connection to it."""


class SlurmReader:
    """The pictures of one site, for one lab.

    Args:
        submissions: what the lab has submitted.
        site: its tables.
        sweeps: whether jobs are adopted, and cancelled if nobody attends them: the hub's, which
            submits them and knows who attends.

    Attributes:
        readings: how often Slurm was asked.
    """

    def __init__(self, submissions: Submissions, site: SlurmSite, *, sweeps: bool = True) -> None:
        self._sweeps = sweeps
        self._last_warning = ""
        self.submissions = submissions
        self.site = site
        self.readings = 0
        self._unshown = UnshownJobs(site, submissions)
        self._claims: dict[str, float] = {}
        self._held: weakref.WeakValueDictionary[str, JobServer] = weakref.WeakValueDictionary()
        self._picture: ClusterPicture | None = None
        self._trouble: BackendError | None = None
        self._arrived = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Reading.

    async def picture(self, newer_than: float | None = None) -> ClusterPicture:
        """A picture that was asked for after a moment of the loop's clock; None: a current one.

        Raises:
            BackendUnreachable: Slurm does not answer; where a current one would do, it did not the
                last time, so that nobody waits for it to be silent once more.
        """
        self._run()
        now = asyncio.get_running_loop().time()
        needed = now - 2 * self.site.every_s if newer_than is None else newer_than
        while self._picture is None or self._picture.asked_at < needed:
            self._wanted.set()
            if newer_than is not None or self._trouble is None:
                await self._arrived.wait()
            if self._trouble is not None:
                raise BackendUnreachable(str(self._trouble)) from self._trouble
        return self._picture

    async def next_picture(self, picture: ClusterPicture, within_s: float) -> ClusterPicture:
        """The next picture after this one, or the same when none came in time."""
        arrived = self._arrived
        if self._picture is picture:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await arrived.wait()
        return self._picture or picture

    @property
    def latest(self) -> ClusterPicture | None:
        """The last one, however old; None before the first."""
        return self._picture

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def refresh(self) -> None:
        """Ask anew now: something is known to have changed."""
        self._run()
        self._wanted.set()

    # Whose jobs are attended.

    def claim(self, ticket: str) -> None:
        """Somebody attends this job: it is not cancelled for a while."""
        self._claims[ticket] = asyncio.get_running_loop().time()

    def hold(self, ticket: str, server: "JobServer") -> None:
        """A job is this server's: it is attended for as long as the hub knows the server."""
        self._held[ticket] = server
        self.claim(ticket)

    def let_go(self, ticket: str) -> None:
        """The server that attended this job is over; the job keeps its position for a while."""
        self._held.pop(ticket, None)
        self.claim(ticket)

    def disown(self, ticket: str) -> None:
        """Nobody wants this job any more: it is cancelled in every round until it is over."""
        self._held.pop(ticket, None)
        self._claims.pop(ticket, None)
        self.submissions.give_up(ticket)

    async def cancel(self, ticket: str) -> None:
        """Cancel a job of this lab as its account; one that is over already is fine.

        Slurm compares name, account and number in the same call, so a job that has been given the
        number since is left alone.

        Raises:
            BackendUnreachable: Slurm does not answer.
        """
        row = self.submissions.find(ticket)
        if row is None:
            log.warning("A job is not cancelled: this lab did not submit %s", ticket)
            return
        try:
            if await self._cancel(row, row.job):
                self.submissions.note_cancelled(ticket)
        except CommandFailed as failed:
            if "already completing" not in str(failed) and "Invalid job id" not in str(failed):
                raise BackendUnreachable(str(failed)) from failed

    async def _cancel(self, row: JobSubmission, job: int | None) -> bool:
        """Whether Slurm has such a job, and cancels it."""
        number = [str(job)] if job is not None else []
        filters = ["--verbose", f"--name={row.name}", f"--user={row.account}"]
        command = [*as_account(self.site.run_as, row.account), "scancel", *filters, *number]
        _, messages = await run_verbosely(command, self.site.command_timeout_s)
        return TERMINATING in messages and "error on job" not in messages

    # How it is done.

    def _run(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._read_on())

    async def _read_on(self) -> None:
        while True:
            self._wanted.clear()
            await self._read()
            arrived, self._arrived = self._arrived, asyncio.Event()
            arrived.set()
            await asyncio.sleep(LEAST_GAP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.site.every_s - LEAST_GAP_S):
                    await self._wanted.wait()

    async def _read(self) -> None:
        self.readings += 1
        try:
            picture = await self._whole_picture()
        except BackendError as error:
            if self._trouble is None:
                log.warning("Slurm does not answer: %s", error)
            self._trouble = BackendUnreachable(str(error))
        else:
            self._trouble = None
            self._picture = replace(picture, stays_s=self._stays_until(picture))
            if self._sweeps:
                await self._sweep(self._picture)

    async def _whole_picture(self) -> ClusterPicture:
        """What Slurm lists, and what of the lab's own it does not list."""
        listed = await read(self.site, self._picture.rules if self._picture else None)
        jobs = {**listed.jobs, **await self._unshown.look_for(listed.jobs)}
        if self._sweeps:
            self.submissions.adopt(jobs, listed.at)
            await self._unshown.settle(listed.at, self._is_silent)
        recognised = self._unshown.fill_in(self.submissions.with_tags(jobs))
        if self._sweeps:
            self._note_what_is_shown(jobs, recognised)
        return replace(listed, jobs=recognised)

    def _note_what_is_shown(
        self, listed: Mapping[int, SlurmJob], recognised: Mapping[int, SlurmJob]
    ) -> None:
        """Note which of the lab's jobs are over by Slurm's word, and which are so no more.

        A slurmctld that was killed knows nothing of what it had not saved, an end for instance.
        """
        ended = {row.tag.ticket: row.ended_as for row in self.submissions.rows()}
        for job in recognised.values():
            if job.tag is None or job.id not in listed:
                continue
            ended_as = job.state if job.has_ended else ""
            if bool(ended_as) != bool(ended.get(job.tag.ticket, ended_as)):
                self.submissions.note_end(job.tag.ticket, ended_as)

    async def _is_silent(self, row: JobSubmission) -> bool:
        """Whether nothing answers where a job's server was; nothing can where there was none."""
        server = self._held.get(row.tag.ticket)
        return server is None or await server.is_silent()

    def _stays_until(self, picture: ClusterPicture) -> dict[str, Sequence[float]]:
        """The stays that are known, and those that are over in this picture."""
        stays_s = dict(self._picture.stays_s) if self._picture else {}
        before = self._picture.jobs if self._picture else {}
        for job in stays_of(before, picture.jobs):
            started_at, ended_at = job.started_at or picture.at, picture.at
            if job.has_left and job.ends_at is not None:
                ended_at = job.ends_at
            for gres_type in job.gres:
                stay_s = max(0.0, ended_at - started_at)
                stays_s[gres_type] = (*stays_s.get(gres_type, ()), stay_s)[-STAYS_KEPT:]
        return stays_s

    async def _sweep(self, picture: ClusterPicture) -> None:
        """Cancel what is given up, and what nobody attends; a job seen first gets its grace."""
        self._tell(look_alike_warning(self.submissions.lab, picture.jobs.values()))
        alive = {job.tag.ticket: job for job in picture.lab_jobs() if job.tag}
        for ticket in alive:
            self._claims.setdefault(ticket, picture.asked_at)
        oldest = picture.asked_at - self.site.attend_grace_s
        for row in self.submissions.unsettled():
            ticket = row.tag.ticket
            job = alive.get(ticket)
            if job is None or job.has_left or ticket in self._held:
                continue
            if row.given_up or self._claims[ticket] < oldest:
                log.warning("Job %d of %s: nobody attends it; it is cancelled", job.id, job.account)
                await _cancel_or_log(self.cancel(ticket))
        for row, twin in self.submissions.duplicates(picture.jobs):
            log.warning("Job %d is another of job %s's start; it is cancelled", twin.id, row.job)
            await _cancel_or_log(self._cancel(row, twin.id))
        recent = picture.asked_at - 10 * self.site.attend_grace_s
        self._claims = {
            ticket: at for ticket, at in self._claims.items() if ticket in alive or at > recent
        }

    def _tell(self, warning: str) -> None:
        """Log once what is told of another lab's jobs."""
        if warning and warning != self._last_warning:
            log.warning("%s", warning)
        self._last_warning = warning


async def _cancel_or_log(cancelling: Coroutine[Any, Any, object]) -> None:
    try:
        await cancelling
    except BackendError as error:
        log.warning("A job is not cancelled yet: %s", error)


async def read(site: SlurmSite, rules: SlurmRules | None = None) -> ClusterPicture:
    """What Slurm's commands print; when one fails or we are cancelled, all have ended.

    Args:
        site: its tables.
        rules: those that were read last; they are read again after `RULES_S`.

    Raises:
        BackendUnreachable: Slurm does not answer.
    """
    asked_at, at = asyncio.get_running_loop().time(), time.time()
    partitions, limit_s = ",".join(site.partitions), site.command_timeout_s
    jobs, nodes = Listing(JOB_FIELDS), Listing(NODE_FIELDS)
    commands = (
        ["squeue", "-h", "-a", "-t", "all", "-p", partitions, "-O", jobs.option],
        ["sinfo", "-h", "-N", "-p", partitions, "-O", nodes.option],
        ["scontrol", "-o", "show", "reservation"],
    )
    silent: BackendError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(command, limit_s)) for command in commands]
    except* BackendError as failed:
        silent = BackendUnreachable(str(failed.exceptions[0]))
    if silent is not None:
        raise silent
    jobs_text, nodes_text, reserved = (task.result() for task in tasks)
    listed = nodes_of(nodes, nodes_text)
    if rules is None or asked_at - rules.read_at > RULES_S:
        rules = await read_rules(site, listed, asked_at)
    return ClusterPicture(
        asked_at, at, site, jobs_of(jobs, jobs_text), listed, reservations_of(reserved),
        rules=rules,
    )  # fmt: skip


_readers: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, str, str], SlurmReader]
] = weakref.WeakKeyDictionary()


def reader_of(file: Path, lab: str, site: SlurmSite) -> SlurmReader:
    """The running loop's one reader of this lab and site."""
    loop = asyncio.get_running_loop()
    readers = _readers.setdefault(loop, {})
    key = (str(file), lab, site.model_dump_json() + os.environ.get("SLURM_CONF", ""))
    if key not in readers:
        readers[key] = SlurmReader(Submissions(file, lab), site)
    return readers[key]


async def close_readers() -> None:
    """End the running loop's readers."""
    for reader in _readers.pop(asyncio.get_running_loop(), {}).values():
        await reader.close()

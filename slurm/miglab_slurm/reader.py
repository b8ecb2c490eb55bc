"""One picture for all: asks Slurm every few seconds, whatever the number of students.

Owns what the hub knows of the cluster beyond Slurm's own memory: observed stays, and which jobs
somebody of this hub still attends.  A job that the lab submitted and nobody attends is cancelled.
"""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from miglab_slurm.commands import CommandFailed, as_account, run
from miglab_slurm.lab import SlurmSite
from miglab_slurm.nodes import NODE_FIELDS, Node, nodes_of, reservations_of, resume_timeout_in
from miglab_slurm.picture import ClusterPicture, stays_of
from miglab_slurm.records import JOB_FIELDS, Listing, jobs_of
from miglab_slurm.submissions import Submissions, told_of
from miglab_spawner.backends import BackendError, BackendUnreachable

LEAST_GAP_S = 0.25
"""Between two readings, whoever asks: a start that needs one now does not wait for the next."""
STAYS_KEPT = 200

log = logging.getLogger(__name__)


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
        self._told = ""
        self.submissions = submissions
        self.site = site
        self.readings = 0
        self._claims: dict[int, float] = {}
        self._held: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
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

    async def changed(self, seen: ClusterPicture, within_s: float) -> ClusterPicture:
        """The next picture after this one, or the same when none came in time."""
        arrived = self._arrived
        if self._picture is seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await arrived.wait()
        return self._picture or seen

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

    def claim(self, job: int) -> None:
        """Somebody attends this job: it is not cancelled for a while."""
        self._claims[job] = asyncio.get_running_loop().time()

    def hold(self, job: int, server: object) -> None:
        """A job is this server's: it is attended for as long as the hub knows the server."""
        self._held[job] = server
        self.claim(job)

    def let_go(self, job: int) -> None:
        """The server that attended this job is over; the job keeps its position for a while."""
        self._held.pop(job, None)
        self.claim(job)

    def disown(self, job: int) -> None:
        """Nobody attends this job any more; it goes with the next picture."""
        self._held.pop(job, None)
        self._claims[job] = float("-inf")

    def is_disowned(self, job: int) -> bool:
        """Whether it is on its way out."""
        return self._claims.get(job) == float("-inf")

    async def cancel(self, job: int) -> None:
        """Cancel a job of this lab as its account; one that is over already is fine.

        Raises:
            BackendUnreachable: Slurm does not answer.
        """
        account = self.submissions.account_of(job)
        if not account:
            log.warning("Job %d is not cancelled: this lab did not submit it", job)
            return
        words = [*as_account(self.site.run_as, account), "scancel", str(job)]
        try:
            await run(words, self.site.command_timeout_s)
        except CommandFailed as failed:
            if "already completing" not in str(failed) and "Invalid job id" not in str(failed):
                raise BackendUnreachable(str(failed)) from failed

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
            seen = await read(self.site, self.submissions, adopts=self._sweeps)
            picture = replace(seen, stays_s=self._learnt(seen))
        except BackendError as error:
            if self._trouble is None:
                log.warning("Slurm does not answer: %s", error)
            self._trouble = BackendUnreachable(str(error))
        else:
            self._trouble = None
            self._picture = picture
            if self._sweeps:
                await self._sweep(picture)

    def _learnt(self, picture: ClusterPicture) -> dict[str, Sequence[float]]:
        """The stays that are known, and those that are over in this picture."""
        known = dict(self._picture.stays_s) if self._picture else {}
        before = self._picture.jobs if self._picture else {}
        for job in stays_of(before, picture.jobs):
            began, ended = job.started_at or picture.at, picture.at
            if job.has_left and job.ends_at is not None:
                ended = job.ends_at
            for gres_type in job.gres:
                stay_s = max(0.0, ended - began)
                known[gres_type] = (*known.get(gres_type, ()), stay_s)[-STAYS_KEPT:]
        return known

    async def _sweep(self, picture: ClusterPicture) -> None:
        """Cancel the lab's jobs that nobody attends; one seen for the first time gets its grace."""
        self._tell(told_of(self.submissions.lab, picture.jobs.values()))
        own = {job.id: job for job in picture.own()}
        for job in own.values():
            self._claims.setdefault(job.id, picture.asked_at)
        oldest = picture.asked_at - self.site.attend_grace_s
        for job in own.values():
            if job.id in self._held or job.state == "COMPLETING":
                continue
            if self._claims[job.id] < oldest:
                log.warning("Job %d of %s: nobody attends it; it is cancelled", job.id, job.account)
                try:
                    await self.cancel(job.id)
                except BackendError as error:
                    log.warning("Job %d is not cancelled yet: %s", job.id, error)
        recent = picture.asked_at - 10 * self.site.attend_grace_s
        self._claims = {job: at for job, at in self._claims.items() if job in own or at > recent}

    def _tell(self, told: str) -> None:
        """Log once what is told of another lab's jobs."""
        if told and told != self._told:
            log.warning("%s", told)
        self._told = told


async def read(
    site: SlurmSite, submissions: Submissions | None, *, adopts: bool = False
) -> ClusterPicture:
    """What Slurm's commands print; when one fails or we are cancelled, all have ended.

    Raises:
        BackendUnreachable: Slurm does not answer.
    """
    asked_at, at = asyncio.get_running_loop().time(), time.time()
    where, limit_s = ",".join(site.partitions), site.command_timeout_s
    jobs, nodes = Listing(JOB_FIELDS), Listing(NODE_FIELDS)
    asked = (
        ["squeue", "-h", "-a", "-t", "all", "-p", where, "-O", jobs.option],
        ["sinfo", "-h", "-N", "-p", where, "-O", nodes.option],
        ["scontrol", "-o", "show", "reservation"],
    )
    silent: BackendError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(words, limit_s)) for words in asked]
    except* BackendError as failed:
        silent = BackendUnreachable(str(failed.exceptions[0]))
    if silent is not None:
        raise silent
    jobs_said, nodes_said, reserved = (task.result() for task in tasks)
    found = jobs_of(jobs, jobs_said)
    if submissions is not None:
        if adopts:
            submissions.adopt(found, at)
        found = submissions.recognised(found)
    listed = nodes_of(nodes, nodes_said)
    return ClusterPicture(
        asked_at, at, site, found, listed, reservations_of(reserved),
        resume_timeout_s=await _resume_timeout(site, listed.values()),
    )  # fmt: skip


async def _resume_timeout(site: SlurmSite, nodes: Iterable[Node]) -> float | None:
    """How long a node may take to boot, seconds; asked where one is off, None if not told."""
    if not any(node.is_off for node in nodes):
        return None
    try:
        return resume_timeout_in(await run(("scontrol", "show", "config"), site.command_timeout_s))
    except BackendError:
        return None


_readers: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, str, str], SlurmReader]
] = weakref.WeakKeyDictionary()


def reader_of(file: Path, lab: str, site: SlurmSite) -> SlurmReader:
    """The running loop's one reader of this lab and site."""
    loop = asyncio.get_running_loop()
    known = _readers.setdefault(loop, {})
    key = (str(file), lab, site.model_dump_json() + os.environ.get("SLURM_CONF", ""))
    if key not in known:
        known[key] = SlurmReader(Submissions(file, lab), site)
    return known[key]


async def close_readers() -> None:
    """End the running loop's readers."""
    for reader in _readers.pop(asyncio.get_running_loop(), {}).values():
        await reader.close()

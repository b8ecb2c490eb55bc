"""The loop: look at the cluster, warn and reclaim by the pool's own policy, ask the hub to stop.

Nothing is decided on a picture that is old: while Slurm is silent nobody is warned or stopped.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from miglab_pool.http.errors import DeniedError
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.reclaim.server_stopper import ServerStopper
from miglab_pool.refused import Refused
from miglab_slurm.commands import CommandFailed, as_account, run
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.reader import SlurmReader
from miglab_slurm.records import JOB_FIELDS, Listing, SlurmJob, jobs_of
from miglab_slurm.service.leases import SlurmCommand, SlurmLeases
from miglab_slurm.service.tickets import SlurmMessages, SlurmTickets
from miglab_spawner.backends import BackendError

log = logging.getLogger(__name__)
T = TypeVar("T")


class SlurmDoor:
    """What the reclaimer, the student's listener and the page ask: the pool's words, Slurm's jobs.

    Args:
        settings: lab.toml.
        now: seconds since the epoch.
    """

    def __init__(self, settings: SlurmSettings, now: Callable[[], float] = time.time) -> None:
        self.leases = SlurmLeases(settings, now)
        self.tickets = SlurmTickets(self.leases)
        self.staff = SlurmMessages(settings, self.leases, now)


@dataclass
class RefusalCount:
    """Counts refusals; nobody reads them here but the log."""

    def count_refusal(self, reason: str) -> None:
        """Note one."""
        log.info("refused: %s", reason)


class SlurmRunner:
    """See the module."""

    def __init__(
        self,
        settings: SlurmSettings,
        reader: SlurmReader,
        reclaimer: Reclaimer,
        ender: ServerStopper,
    ) -> None:
        self.metrics = RefusalCount()
        self.door = SlurmDoor(settings)
        self.reclaimer = reclaimer
        self.reader = reader
        self.trouble = "Slurm has not been asked yet."
        self._settings, self._ender = settings, ender

    async def query_view(self, question: Callable[[SlurmDoor], T]) -> T:
        """Ask, and change nothing."""
        return question(self.door)

    async def name_of(self, user_id: str, name: str) -> str:
        """The hub's name: jobs are found by it."""
        return name

    async def decide(self, decision: Callable[[SlurmDoor], T]) -> T:
        """Decide, then do what was decided.

        Raises:
            Refused: the decision is no, or the job is another one by now.
            DeniedError: Slurm says no, or does not answer.
        """
        answer = decision(self.door)
        for command in self.door.leases.take_commands():
            await self._do(command)
        return answer

    async def round(self) -> None:
        """Look once, and act.

        Raises:
            BackendError: Slurm does not answer.
        """
        picture = await self.reader.picture()
        self.trouble = ""
        for record in self.door.leases.update(picture):
            if (tag := record.job.tag) is not None:
                self.reader.submissions.note_stay(record.stay(tag, picture.at))
        self.reclaimer.round(self.door)
        await self._ender.stop_servers(self.door.leases.to_stop())

    async def run(self) -> None:
        """A round every few seconds, until it is cancelled."""
        while True:
            try:
                await self.round()
            except BackendError as error:
                self.trouble = str(error)
                log.warning("Slurm does not answer: %s", error)
            except Exception:  # a loop's outer frame: the next round may go well
                log.exception("a round failed")
            await asyncio.sleep(self._settings.reclaim.every_s)

    async def _do(self, command: SlurmCommand) -> None:
        site = self._settings.slurm_site
        prefix = as_account(site.run_as, command.account) if command.account else ()
        arguments = [*prefix, *command.arguments]
        log.info("doing: %s", " ".join(arguments))
        try:
            if command.numbered is not None:
                await self._require_same(command.numbered)
            await run(arguments, site.command_timeout_s)
        except CommandFailed as failed:
            raise DeniedError(409, "slurm-refused", f"Slurm refused it: {failed}") from failed
        except BackendError as error:
            raise DeniedError(503, "hub-silent", f"Slurm does not answer: {error}") from error
        self.reader.refresh()

    async def _require_same(self, job: SlurmJob) -> None:
        """See that a number is still this job's, just before a command that has nothing else.

        What is left is the moment between the two commands: slurmctld would have to lose its state
        and give the number again within it.

        Raises:
            Refused: it is another job's by now.
            BackendError: Slurm does not answer, or has no job of the number.
        """
        listing = Listing(JOB_FIELDS)
        query = ("squeue", "-h", "-a", "-t", "all", "-j", str(job.id), "-O", listing.option)
        text = await run(query, self._settings.slurm_site.command_timeout_s)
        listed = jobs_of(listing, text).get(job.id)
        if listed is None or listed.identity != job.identity:
            message = f"Job {job.id} is another job by now, so nothing was changed. Look again."
            raise Refused("changed-meanwhile", message)

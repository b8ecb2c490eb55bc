"""Jobs of the lab that a listing does not show: looked for, and over only by somebody's word.

A listing lacks a job where `PrivateData` hides it from the lab, where it was cut off, where Slurm
has purged the job after MinJobAge, or where slurmctld has lost its state.  So Slurm is asked as the
job's own account, from whom it hides none of its own, and then `sacct` is asked how the job ended.
What nobody shows for `UNKNOWN_S` is lost, unless something answers at its server's port.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from miglab_slurm.commands import as_account, run
from miglab_slurm.lab import SlurmSite
from miglab_slurm.records import JOB_FIELDS, Listing, SlurmJob, jobs_of
from miglab_slurm.states import JobPhase, phase_of
from miglab_slurm.submissions import JobSubmission, Submissions
from miglab_spawner.backends import BackendError

UNKNOWN_S = 60.0
"""A job that Slurm has denied for so long, and whose server answers nowhere, is lost."""
PATIENT_S = 5.0
"""So long after it was noted, a submission is looked for whose number `sbatch` has not printed."""
ACCOUNTS_AT_ONCE = 8
"""As so many accounts Slurm is asked in one round, those first that were asked longest ago."""
_ENDINGS = ("JobIDRaw", "JobName", "User", "Cluster", "Submit", "State")

log = logging.getLogger(__name__)
IsSilent = Callable[[JobSubmission], Awaitable[bool]]
"""Whether nothing answers where a job's server was."""


@dataclass(frozen=True)
class _Answer:
    """What an account's own jobs are, as Slurm told that account at a moment of this clock."""

    at: float
    jobs: Mapping[int, SlurmJob]


class UnshownJobs:
    """See the module.

    Args:
        site: its tables.
        submissions: what the lab has submitted.
    """

    def __init__(self, site: SlurmSite, submissions: Submissions) -> None:
        self._site, self._submissions = site, submissions
        self._answers: dict[str, _Answer] = {}
        self._denied_since: dict[str, float] = {}
        self._last_seen: dict[str, SlurmJob] = {}
        self._keeps_accounts = True

    async def look_for(self, listed: Mapping[int, SlurmJob]) -> dict[int, SlurmJob]:
        """Further jobs, as the accounts of those that a listing lacks see them."""
        unshown = [row for row in self._submissions.unsettled() if self._is_lacking(row, listed)]
        lacking = {row.tag.ticket for row in unshown}
        accounts = dict.fromkeys(row.account for row in unshown)
        self._answers = {name: self._answers[name] for name in accounts if name in self._answers}
        self._denied_since = {
            ticket: at for ticket, at in self._denied_since.items() if ticket in lacking
        }
        asked_at = {name: answer.at for name, answer in self._answers.items()}
        longest_ago = sorted(accounts, key=lambda name: asked_at.get(name, 0.0))
        await asyncio.gather(*map(self._ask_as, longest_ago[:ACCOUNTS_AT_ONCE]))
        further = {
            number: job for answer in self._answers.values() for number, job in answer.jobs.items()
        }
        for row in unshown:
            self._note_denial(row, further)
        return {number: job for number, job in further.items() if number not in listed}

    def fill_in(self, jobs: Mapping[int, SlurmJob]) -> dict[int, SlurmJob]:
        """The jobs; one that Slurm does not show keeps all that was last seen but its state."""
        filled = {}
        for number, job in jobs.items():
            before = self._last_seen.get(job.tag.ticket) if job.tag else None
            is_unseen = job.tag is not None and not job.partition
            filled[number] = replace(before, state=job.state) if is_unseen and before else job
        self._last_seen = {job.tag.ticket: job for job in filled.values() if job.tag}
        return filled

    async def settle(self, now: float, is_silent: IsSilent) -> None:
        """Note how those that Slurm denies have ended, where somebody knows it."""
        denied = [
            row for row in self._submissions.unsettled() if row.tag.ticket in self._denied_since
        ]
        endings = await self._endings_of(denied) if denied else {}
        for row in denied:
            state = endings.get(row.tag.ticket, "")
            if not state and row.is_cancelled:
                state = "CANCELLED"
            elif not state and now - self._denied_since[row.tag.ticket] > UNKNOWN_S:
                state = "LOST" if await is_silent(row) else ""
            if state:
                log.warning("Job %s of %s is over: %s", row.job, row.account, state)
                self._submissions.note_end(row.tag.ticket, state)

    def _is_lacking(self, row: JobSubmission, listed: Mapping[int, SlurmJob]) -> bool:
        if row.job is None:
            return time.time() - row.intended_at > PATIENT_S
        job = listed.get(row.job)
        return job is None or not (row.is_of(job) or row.may_be(job))

    async def _ask_as(self, account: str) -> None:
        listing, partitions = Listing(JOB_FIELDS), ",".join(self._site.partitions)
        query = ["squeue", "-h", "-a", "-t", "all", "-p", partitions, "-u", account]
        command = [*as_account(self._site.run_as, account), *query, "-O", listing.option]
        try:
            text = await run(command, self._site.command_timeout_s)
        except BackendError as error:
            log.info("Slurm does not tell %s of its own jobs: %s", account, error)
            self._answers.pop(account, None)
            return
        self._answers[account] = _Answer(time.time(), jobs_of(listing, text))

    def _note_denial(self, row: JobSubmission, further: Mapping[int, SlurmJob]) -> None:
        """Slurm has told the job's own account, after it was submitted, and has not shown it."""
        answer = self._answers.get(row.account)
        is_shown = any(row.is_of(job) or row.may_be(job) for job in further.values())
        if is_shown or answer is None or answer.at < row.intended_at:
            self._denied_since.pop(row.tag.ticket, None)
        else:
            self._denied_since.setdefault(row.tag.ticket, answer.at)

    async def _endings_of(self, rows: list[JobSubmission]) -> dict[str, str]:
        """How jobs ended, by the site's accounts; empty for those that these do not know."""
        numbers = ",".join(str(row.job) for row in rows if row.job is not None)
        if not self._keeps_accounts or not numbers:
            return {}
        command = ["sacct", "-n", "-X", "-D", "-P", "-j", numbers, "--format", ",".join(_ENDINGS)]
        try:
            text = await run(command, self._site.command_timeout_s)
        except BackendError as error:
            self._keeps_accounts = "accounting storage is disabled" not in str(error)
            return {}
        lines = (line.split("|") for line in text.splitlines())
        ended = {
            tuple(line[:5]): line[5]
            for line in lines
            if len(line) == len(_ENDINGS) and phase_of(line[5]) is JobPhase.OVER
        }
        keys = {row.tag.ticket: _key_of(row) for row in rows if row.submitted_at is not None}
        return {ticket: ended[key].split()[0] for ticket, key in keys.items() if key in ended}


def _key_of(row: JobSubmission) -> tuple[str, ...]:
    """What tells a job from all others, as `sacct` prints it."""
    submitted = f"{row.submitted_at:.0f}" if row.submitted_at is not None else ""
    return str(row.job), row.name, row.account, row.cluster or "", submitted

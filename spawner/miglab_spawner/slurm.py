"""MIGSlurmSpawner: students' servers as Slurm jobs; ``c.JupyterHub.spawner_class = "mig-slurm"``.

A ticket is a job, submitted when the student asks and tagged with whose it is; a start adopts it
when it runs.  Batchspawner's ``start()`` owns its job from submission on, and so loses it with the
hub, and asks `squeue` twice a second for each student: its life cycle does not fit, and this is one
of our own.

Order of a start: job → wait → it runs and **reports** → environment handed over → server.
Order of an end: stop → `scancel` → gone only when Slurm says so.
"""

import asyncio
import json
import pwd
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from miglab_api.leases import LeaseView
from miglab_api.offers import CPU
from miglab_api.slurm_site import SlurmShape
from miglab_api.tickets import TicketRequest, TicketState, TicketView
from miglab_spawner import handover
from miglab_spawner.backends.slurm.backend import SlurmBackend
from miglab_spawner.backends.slurm.records import SlurmJob, Tag
from miglab_spawner.backends.slurm.words import why_it_ended
from miglab_spawner.mixin import MIGSpawnerMixin
from miglab_spawner.processes import notebooks_copy, slurm_handover
from miglab_spawner.refusals import NotStarted
from miglab_spawner.slurm_job import JobSpawner

LOG_FILE = "jupyter-%j.log"
_SCRIPT = """#!/bin/bash
trap 'echo miglab: SIGTERM' TERM
{prologue}
{notebooks}
export MIGLAB_TICKET={ticket}
srun --export=ALL --ntasks=1 {launch} {python} -c {program}
"""


class MIGSlurmSpawner(MIGSpawnerMixin, JobSpawner):
    """Slurm jobs with the lab's pages and wait."""

    backend_name = "slurm"
    silence = (
        "The cluster's scheduler does not answer. Try again in a minute. "
        "If it stays so, tell your instructor."
    )

    _ticket = 0

    @property
    def backend(self) -> SlurmBackend:
        """Slurm, as this student."""
        return SlurmBackend(self.reader, self.account, self._script, self._home, LOG_FILE)

    @property
    def patience_s(self) -> float:
        """As long as a wait may be: a silent Slurm stops nobody."""
        return float(self.longest_wait_s)

    @property
    def keeps_ticket(self) -> bool:
        """No: a job would start, and find its student's other server running."""
        return False

    def needs_grant(self, shape: str) -> bool:
        """Every server is a job, without a GPU as well."""
        return True

    async def settle_old(self) -> None:
        """Nothing: `give_back` has cancelled the job of an earlier server."""

    async def granted(self, lease: LeaseView) -> None:
        """The job is this server's."""
        self._job = lease.id
        self.reader.hold(lease.id, self)

    async def prepare(self) -> None:
        """Nothing: the job exists."""

    async def attended(self, ticket: int) -> TicketView:
        """The ticket when it has changed; a job that reports runs, whatever the last picture."""
        self._ticket = ticket
        waiting = self._wait.ticket if self._wait else None
        attending = asyncio.ensure_future(super().attended(ticket))
        reported = asyncio.ensure_future(self._report_of(ticket))
        try:
            await asyncio.wait({attending, reported}, return_when=asyncio.FIRST_COMPLETED)
            if reported.done() and waiting is not None:
                return waiting.model_copy(update={"state": TicketState.OFFERED, "lease": ticket})
            return await attending
        finally:
            for task in (attending, reported):
                task.cancel()
            await asyncio.gather(attending, reported, return_exceptions=True)

    async def give_back(self) -> None:
        """Cancel the job that this server was; one that only waits keeps its place for a while."""
        job, self._job = self._job, 0
        self._reports.clear()
        if job:
            self.reader.disown(job)
            await self.reader.cancel(job, self.account)

    def held(self) -> dict[str, Any]:
        """The job."""
        return {"job": self._job} if self._job else {}

    def restore(self, held: Mapping[str, Any]) -> None:
        """The job, from before the hub's end."""
        self._job = int(held.get("job", 0))

    def ended(self, job: SlurmJob | None) -> None:
        """Tell the student why, where it was not their own doing."""
        shape = self.site.shapes.get(self._shape or CPU)
        if job is not None and shape is not None:
            said = why_it_ended(job.state, shape.time_limit_min)
            if said and said != self._news:
                self.tell_next_time(said)

    def get_env(self) -> dict[str, str]:
        """The environment of every server, and its job."""
        env: dict[str, str] = super().get_env()
        if self._job:
            env["MIGLAB_LEASE"] = str(self._job)
        return env

    async def _lease_for(self, asked: TicketView) -> LeaseView | None:
        """As the mixin; a job that can never run is cancelled, one that Slurm lost comes again."""
        self._ticket = asked.id
        try:
            return await super()._lease_for(asked)
        except NotStarted as refused:
            if refused.reason == "never-runs":
                await self.backend.cancel(self._ticket)
            if refused.reason != "job-gone":
                raise
        self.log.warning("Slurm has lost job %d, which waited: it is submitted anew", self._ticket)
        request = TicketRequest(
            user=self.user.name, server=self.name, course=self._course, shape=self._shape
        )
        return await self._lease_for(await self.backend.request(request))

    async def _get_slices(self) -> None:
        if self.site.home and not self.site.run_as:
            await asyncio.to_thread(Path(self._home).mkdir, mode=0o700, parents=True, exist_ok=True)
        await super()._get_slices()
        if not self._job:  # the student goes on without a GPU: that is a job as well
            request = TicketRequest(
                user=self.user.name, server=self.name, course=self._course, shape=CPU
            )
            lease = await self._lease_for(await self.backend.request(request))
            if lease is not None:
                await self.granted(lease)

    @property
    def _home(self) -> str:
        """The folder in which the server starts."""
        name = str(self.user.escaped_name)
        if name.startswith("."):  # no name leads to another folder
            name = f"%2E{name[1:]}"
        return self.site.home.replace("{username}", name) or _home_of(self.account)

    def _script(self, tag: Tag, shape: SlurmShape) -> str:
        """The job's script.  All that is a student's in it is names, and these are quoted."""
        key = self.user.settings["cookie_secret"]
        ticket = {
            "url": f"{self.hub.api_url.rstrip('/')}/{handover.PATH}",
            "report": {**tag.__dict__, "secret": handover.secret_of(key, tag)},
            "patience_s": self.site.offer_s,
        }
        launch, python = shape.launch or self.site.launch, self.site.python
        notebooks = ""
        if self.site.notebooks:
            source = shlex.quote(self.site.notebooks)
            notebooks = f"{launch} {python} -c {_text_of(notebooks_copy)} {source} notebooks"
        return _SCRIPT.format(
            prologue=self.site.prologue,
            notebooks=notebooks,
            ticket=shlex.quote(json.dumps(ticket)),
            launch=launch,
            python=python,
            program=_text_of(slurm_handover),
        )


def _text_of(program: ModuleType) -> str:
    """A program of the standard library alone, as a word of a shell script."""
    assert program.__file__ is not None
    return shlex.quote(Path(program.__file__).read_text(encoding="utf-8"))


def _home_of(account: str) -> str:
    try:
        return pwd.getpwnam(account).pw_dir
    except KeyError:
        return "/"

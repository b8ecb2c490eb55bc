"""MIGSlurmSpawner: students' servers as Slurm jobs; ``c.JupyterHub.spawner_class = "mig-slurm"``.

A ticket is a job, submitted when the student asks and tagged with whose it is; a start adopts it
when it runs.  Batchspawner's ``start()`` owns its job from submission on, and so loses it with the
hub, and asks `squeue` twice a second for each student: its life cycle does not fit, and this is one
of our own.

Order of a start: job → wait → it runs and **reports** → environment handed over → server.
Order of an end: stop → `scancel` → gone only when Slurm says so.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from pwd import struct_passwd
from typing import Any

from traitlets import Unicode

from miglab_api.leases import LeaseView
from miglab_api.offers import CPU
from miglab_api.tickets import TicketState, TicketView
from miglab_slurm.backend import SlurmBackend
from miglab_slurm.batch_script import server_script
from miglab_slurm.job import HANDOVER, JobSpawner
from miglab_slurm.lab import SlurmShape
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.words import AT_LIMIT, SOONER, why_it_ended
from miglab_spawner.backends import BackendError, PoolClient
from miglab_spawner.mixin import MIGSpawnerMixin
from miglab_spawner.pages.spawn_page import is_cpu
from miglab_spawner.refusals import NotStarted, stop_message

TAKING_S = 60.0
"""Who takes an offer in its last second has this long until the new start asks for the job."""
KEPT = (
    "Your server was waiting in the queue. Your position is kept for a while; start again to go on "
    "waiting."
)
NOT_RENAMED = (
    "{name} cannot be renamed while a server of theirs runs, starts or waits: on Slurm, the lab "
    "finds jobs by their user's name, and would lose this one. Stop the server first, then rename "
    "them."
)
LOG_FILE = "jupyter-%j.log"


class MIGSlurmSpawner(MIGSpawnerMixin, JobSpawner):
    """Slurm jobs with the lab's pages and wait."""

    backend_name = "slurm"
    silence = (
        "The cluster's scheduler does not answer. Try again in a minute. "
        "If it stays so, tell your instructor."
    )

    reclaimer_url = Unicode(
        "",
        help="""Address of the lab's reclaimer, with its prefix; empty where there is none.

        It is asked why a server was stopped, for the next spawn page.
        """,
    ).tag(config=True)

    reclaimer_secret_file = Unicode(
        "", help="File (mode 0600) with the secret by which the reclaimer recognises the spawner."
    ).tag(config=True)

    _ticket = 0
    _kept_job = 0
    _meanwhile_notice = (0, "")
    """A ticket, and what its student is told of a server without a GPU meanwhile."""
    _stop_future: asyncio.Future[None] | None = None
    """JupyterHub's own: there while somebody stops the server, also one that only starts."""

    @property
    def backend(self) -> SlurmBackend:
        """Slurm, as this student."""
        return SlurmBackend(
            self.reader,
            self.account,
            self._script,
            self._home_of,
            LOG_FILE,
            self._kept_job,
            self._tickets,
        )

    @property
    def patience_s(self) -> float:
        """As long as a wait may be: a silent Slurm stops nobody."""
        return float(self.longest_wait_s)

    @property
    def keeps_ticket(self) -> bool:
        """Yes: the job that waits is attended for as long as the server without a GPU runs."""
        return True

    async def meanwhile_notice(self, ticket: TicketView) -> str:
        """What a limit on their jobs means; Slurm is asked once a ticket, not once a look."""
        if self._meanwhile_notice[0] != ticket.id:
            try:
                self._meanwhile_notice = (ticket.id, await self.backend.meanwhile_notice(ticket.id))
            except BackendError as error:  # the position is shown all the same
                self.log.info("What limits %s? Slurm: %s", self.user.name, error)
                return ""
        return self._meanwhile_notice[1]

    def needs_grant(self, shape: str) -> bool:
        """Every server is a job, without a GPU as well."""
        return True

    async def remember_lease(self, lease: LeaseView) -> None:
        """The job is this server's."""
        self._job = lease.id
        self.reader.hold(self._tickets[lease.id], self)

    async def attend_ticket(self, ticket: int) -> TicketView:
        """The ticket when it has changed; a job that reports runs, whatever the last picture."""
        self._ticket = ticket
        waiting = self._wait.ticket if self._wait else None
        attending = asyncio.ensure_future(super().attend_ticket(ticket))
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
        """Cancel this server's job; one that only waits keeps its position for a while.

        But who stops a start gives its position up.  `stop` hears nothing of that: `poll` has told
        JupyterHub that there is no server.
        """
        job, self._job = self._job, 0
        kept_job, self._kept_job = self._kept_job, 0
        self._reports.clear()
        self._serving = ""
        self._is_given_back = True
        self._ring()
        if kept_job in self._tickets:
            self.reader.let_go(self._tickets[kept_job])
        if job in self._tickets:
            self.reader.disown(self._tickets[job])
            await self._hear_why(job)
            if job != self._cancelled:
                await self.reader.cancel(self._tickets[job])
        elif self._stop_future is not None and self._ticket in self._tickets:
            self.reader.disown(self._tickets[self._ticket])
            self.reader.refresh()

    def saved_grant(self) -> dict[str, Any]:
        """The job, and the one that waits meanwhile."""
        if not self._job:
            return {}
        numbers = [number for number in (self._job, self._kept_job) if number in self._tickets]
        return {
            "job": self._job,
            **({"kept": self._kept_job} if self._kept_job else {}),
            "tickets": {str(number): self._tickets[number] for number in numbers},
        }

    def restore_grant(self, saved: Mapping[str, Any]) -> None:
        """The jobs, from before the hub's end; a server that it was stopping then is over.

        The reader cancels the job of such a server.  Nobody waits for it to answer meanwhile.
        """
        self._job, self._kept_job = int(saved.get("job", 0)), int(saved.get("kept", 0))
        tickets = saved.get("tickets", {})
        self._tickets = {int(number): str(ticket) for number, ticket in tickets.items()}
        submission = self.reader.submissions.find(self._tickets.get(self._job, ""))
        if submission is not None and submission.given_up:
            self._job = 0
        self._serving = self._tickets.get(self._job, "")

    def rename_refusal(self) -> str:
        """Jobs are found by their user's name: under another one, nobody would find these."""
        return NOT_RENAMED.format(name=self.user.name) if self.active else ""

    def may_become(self, ticket: str) -> bool:
        """The server's own job; and the one that got the slice while its student works on CPU."""
        return super().may_become(ticket) or ticket == self._tickets.get(self._kept_job)

    async def poll(self) -> Any:
        """As every job; who works without a GPU attends the position in the queue."""
        if self._kept_job in self._tickets:
            self.reader.hold(self._tickets[self._kept_job], self)
        return await super().poll()

    async def _hear_why(self, job: int) -> None:
        """Tell the student, on the next spawn page, why the server was stopped."""
        lease = None if self._news else await self._asked_back(job)
        if lease is None:
            return
        is_explained = lease.reason in (AT_LIMIT, SOONER)
        if explanation := lease.reason if is_explained else stop_message(lease):
            self.show_on_next_spawn_page(explanation)

    async def _asked_back(self, job: int) -> LeaseView | None:
        """A job as somebody asked for it back; None if nobody did, or the number is another's."""
        if not self.reclaimer_url:
            return None
        try:
            lease = await PoolClient(self.reclaimer_url, self.reclaimer_secret_file).lease(job)
        except BackendError as error:
            self.log.info("Why did job %d end? The reclaimer: %s", job, error)
            return None
        is_this_server = (lease.user, lease.server) == (self.user.name, self.name)
        return lease if is_this_server and lease.release_requested_at is not None else None

    def report_end(self, job: SlurmJob | None) -> None:
        """Tell the student why, where it was not their own doing; the lab itself says its own."""
        shape = self.site.shapes.get(self._shape or CPU)
        if job is not None and shape is not None:
            explanation = why_it_ended(job.state, shape.time_limit_min)
            if explanation and explanation != self._news:
                self.show_on_next_spawn_page(explanation)

    def get_env(self) -> dict[str, str]:
        """The environment of every server, and its job."""
        env: dict[str, str] = super().get_env()
        if self._job and not is_cpu(self._shape):
            env["MIGLAB_LEASE"] = str(self._job)
        return env

    async def _lease_for(self, new_ticket: TicketView) -> LeaseView | None:
        """As the mixin; a job that can never run is cancelled, one that Slurm lost comes again."""
        self._ticket = new_ticket.id
        self._news = KEPT
        if self.orm_spawner is not None:  # saved now: it is what a hub that dies meanwhile says
            self.orm_spawner.state = self.get_state()
            self.user.db.commit()
        try:
            return await super()._lease_for(new_ticket)
        except NotStarted as refused:
            if refused.reason == "never-runs":
                await self.backend.cancel(self._ticket)
            lease = await self._asked_back(self._ticket) if refused.reason == "cancelled" else None
            if lease is not None and lease.reason:
                message = f"You were taken out of the queue: {lease.reason}"
                raise self._not_started(message, "cancelled", 503) from None
            if refused.reason != "job-gone":
                raise
        finally:
            self._news = ""
        self.log.warning("Slurm has lost job %d, which waited: it is submitted anew", self._ticket)
        request = self._request_for(self._shape)
        return await self._lease_for(await self._patiently(lambda: self.backend.request(request)))

    async def _get_slices(self) -> None:
        if self.site.home and not self.site.run_as:
            home = Path(self._home_of(self.account()))
            await asyncio.to_thread(home.mkdir, mode=0o700, parents=True, exist_ok=True)
        self._is_given_back = False
        await super()._get_slices()
        if not self._job:  # the student goes on without a GPU: that is a job as well
            self._kept_job = (self._wait.background_ticket if self._wait else None) or 0
            if self._kept_job in self._tickets:
                self.reader.hold(self._tickets[self._kept_job], self)
            without = self._request_for(CPU)
            ticket = await self._patiently(lambda: self.backend.request(without))
            lease = await self._lease_for(ticket)
            if lease is not None:
                await self.remember_lease(lease)

    def _home_of(self, account: struct_passwd) -> str:
        """The folder in which the server starts."""
        name = str(self.user.escaped_name)
        if name.startswith("."):  # no name leads to another folder
            name = f"%2E{name[1:]}"
        return self.site.home.replace("{username}", name) or account.pw_dir

    def _script(self, tag: Tag, shape: SlurmShape) -> str:
        """The job's script."""
        ticket = {
            "url": f"{self.hub.api_url.rstrip('/')}/{HANDOVER}",
            "report": {
                "tag": tag.__dict__,
                "secret": tag.secret(self.user.settings["cookie_secret"]),
            },
            "patience_s": self.site.offer_s + TAKING_S,
        }
        return server_script(self.site, shape, ticket)

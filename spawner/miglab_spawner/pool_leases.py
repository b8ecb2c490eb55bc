"""Servers that run on leases of the lab's own pool, in containers or as local processes.

Order of a start: ticket → wait → lease → create → **attach** (the fence) → start → running.
Order of an end: stop → end whatever holds → release.
"""

import asyncio
import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jupyterhub.utils import isoformat

from miglab_api.leases import ENDED_STATES, LeaseView
from miglab_api.offers import CPU
from miglab_api.tickets import TicketRequest
from miglab_spawner.backends import BackendError, PoolClient, RefusedByBackend
from miglab_spawner.borrower import Borrower, SliceRunner
from miglab_spawner.containers.host_config import ContainerLimits, SavedLease, limits_of
from miglab_spawner.mixin import PAUSE_S, MIGSpawnerMixin
from miglab_spawner.pages import waiting
from miglab_spawner.pages.spawn_page import needs_slice
from miglab_spawner.people import HomeNames, HomeNamesDamaged
from miglab_spawner.refusals import NotStarted, stop_message
from miglab_spawner.slices_missing import SlicesMissing, check_lease
from miglab_spawner.traits import PoolTraits

SERVER_ENDED = "the server ended"


class PoolSpawnerMixin(PoolTraits, MIGSpawnerMixin):
    """Starts a server by a lease of the pool.

    A class that uses it comes first in the bases, overrides `prepare` and `end_holder`, and calls
    `attach` when its server exists but does not run yet, `announce_running` when it does.

    Attributes:
        grant: what this server holds now; None without a lease.
    """

    backend_name = "pool"
    silence = (
        "The GPU pool does not answer. Start without a GPU, or try again in a minute. "
        "If it stays so, tell your instructor."
    )

    grant: SavedLease | None = None
    _holder = ""
    _home_name = ""
    _borrower: Borrower | None = None

    @property
    def backend(self) -> PoolClient:
        """Whoever hands out the slices: the lab's pool."""
        return PoolClient(self.pool_url, self.pool_secret_file, user_id=self.user_id)

    @property
    def home_name(self) -> str:
        """Return the name of the user's home and containers, which outlives a rename.

        Before the first start it is only proposed: an account that is looked at claims no name.
        """
        if self._home_name:
            return self._home_name
        try:
            return HomeNames(Path(self.home_names_file)).propose(self.user_id, self.user.name)
        except HomeNamesDamaged as error:
            self.log.error("The home of %s is unknown: %s", self.user.name, error)
            return f"{self.user.name}-{self.user_id}"  # which is nobody else's

    async def keep_home_name(self) -> None:
        """Keep the home's name for this user from now on.

        Raises:
            NotStarted: nobody can say; a home by another name would look empty.
        """
        names = HomeNames(Path(self.home_names_file))
        try:
            self._home_name = await asyncio.to_thread(names.claim, self.user_id, self.user.name)
        except HomeNamesDamaged as error:
            self.log.error("No home for %s: %s", self.user.name, error)
            message = (
                "Your server was not started, because the lab cannot tell now where your files "
                "lie. They are kept. Tell your instructor; the hub's log says what to do."
            )
            raise self._not_started(message, "home-unknown", 503) from error

    @property
    def patience_s(self) -> float:
        """How long a start that already waits bears a pool that does not answer, seconds."""
        return float(self.pool_patience_s)

    @property
    def keeps_ticket(self) -> bool:
        """Whether a server without a GPU can attend its ticket: it must know where the pool is."""
        return bool(self.student_api_url)

    @property
    def can_ask_while_running(self) -> bool:
        """Whether a running server can join the queue: it has to attend the ticket itself."""
        return self.keeps_ticket

    @property
    def limits(self) -> ContainerLimits:
        """Return what this server may use of its host."""
        return limits_of(self._shape or CPU, self.shape_limits)

    def take_over_lease(self, grant: SavedLease, holder: str) -> None:
        """Take over a lease that a label names, after a hub that crashed before it saved it."""
        self.grant, self._holder = grant, holder

    async def remember_lease(self, lease: LeaseView) -> None:
        """Remember the lease: what `attach` presents, and what is released at the end.

        Raises:
            NotStarted: a slice of it has no UUID, so no container can be given it.
        """
        self.grant = SavedLease.from_lease(lease)
        try:
            check_lease(lease)
        except SlicesMissing as missing:
            raise self._slices_missing(missing) from None

    def _slices_missing(self, missing: SlicesMissing) -> NotStarted:
        self.log.error("%s's server is not handed over: %s", self.user.name, missing)
        return self._not_started(
            missing.message_for("Your server was not started"), missing.reason, 503
        )

    def saved_grant(self) -> dict[str, Any]:
        """Return the lease and its holder."""
        if self.grant is None:
            return {}
        return {
            "lease": self.grant.lease,
            "generation": self.grant.generation,
            "ledger": self.grant.ledger,
            "uuids": list(self.grant.uuids),
            "holder": self._holder,
        }

    def restore_grant(self, saved: Mapping[str, Any]) -> None:
        """Restore the lease and its holder after a restart of the hub."""
        self._holder = saved["holder"]
        self.grant = SavedLease(
            saved["lease"],
            saved["generation"],
            self.user.name,
            self.name,
            tuple(saved["uuids"]),
            saved.get("ledger", ""),
        )

    def get_env(self) -> dict[str, str]:
        """Return the environment of every server, with the lease and its slices."""
        env: dict[str, str] = super().get_env()
        if self.grant is not None:
            env["MIGLAB_LEASE"] = str(self.grant.lease)
            env["MIGLAB_SLICES"] = ",".join(self.grant.uuids)
        return env

    async def end_holder(self, holder: str) -> None:
        """Stop and remove the container or process that holds a lease.

        Called with the holder's name when JupyterHub may have skipped ``stop()``.  Already gone is
        fine; an answer that leaves it open raises nothing: the pool confirms for itself.
        """
        raise NotImplementedError

    # What its measurements borrow.

    @property
    def borrower(self) -> Borrower:
        """Return what runs this server's measurements on borrowed slices."""
        if self._borrower is None:
            self._borrower = Borrower(
                lambda: str(self.user.name),
                self.user_id,
                self.name,
                self._course,
                self.backend,
                self.make_runner,
                self.borrow_linger_s,
            )
        return self._borrower

    def make_runner(self, lease: LeaseView) -> SliceRunner:
        """Return a runner for borrowed slices, not yet created."""
        raise NotImplementedError

    def runner_env(self, lease: LeaseView) -> dict[str, str]:
        """Return a runner's environment: the borrowed slices, and nothing of the student's."""
        env = {
            "MIGLAB_LEASE": str(lease.id),
            "MIGLAB_SHAPE": lease.shape,
            "MIGLAB_COURSE": lease.course,
            "MIGLAB_SLICES": ",".join(lease.uuids),
        }
        return {**env, "MIGLAB_SIMULATED": "1"} if self.simulated else env

    # What it holds.

    async def attach(self, holder: str) -> None:
        """Tell the pool who will hold the lease; only then may the holder be started.

        Raises:
            RefusedByBackend: the lease is over or another's; the server must not be started.
        """
        if self.grant is None:
            return
        self._report(waiting.ATTACHING, "Handing the slice over to your server.")
        self._holder = holder
        grant, server_started = self.grant, self._server_started_at()
        await self._patiently(
            lambda: self.backend.attach(
                grant.lease, grant.generation, holder, grant.ledger, server_started
            )
        )
        self._report(waiting.STARTING, "The slice is yours. Starting your server.")

    def _server_started_at(self) -> str:
        """Return when this start began, as the hub's API writes it; empty if unknown."""
        started = self.orm_spawner.started if self.orm_spawner else None
        return isoformat(started) if started else ""

    async def announce_running(self) -> None:
        """Tell the pool that the holder was started; it finds out by itself if this fails."""
        if self.grant is None:
            return
        grant = self.grant
        try:
            await self.backend.report_running(grant.lease, grant.generation, grant.ledger)
        except BackendError as error:
            self.log.warning("Lease %d runs, but the pool: %s", self.grant.lease, error)

    async def _start(self) -> Any:
        if not self._home_name:
            await self.keep_home_name()
        return await super()._start()

    async def _request_lease(self, request: TicketRequest) -> LeaseView | None:
        """As the mixin; the pool grants in the request's own step, and refuses a second lease."""
        try:
            requested = await self.backend.request_lease(request)
        except RefusedByBackend as refused:
            if refused.reason != "still-attached":
                raise
            await self.end_earlier_servers()
            requested = await self.backend.request_lease(request)
        return requested.taken_lease or await self._lease_for(requested.ticket)

    async def end_earlier_servers(self) -> None:
        """End earlier holders of this very server, without which the pool refuses the new one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.create_timeout_s
        for lease in await self._server_leases():
            await self._release(lease, "the same server starts anew")
            while lease.state not in ENDED_STATES:
                if loop.time() > deadline:
                    raise self._not_started(
                        "Your earlier server has not ended yet. Try again in a minute.",
                        "old-server-remains",
                        503,
                    )
                await asyncio.sleep(PAUSE_S)
                await self.end_holder(lease.holder)  # an engine that was away may answer now
                lease = await self._patiently(partial(self.backend.lease, lease.id))

    # The steps of an end.

    async def give_back(self) -> None:
        """Release what this server holds, whether this hub remembers it or the pool does.

        Ends what may still hold the slices first: JupyterHub may have skipped ``stop()``.
        """
        grant, holder = self.grant, self._holder
        borrower, self._borrower = self._borrower, None
        try:
            if borrower is not None:
                await borrower.end()
            await self._give_back(grant, holder)
        finally:
            self.grant, self._holder = None, ""

    async def _give_back(self, grant: SavedLease | None, holder: str) -> None:
        if self._wait is not None and self._wait.interrupted is not None:
            # Somebody stopped the server that waited.  A hub that ends cancels the start as well,
            # but does not come here, so that the position is kept.
            await self.backend.cancel(self._wait.interrupted)
        if holder:
            await self.end_holder(holder)
        if grant is None and not needs_slice(self._next_shape()):
            return
        if grant is not None and await self._release_grant(grant, holder):
            return
        for lease in await self._server_leases():
            await self._release(lease, self._news or SERVER_ENDED)

    async def delete_forever(self) -> None:
        """Cancel the ticket of a server that is deleted, then delete as the base does."""
        try:
            ticket = (await self._server_status()).ticket
            if ticket is not None:
                await self.backend.cancel(ticket.id)
        except BackendError as error:
            self.log.warning("The ticket of %s lapses by itself: %s", self._log_name, error)
        answer = super().delete_forever()
        if inspect.isawaitable(answer):
            await answer

    async def _release_grant(self, grant: SavedLease, holder: str) -> bool:
        """Release the lease of this server, whose holder has ended.

        A lease that was being released before this has the reason of whoever asked for that: the
        next spawn page shows it.

        Returns:
            Whether nothing else is to be released.  The pool answers with a lease that has ended as
            it does with any other; if this hub's database is older than the pool's ledger, the
            server has a later lease, too.

        Raises:
            RefusedByBackend: the pool cannot release it now.
        """
        reason = self._news or SERVER_ENDED
        try:
            lease = await self.backend.release(grant.lease, grant.generation, reason, grant.ledger)
        except RefusedByBackend as refused:
            if not refused.is_about_no_lease:
                raise
            self.log.info("Lease %d is not known any more: %s", grant.lease, refused)
            return False
        if lease.holder not in ("", holder):
            await self.end_holder(lease.holder)
        if not self._news and lease.reason != reason and (stop_reason := stop_message(lease)):
            self.show_on_next_spawn_page(stop_reason)
        return lease.state not in ENDED_STATES

    async def _server_leases(self) -> list[LeaseView]:
        """Return this server's leases that have or had a holder.

        A grant without a holder may belong to a ticket that is kept, so it is left alone.
        """
        leases = await self.backend.leases(self.user.name, self.name)
        return [lease for lease in leases if lease.holder]

    async def _release(self, lease: LeaseView, reason: str) -> None:
        if lease.holder:
            await self.end_holder(lease.holder)
        try:
            await self.backend.release(lease.id, lease.generation, reason, lease.ledger)
        except RefusedByBackend as refused:
            if not refused.is_about_no_lease:
                raise
            self.log.info("Lease %d needs no release: %s", lease.id, refused)

"""What every server with a slice has in common, whoever hands the slices out.

The frame of a start, beneath which are the student's choice (choice_mixin.py) and the wait
(wait_mixin.py).  Knows the `Backend` protocol and no backend; is configured by traits alone.
pool_mixin.py adds the leases of the lab's own pool, slurm.py the jobs of a Slurm site.

Order of a start: ticket → wait → granted → `prepare` → the base's start.
Order of an end: stop (JupyterHub skips it for a dead server) → `give_back`.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from traitlets import Instance, default

from miglab_api.leases import LeaseView
from miglab_api.offers import CPU
from miglab_api.tickets import TicketRequest
from miglab_spawner import home_size, scopes
from miglab_spawner.backends.base import (
    BackendError,
    BackendMisunderstood,
    BackendUnreachable,
    RefusedByBackend,
)
from miglab_spawner.pages import progress
from miglab_spawner.pages.choice import needs_slice
from miglab_spawner.refusals import NotStarted
from miglab_spawner.wait_mixin import WaitMixin

STATE_KEY = "miglab"


class MIGSpawnerMixin(WaitMixin):
    """Puts a backend before any spawner's ``start()`` and after its end.

    A class that uses it comes first in the bases and overrides what raises `NotImplementedError`.
    """

    start_timeout: int

    _is_starting = False
    _noticing = Instance(asyncio.Lock, args=())

    # What a backend's own mixin, or the spawner beside it, overrides.

    async def settle_old(self) -> None:
        """End what an earlier start of this very server still holds."""
        raise NotImplementedError

    async def granted(self, lease: LeaseView) -> None:
        """Remember what this server holds from now on."""
        raise NotImplementedError

    async def give_back(self) -> None:
        """Give back what this server holds; called after every end and every failed start.

        Raises:
            BackendError: the backend does not answer; what is held is forgotten here all the same.
        """
        raise NotImplementedError

    def held(self) -> dict[str, Any]:
        """What this server holds, as JSON that outlives the hub; empty if it holds nothing."""
        raise NotImplementedError

    def restore(self, held: Mapping[str, Any]) -> None:
        """Take over what `held` said before the hub ended."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make ready for the base's ``start()``; the grant is known, the server not yet there."""
        raise NotImplementedError

    # Traits of JupyterHub's Spawner.

    @default("start_timeout")
    def _derived_start_timeout(self) -> int:
        return int(self.longest_wait_s + self.create_timeout_s + self.patience_s) + 1

    @default("server_token_scopes")
    def _lease_scope_too(self) -> Callable[[object], list[str]]:
        return scopes.server_token_scopes

    # What a student does while the server waits, or runs.

    def without_gpu(self) -> dict[str, Any]:
        """The options with which a server that holds a slice is started again without one.

        Raises:
            RefusedByBackend: it holds none.
        """
        if not needs_slice(self._shape or CPU):
            raise RefusedByBackend("unknown-lease", "This server holds no GPU slice.", 409)
        return {**self.user_options, "shape": CPU, "course": self._course}

    async def take_offer(self) -> dict[str, Any]:
        """Take what is offered to this server, so that it cannot lapse while the server restarts.

        Returns:
            The options with which the server is to be started again.

        Raises:
            RefusedByBackend: nothing is offered (any more).
            BackendError: the pool does not answer.
        """
        ticket = (await self._server_status()).ticket
        if ticket is None:
            raise RefusedByBackend("not-offered", "This server waits for nothing.", 409)
        if ticket.course not in (*self._groups(), self.default_course):
            message = f"You are not in the course {ticket.course}."
            raise RefusedByBackend("not-in-course", message, 403)
        await self.backend.take(ticket.id)
        saved = self._last_choice().shape
        shape = saved if saved and needs_slice(saved) else ticket.shape
        return {**self.user_options, "shape": shape, "course": ticket.course}

    # Life cycle.

    def run_pre_spawn_hook(self) -> Any:
        """Raise a `start_timeout` that would cut the wait short, then run the site's hook."""
        needed = self._derived_start_timeout()
        if self.start_timeout < needed and needs_slice(self._saved_choice().shape):
            self.log.info("start_timeout raised to %d s: waiting counts into it", needed)
            self.start_timeout = needed
        return super().run_pre_spawn_hook()

    async def start(self) -> Any:
        """Get the slices, then start the server as the base spawner does.

        Raises:
            NotStarted: a refusal, in words for the student.
        """
        self._is_starting = True
        try:
            return await self._start()
        except RefusedByBackend as refused:
            raise self._not_started(refused.message, refused.reason, refused.status) from None
        except BackendMisunderstood as error:
            raise self._no_backend(error, "misunderstood") from error
        except BackendUnreachable as error:
            raise self._no_backend(error, "unreachable") from error
        finally:
            self._is_starting = False
            self._events.close()

    async def poll(self) -> Any:
        """None (alive) while waiting and starting; then what the base spawner says."""
        if self._is_starting:
            return None
        return await super().poll()

    async def poll_and_notify(self) -> Any:
        """As the base; but nobody goes on while the hub is not yet done with a server that ended.

        JupyterHub 6 gives its callbacks to whoever notices the end first.  While the proxy was slow
        to forget the dead server, a second caller, the student's next start, did not wait for them,
        and was then stopped half-way in the dead server's place.
        """
        async with self._noticing:
            return await super().poll_and_notify()

    async def run_post_stop_hook(self) -> None:
        """Give back what the server held; then the site's hook.

        JupyterHub awaits this after every end and every failed start, also where it skips
        ``stop()``.
        """
        try:
            await self.give_back()
        except BackendError as error:
            self.log.warning("%s's release waits: %s", self.user.name, error)
        finally:
            answer = super().run_post_stop_hook()
            if inspect.isawaitable(answer):
                await answer

    async def progress(self) -> AsyncIterator[dict[str, int | str]]:
        """The events of this start, for JupyterHub's progress page."""
        async for event in self._events.read():
            yield event.as_event()

    # State and environment.

    def clear_state(self) -> None:
        """As the base; the grant stays: only `run_post_stop_hook` gives it back.

        JupyterHub calls this at the beginning of every start, too: there the events begin anew.
        """
        super().clear_state()
        if not self._is_starting:
            self._events = progress.ProgressEvents()

    def get_state(self) -> dict[str, Any]:
        """The base's state; with a key of ours only while there is a grant or news."""
        state: dict[str, Any] = super().get_state()
        ours: dict[str, Any] = {"news": self._news} if self._news else {}
        held = self.held()
        if held or self.borrows:
            ours |= {**held, "shape": self._shape, "course": self._course}
        if self.borrows:
            ours["lent"] = list(self._lent)
        if ours:
            state[STATE_KEY] = ours
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """As the base; and the grant, when there was one."""
        super().load_state(state)
        ours = state.get(STATE_KEY, {})
        self._news = ours.get("news", "")
        if "shape" in ours:
            self._shape, self._course = ours["shape"], ours["course"]
            self._lent = tuple(ours.get("lent", ()))
            if not self.borrows:
                self.restore(ours)

    def get_env(self) -> dict[str, str]:
        """The base's environment, and what the server holds."""
        env: dict[str, str] = super().get_env()
        env["MIGLAB_SHAPE"] = self._shape or CPU
        env["MIGLAB_COURSE"] = self._course
        env["MIGLAB_COURSE_TITLE"] = self.course_titles.get(self._course) or self._course
        if self.borrows:
            env["MIGLAB_BORROW"] = json.dumps(self._lent)
        if self.student_api_url:
            env["MIGLAB_API"] = self.student_api_url
        if self.simulated:
            env["MIGLAB_SIMULATED"] = "1"
        return env

    # The steps of a start.

    async def _start(self) -> Any:
        self._wait = None
        wanted = await self._wanted()
        self._shape, self._course = wanted.shape, wanted.course
        if self.needs_grant(wanted.shape):
            await self._get_slices()
        self._report(progress.CREATING, "Making your server.")
        limit = asyncio.timeout(self.create_timeout_s)
        try:
            async with limit, self._position_kept():
                await self.prepare()
                where = await super().start()
        except TimeoutError:
            if not limit.expired():
                raise
            said = (
                f"Your server could not be made within {self.create_timeout_s:g} s. Try again; if "
                "it stays so, tell your instructor."
            )
            raise self._not_started(said, "create-timeout", 503) from None
        self._news = ""
        self._report(progress.ANSWERING, "Your server is starting; waiting for its first answer.")
        return where

    async def home_use(self) -> home_size.HomeUse | None:
        """What lies in the home, where a class can tell; None where measuring it took too long.

        Only asked with `home_gib`.
        """
        return home_size.HomeUse()

    async def _check_home(self) -> None:
        """A full home is told before the wait for a slice, not after it.

        Raises:
            NotStarted: the home is too large, or too slow to be measured.
        """
        if not self.home_gib:
            return
        use = await self.home_use()
        if use is None:
            raise self._not_started(home_size.NOT_MEASURED, "home-not-measured")
        if said := home_size.too_large(use, self.home_gib):
            raise self._not_started(said, "home-too-large")

    async def _get_slices(self) -> None:
        await self._check_home()
        await self.settle_old()
        self._report(progress.ASKED, f"Asking for {self._shape}.")
        request = TicketRequest(
            user=self.user.name, server=self.name, course=self._course, shape=self._shape
        )
        lease = await self._lease_for(await self.backend.request(request))
        if lease is None:
            self._shape = CPU
            return
        self._shape = lease.shape
        await self.granted(lease)
        self._report(progress.OFFERED, f"{lease.shape} is yours.")

    # Small things.

    def _no_backend(self, error: BackendError, reason: str) -> NotStarted:
        reason = f"{self.backend_name}-{reason}"
        return NotStarted(self.silence, reason=reason, status_code=503, log_message=str(error))

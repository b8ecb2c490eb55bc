"""The life of a server with a slice, whoever hands the slices out.

From top to bottom: the start and its wait; the end; state and environment.  backend_hooks.py has
what a backend overrides, choices.py what the student chose.  Knows the `Backend` protocol and no
backend, and is configured by traits alone.  pool_leases.py adds the leases of the lab's own pool.

Order of a start: ticket → wait → granted → `prepare` → the base's start.
Order of an end: stop (JupyterHub skips it for a dead server) → `give_back`.
"""

import asyncio
import inspect
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from jupyterhub import orm
from jupyterhub.scopes import get_scopes_for
from traitlets import Instance, default, validate

from miglab_api.leases import LeaseView
from miglab_api.offers import CPU
from miglab_api.scopes import LEASE_SCOPE
from miglab_api.tickets import ATTEND_S, TicketRequest, TicketState, TicketView
from miglab_api.wording import gpu_picture, shape_title
from miglab_spawner import files_ahead, home_size
from miglab_spawner.backends import (
    BackendError,
    BackendMisunderstood,
    BackendUnreachable,
    RefusedByBackend,
)
from miglab_spawner.choices import ChoiceMixin
from miglab_spawner.listening import host_and_port, save_place, wait_until_listening
from miglab_spawner.pages import reading, waiting
from miglab_spawner.pages.spawn_page import SpawnChoice, is_borrow, is_cpu, needs_slice
from miglab_spawner.people import user_id_of
from miglab_spawner.refusals import NotStarted
from miglab_spawner.token_scopes import TokenScopes, with_lease_scope

TOKEN_LACKS_SCOPE = (
    "Your server was not started, because this hub would not let it see its GPU slice. Tell "
    f"whoever runs the hub: servers' tokens lack the scope {LEASE_SCOPE}!server. A server without "
    "a GPU still starts."
)

STATE_KEY = "miglab"
PAUSE_S = 0.5
CHOICES_A_MINUTE = 10  # of a running server
LISTENS_WITHIN_S = 5.0  # then JupyterHub alone asks a new server for its first answer

Answer = TypeVar("Answer")


class MIGSpawnerMixin(ChoiceMixin):
    """Gets slices before any spawner's ``start()``, and gives them back after its end.

    A class that uses it comes first in the bases and overrides what raises `NotImplementedError`.
    """

    start_timeout: int

    _user_id = ""
    _course = ""
    _is_starting = False
    _poll_lock = Instance(asyncio.Lock, args=())

    def __init__(self, **kwargs: Any) -> None:
        self._events = waiting.ProgressEvents()
        self._wait: waiting.Wait | None = None
        self._chosen_at: deque[float] = deque(maxlen=CHOICES_A_MINUTE)  # by a monotonic clock
        super().__init__(**kwargs)

    # What is known of the server.

    @property
    def is_waiting(self) -> bool:
        """Whether this start waits for slices, and so far uses nothing."""
        return self._wait is not None and self._wait.ticket is not None

    @property
    def borrows(self) -> bool:
        """Whether this server holds no slice, and its measurements borrow one."""
        return is_borrow(self._shape)

    @property
    def first_notebook(self) -> Path | None:
        """The notebook that can be read while this server waits; None if there is none."""
        return reading.first_notebook(self.reading_dir)

    @property
    def files_ahead(self) -> dict[str, Any]:
        """JupyterLab's files that can be fetched while this server waits."""
        folder = self.user.host + self.user.server_url(self.name) + files_ahead.BELOW_SERVER
        return {"folder": folder, "names": files_ahead.names()}

    @property
    def news(self) -> str:
        """Return why the last server ended, for the hub's pages; empty without a reason."""
        return self._news

    def token_has_scope(self) -> bool:
        """Whether the server's token may see its lease; a site may have taken that from it."""
        token = orm.APIToken.find(self.user.db, self.api_token)
        needed = f"{LEASE_SCOPE}!server={self.user.name}/{self.name}"
        return token is not None and needed in get_scopes_for(token)

    def show_on_next_spawn_page(self, news: str) -> None:
        """Show on the user's next spawn page why the server ended."""
        self._news = news
        self.log.warning("%s's server: %s", self.user.name, news)

    @property
    def user_id(self) -> str:
        """Return the id of the server's user, which a rename does not change."""
        if not self._user_id:
            self._user_id = user_id_of(self.user.db, self.user.id)
        return self._user_id

    async def report_user_name(self) -> None:
        """Tell the backend the user's new name, which any request about the user carries."""
        try:
            await self._server_status()
        except BackendError as error:
            self.log.warning("%s's new name is told later: %s", self.user.name, error)

    # A start.

    @default("start_timeout")
    def _derived_start_timeout(self) -> int:
        return int(self.longest_wait_s + self.create_timeout_s + self.patience_s) + 1

    @default("server_token_scopes")
    def _default_token_scopes(self) -> TokenScopes:
        return with_lease_scope([])

    @validate("server_token_scopes")
    def _add_lease_scope(self, proposal: Any) -> TokenScopes:
        return with_lease_scope(proposal["value"])

    def run_pre_spawn_hook(self) -> Any:
        """Raise `start_timeout` if it would end the wait early, then run the site's hook."""
        needed = self._derived_start_timeout()
        if self.start_timeout < needed and needs_slice(self._next_shape()):
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
            raise self._backend_failed(error, "misunderstood") from error
        except BackendUnreachable as error:
            raise self._backend_failed(error, "unreachable") from error
        finally:
            self._is_starting = False
            self._events.close()

    async def progress(self) -> AsyncIterator[dict[str, int | str]]:
        """Yield the events of this start, for JupyterHub's progress page."""
        async for event in self._events.read():
            yield {"progress": event.pct, "message": event.message}

    def last_event(self) -> dict[str, int | str] | None:
        """Return the last event of this start, as `progress` yields it; None before the first."""
        event = self._events.last
        return None if event is None else {"progress": event.pct, "message": event.message}

    async def _start(self) -> Any:
        ends_at = asyncio.get_running_loop().time() + self.start_timeout - 1.0
        self._wait = None
        choice = await self._resolve_choice()
        self._shape, self._course = choice.shape, choice.course
        if not is_cpu(choice.shape):
            self._require_token_scope()
        if self.needs_grant(choice.shape):
            await self._get_slices()
        self._report(waiting.CREATING, "Making your server.")
        limit = asyncio.timeout(self.create_timeout_s)
        try:
            async with limit, self._keep_position():
                await self.prepare()
                address = await super().start()
        except TimeoutError:
            if not limit.expired():
                raise
            message = (
                f"Your server could not be made within {self.create_timeout_s:g} s. Try again; if "
                "it stays so, tell your instructor."
            )
            raise self._not_started(message, "create-timeout", 503) from None
        self._news = ""
        self._report(waiting.ANSWERING, "Your server is starting; waiting for its first answer.")
        await self._until_it_listens(address, ends_at)
        return address

    async def _until_it_listens(self, address: Any, ends_at: float) -> None:
        """Wait until the server listens or has ended; after a while, JupyterHub alone asks it.

        Args:
            address: what the base's ``start()`` returned.
            ends_at: when ``start()`` has to return, by the loop's clock.
        """
        place = host_and_port(address)
        if place is None:
            return
        save_place(self, *place)
        now = asyncio.get_running_loop().time
        ends_at = min(ends_at, now() + LISTENS_WITHIN_S)
        while (left_s := ends_at - now()) > 0 and await super().poll() is None:
            if await wait_until_listening(*place, min(left_s, 1.0)):
                return

    def _require_token_scope(self) -> None:
        """Refuse a server whose token cannot report activity.

        Raises:
            NotStarted: its token lacks the scope.
        """
        if not self.token_has_scope():
            raise self._not_started(TOKEN_LACKS_SCOPE, "token-lacks-scope", 503)

    async def _check_home(self) -> None:
        """Refuse a start whose home is too large, before it waits for a slice.

        Raises:
            NotStarted: the home is too large, or too slow to be measured.
        """
        if not self.home_gib:
            return
        use = await self.measure_home()
        if use is None:
            raise self._not_started(home_size.NOT_MEASURED, "home-not-measured")
        if problem := home_size.size_problem(use, self.home_gib):
            raise self._not_started(problem, "home-too-large")

    async def _get_slices(self) -> None:
        await self._check_home()
        self._report(waiting.ASKED, f"Asking for {self._shape}.")
        lease = await self._request_lease(self._request_for(self._shape))
        if lease is None:
            self._shape = CPU
            return
        self._shape = lease.shape
        await self.remember_lease(lease)
        self._report(waiting.OFFERED, f"{lease.shape} is yours.")

    async def _request_lease(self, request: TicketRequest) -> LeaseView | None:
        """Ask for a shape and wait for the lease; None if the student goes on without a GPU."""
        return await self._lease_for(await self.backend.request(request))

    def _backend_failed(self, error: BackendError, reason: str) -> NotStarted:
        reason = f"{self.backend_name}-{reason}"
        return NotStarted(self.silence, reason=reason, status_code=503, log_message=str(error))

    # Its wait for the slices.

    async def _lease_for(self, new_ticket: TicketView) -> LeaseView | None:
        """Wait for the lease; None if the student goes on without a GPU."""
        self._wait = waiting.Wait(self, self._report, keeps_ticket=self.keeps_ticket)
        ticket = await self._wait.wait_until_over(new_ticket)
        if ticket is None:
            return None
        if ticket.state is TicketState.OFFERED or ticket.state is TicketState.TAKEN:
            number = ticket.id
            return await self._patiently(lambda: self.backend.take(number))
        message = (
            ticket.message
            or f"Your ticket has ended: {ticket.state}. Start the server again to rejoin the queue."
        )
        raise self._not_started(message, ticket.reason or ticket.state.value, 503)

    async def attend_ticket(self, ticket: int) -> TicketView:
        """Return the ticket when it has changed, or after a while (`waiting.TicketQueue`).

        Raises:
            RefusedByBackend: the student has left its course, so the ticket is over.
        """
        attended = await self._patiently(lambda: self.backend.attend(ticket, ATTEND_S))
        if not self._is_in_course(attended.course):
            await self.backend.cancel(ticket)
            raise _not_in_course(attended.course)
        return attended

    async def request_shape(self, shape: str) -> TicketView:
        """Request another shape, granted at once, and save it as the choice."""
        request = self._request_for(shape, only_if_free=True)
        ticket = await self._patiently(lambda: self.backend.request(request))
        self._shape = shape
        self._save_choice({**self.user_options, "shape": shape, "course": self._course})
        return ticket

    async def confirm_waiting(self, ticket: TicketView) -> TicketView:
        """Request the same shape again, which confirms that the student still waits."""
        request = self._request_for(ticket.shape, course=ticket.course)
        return await self._patiently(lambda: self.backend.request(request))

    async def cancel_ticket(self, ticket: int) -> TicketView:
        """Cancel the ticket and return it."""
        return await self.backend.cancel(ticket)

    @asynccontextmanager
    async def _keep_position(self) -> AsyncIterator[None]:
        """Attend the waiting ticket until the server can attend it by itself."""
        ticket = self._wait.background_ticket if self._wait else None
        if ticket is None:
            yield
            return
        attending = asyncio.create_task(self._keep_attending(ticket))
        try:
            yield
        finally:
            attending.cancel()

    async def _keep_attending(self, ticket: int) -> None:
        while True:
            try:
                await self.backend.attend(ticket, 0)
            except BackendError as error:
                self.log.warning("Ticket %d is not attended: %s", ticket, error)
            await asyncio.sleep(ATTEND_S)

    async def _patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat an idempotent call until the backend answers or `patience_s` is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        while True:
            try:
                return await call()
            except BackendUnreachable:
                if loop.time() >= deadline:
                    raise
                self.log.warning(
                    "%s's start waits: the %s does not answer", self.user.name, self.backend_name
                )
                await asyncio.sleep(PAUSE_S)

    def _request_for(self, shape: str, **changes: Any) -> TicketRequest:
        fields = {
            "user": self.user.name,
            "user_id": self.user_id,
            "server": self.name,
            "course": self._course,
            "shape": shape,
        }
        return TicketRequest(**{**fields, **changes})

    def _report(self, pct: int, message: str) -> None:
        self._events.add(pct, message)

    # What a student does while the server waits, or runs.

    async def waiting_status(self) -> dict[str, Any] | None:
        """Return the data of the waiting page; None while this start does not wait."""
        ticket = self._wait.ticket if self._wait else None
        if ticket is None:
            return None
        free = await self.backend.alternatives(ticket.id)
        if ticket.shape not in self._compute_slices:
            await self._offers()
        return waiting.waiting_page_data(
            ticket,
            free,
            keeps_ticket=self.keeps_ticket,
            meanwhile=await self.meanwhile_notice(ticket),
            course=self.course_titles.get(self._course) or self._course,
            line=await self.backend.line(self.user.name, self.name),
            compute_slices=self._compute_slices.get(ticket.shape, 0),
        )

    async def meanwhile_notice(self, ticket: TicketView) -> str:
        """What to know before starting without a GPU while this ticket waits; empty for nothing.

        Raises:
            BackendError: the backend does not answer.
        """
        return ""

    async def switch_to(self, shape: str) -> None:
        """Continue the waiting start with `CPU` or another shape, or cancel it (empty).

        Raises:
            RefusedByBackend: it does not wait (any more), or the pool cannot grant the shape in one
                step with leaving the queue; it waits on.
            BackendError: the pool does not answer.
        """
        if self._wait is None:
            raise waiting.not_waiting_error()
        await self._wait.change_to(shape)

    def options_without_gpu(self) -> dict[str, Any]:
        """Return the options that restart a server with a slice without one.

        Raises:
            RefusedByBackend: it holds none.
        """
        if not needs_slice(self._shape or CPU):
            raise RefusedByBackend("unknown-lease", "This server holds no GPU slice.", 409)
        return {**self.user_options, "shape": CPU, "course": self._course}

    def may_choose(self) -> bool:
        """Note a choice, if this server has one left: each is a row of the ledger for good."""
        now = time.monotonic()
        if len(self._chosen_at) == CHOICES_A_MINUTE and now - self._chosen_at[0] < 60:
            return False
        self._chosen_at.append(now)
        return True

    async def request_slice(self, choice: SpawnChoice, *, only_if_free: bool) -> TicketView:
        """Join the queue for a slice while this server runs without one.

        Args:
            choice: the shape; an empty course means the first that offers it.
            only_if_free: whether to be refused instead of waiting.

        Raises:
            RefusedByBackend: in the same words as on the spawn page; nothing was changed.
            BackendError: the backend does not answer.
        """
        self._require_can_ask()
        course = choice.course or await self._course_for(choice.shape, "")
        if not self._is_in_course(course):
            raise _not_in_course(course)
        request = self._request_for(choice.shape, course=course, only_if_free=only_if_free)
        ticket = await self.backend.request(request)
        self._save_choice({**self.user_options, "shape": choice.shape, "course": course})
        return ticket

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
        if not self._is_in_course(ticket.course):
            raise _not_in_course(ticket.course)
        await self.backend.take(ticket.id)
        saved = self._last_choice().shape
        shape = saved if saved and needs_slice(saved) else ticket.shape
        return {**self.user_options, "shape": shape, "course": ticket.course}

    # While it runs, and its end.

    async def poll(self) -> Any:
        """Return None (alive) while waiting and starting, then the base spawner's answer."""
        if self._is_starting:
            return None
        return await super().poll()

    async def poll_and_notify(self) -> Any:
        """Poll as the base does, one caller at a time, until the end has been handled.

        JupyterHub 6 gives its callbacks to whoever notices the end first.  While the proxy was slow
        to forget the dead server, a second caller, the student's next start, did not wait for them,
        and was then stopped half-way in the dead server's place.
        """
        async with self._poll_lock:
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

    # State and environment.

    def clear_state(self) -> None:
        """Clear the base's state; the grant stays until `run_post_stop_hook` gives it back.

        JupyterHub calls this at the beginning of every start, too: there the events begin anew.
        """
        super().clear_state()
        if not self._is_starting:
            self._events = waiting.ProgressEvents()

    def get_state(self) -> dict[str, Any]:
        """Return the base's state, with a key of ours while there is a grant or news."""
        state: dict[str, Any] = super().get_state()
        saved: dict[str, Any] = {"news": self._news} if self._news else {}
        grant = self.saved_grant()
        if grant or self.borrows:
            saved |= {**grant, "shape": self._shape, "course": self._course}
        if self.borrows:
            saved["lent"] = list(self._lent_shapes)
        if saved:
            state[STATE_KEY] = saved
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the base's state, and the grant if there was one."""
        super().load_state(state)
        saved = state.get(STATE_KEY, {})
        self._news = saved.get("news", "")
        if "shape" in saved:
            self._shape, self._course = saved["shape"], saved["course"]
            self._lent_shapes = tuple(saved.get("lent", ()))
            if not self.borrows:
                self.restore_grant(saved)

    def get_env(self) -> dict[str, str]:
        """Return the base's environment, with shape and course of the server."""
        env: dict[str, str] = super().get_env()
        env["MIGLAB_SHAPE"] = self._shape or CPU
        env["MIGLAB_COURSE"] = self._course
        env["MIGLAB_COURSE_TITLE"] = self.course_titles.get(self._course) or self._course
        size = self._compute_slices.get(self._shape, 0)
        env["MIGLAB_SHAPE_TITLE"] = shape_title(self._shape, size)
        env["MIGLAB_SHAPE_PICTURE"] = gpu_picture(self._shape, size)
        if self.borrows:
            env["MIGLAB_BORROW"] = json.dumps(self._lent_shapes)
        if self.student_api_url:
            env["MIGLAB_API"] = self.student_api_url
        if self.simulated:
            env["MIGLAB_SIMULATED"] = "1"
        return env


def _not_in_course(course: str) -> RefusedByBackend:
    return RefusedByBackend("not-in-course", f"You are not in the course {course}.", 403)

"""What every server with a slice has in common, whoever hands the slices out.

From top to bottom: what a backend overrides; the student's choice; the start and its wait; the end;
state and environment.  Knows the `Backend` protocol and no backend; is configured by traits alone.
pool_leases.py adds the leases of the lab's own pool; a Slurm site's jobs come from elsewhere.

Order of a start: ticket → wait → granted → `prepare` → the base's start.
Order of an end: stop (JupyterHub skips it for a dead server) → `give_back`.

It is longer than most modules, because one class is the frame of a server's whole life.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from jupyterhub import orm
from jupyterhub.scopes import get_scopes_for, scope_definitions
from traitlets import Dict, Instance, default, validate

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.offers import BORROW, CPU, Offers
from miglab_api.scopes import LEASE_SCOPE
from miglab_api.tickets import ATTEND_S, TicketRequest, TicketState, TicketView
from miglab_api.wording import gpu_picture, shape_title
from miglab_spawner import home_size
from miglab_spawner.backends import (
    Backend,
    BackendError,
    BackendMisunderstood,
    BackendUnreachable,
    RefusedByBackend,
)
from miglab_spawner.pages import spawn_page, waiting
from miglab_spawner.pages.spawn_page import SpawnChoice, is_borrow, is_cpu, needs_slice
from miglab_spawner.people import user_id_of
from miglab_spawner.refusals import HOPELESS, NotStarted
from miglab_spawner.traits import SpawnerTraits

TOKEN_LACKS_SCOPE = (
    "Your server was not started, because this hub would not let it see its GPU slice. Tell "
    f"whoever runs the hub: servers' tokens lack the scope {LEASE_SCOPE}!server. A server without "
    "a GPU still starts."
)

STATE_KEY = "miglab"
PAUSE_S = 0.5

Answer = TypeVar("Answer")
TokenScopes = Callable[[Any], list[str] | Awaitable[list[str]]]


class MIGSpawnerMixin(SpawnerTraits):
    """Puts a backend before any spawner's ``start()`` and after its end.

    A class that uses it comes first in the bases and overrides what raises `NotImplementedError`.

    Attributes:
        backend_name: begins the reasons of failed starts: ``pool-unreachable``.
        silence: what a student reads when the backend does not answer.
    """

    backend_name: str
    silence: str

    log: logging.Logger
    user_options: dict[str, Any]
    start_timeout: int

    _user_id = ""
    _shape = ""
    _course = ""
    _lent: tuple[str, ...] = ()
    _news = ""
    _compute_slices = Dict()  # by shape, of the GPUs that have it
    _is_starting = False
    _noticing = Instance(asyncio.Lock, args=())

    def __init__(self, **kwargs: Any) -> None:
        self._events = waiting.ProgressEvents()
        self._wait: waiting.Wait | None = None
        super().__init__(**kwargs)

    # What a backend's own mixin, or the spawner beside it, overrides.

    @property
    def backend(self) -> Backend:
        """Whoever hands out the slices."""
        raise NotImplementedError

    @property
    def patience_s(self) -> float:
        """How long a start that already waits bears a backend that does not answer, seconds."""
        raise NotImplementedError

    @property
    def keeps_ticket(self) -> bool:
        """Whether the ticket can wait on while a server without a GPU runs."""
        raise NotImplementedError

    def needs_grant(self, shape: str) -> bool:
        """Whether the backend must be asked before a server of this shape may start."""
        return needs_slice(shape)

    async def settle_old(self) -> None:
        """End what an earlier start of this very server still holds; by default that is nothing."""

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
        """Make ready for the base's ``start()``; the grant is known, the server not yet there.

        By default nothing: a job of Slurm exists by now.
        """

    async def home_use(self) -> home_size.HomeUse | None:
        """What lies in the home, where a class can tell; None where measuring it took too long.

        Only asked with `home_gib`.
        """
        return home_size.HomeUse()

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
    def news(self) -> str:
        """Why the last server ended, for the hub's pages; empty if there is nothing to say."""
        return self._news

    def token_has_scope(self) -> bool:
        """Whether the server's token may see its lease; a site may have taken that from it."""
        token = orm.APIToken.find(self.user.db, self.api_token)
        needed = f"{LEASE_SCOPE}!server={self.user.name}/{self.name}"
        return token is not None and needed in get_scopes_for(token)

    def tell_next_time(self, news: str) -> None:
        """Show this on the user's next spawn page: why the server ended."""
        self._news = news
        self.log.warning("%s's server: %s", self.user.name, news)

    @property
    def user_id(self) -> str:
        """Who the server's user is, whatever they are called."""
        if not self._user_id:
            self._user_id = user_id_of(self.user.db, self.user.id)
        return self._user_id

    async def tell_who(self) -> None:
        """Let the backend know how the user is called now; any question about them says it."""
        try:
            await self._server_status()
        except BackendError as error:
            self.log.warning("%s's new name is told later: %s", self.user.name, error)

    # The spawn page and its form.

    @default("options_form")
    def _spawn_page(self) -> Callable[..., Awaitable[str]]:
        return lambda spawner: spawner.render_spawn_page()

    @default("options_from_form")
    def _choice_from_form(self) -> Callable[..., dict[str, Any]]:
        return self.read_form

    @default("apply_user_options")
    def _nothing_to_apply(self) -> Callable[..., None]:
        # Options are read in `start`: a site may replace this hook, and nothing is lost.
        return lambda _spawner, _options: None

    def read_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """The options in the spawn page's form; a class with a form of its own adds its own."""
        return dict(spawn_page.from_form(formdata))

    async def form_of_base(self) -> str:
        """The base spawner's own form, shown below ours."""
        return ""

    async def render_spawn_page(self) -> str:
        """The spawn page: what the backend offers now, or why it offers nothing."""
        try:
            offers, status = await self._offers(), await self._server_status()
        except RefusedByBackend as refused:
            page = spawn_page.page_without_pool(refused.message, self._news)
        except BackendError as error:
            self.log.error("Spawn page without the %s: %s", self.backend_name, error)
            held_up = self.silence if self.needs_grant(CPU) else ""
            page = spawn_page.page_without_pool(self.silence, self._news, held_up)
        else:
            page = spawn_page.page_of(offers, self._last_choice(), self._news, status.ticket)
            page = replace(page, simulated=page.simulated and self.says_simulated)
        return spawn_page.render(page) + await self.form_of_base()

    # What the next start is to get.

    async def _wanted(self) -> SpawnChoice:
        try:
            asked = spawn_page.parse(self.user_options)
        except spawn_page.BadChoice as error:
            raise self._not_started(str(error), "bad-options") from None
        shape = asked.shape or self.default_shape
        if is_borrow(shape):
            return await self._borrowing(asked.course)
        if is_cpu(shape):
            known = asked.course in self._groups()
            return SpawnChoice(CPU, asked.course if known else self.default_course)
        return SpawnChoice(shape, await self._course_for(shape, asked.course))

    async def _borrowing(self, asked: str) -> SpawnChoice:
        """A course that lends: the one that was asked for, or the first of the user's."""
        lending = [course for course in (await self._offers()).courses if course.borrow]
        found = [course for course in lending if asked in ("", course.course)]
        if not found:
            where = f"The course “{asked}”" if asked else "None of your courses"
            message = f"{where} lends no slices. Choose another shape."
            raise self._not_started(message, "shape-not-offered")
        self._lent = found[0].borrow
        return SpawnChoice(BORROW, found[0].course)

    async def _course_for(self, shape: str, asked: str) -> str:
        courses = (await self._offers()).courses if self._groups() else ()
        names = [each.course for each in courses] or [self.default_course]
        if asked in names:
            return asked
        if asked:
            raise self._not_started(
                f"You are not in the course “{asked}”. Yours: {', '.join(names)}.", "not-in-course"
            )
        offering = [c.course for c in courses if shape in {offer.shape for offer in c.shapes}]
        return [*offering, *names][0]

    async def _offers(self) -> Offers:
        groups = self._groups()
        offers = await self.backend.offers(self.user.name, groups) if groups else None
        if offers is None or not offers.courses:
            offers = await self.backend.offers(self.user.name, [self.default_course])
        shapes = [one for course in offers.courses for one in course.shapes]
        self._compute_slices = {one.shape: one.compute_slices for one in shapes}
        return offers

    def _groups(self) -> list[str]:
        return sorted(group.name for group in self.user.groups)

    def _may_have(self, course: str) -> bool:
        """Whether the user is in a course now."""
        return course in (*self._groups(), self.default_course)

    async def _server_status(self) -> ServerStatus:
        return await self.backend.server_status(self.user.name, self.name)

    def _last_choice(self) -> SpawnChoice:
        """What this user chose last; empty if nothing was, or nothing that can be read."""
        try:
            return spawn_page.parse(self.user_options)
        except spawn_page.BadChoice:
            return SpawnChoice()

    def _next_shape(self) -> str:
        """What a start without another choice would ask for."""
        return self._last_choice().shape or self.default_shape

    def _choose(self, options: Mapping[str, Any]) -> None:
        """Save other options than the start began with."""
        self.user_options = dict(options)
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = dict(options)
            self.user.db.commit()

    # A start.

    @default("start_timeout")
    def _derived_start_timeout(self) -> int:
        return int(self.longest_wait_s + self.create_timeout_s + self.patience_s) + 1

    @default("server_token_scopes")
    def _as_the_role_server(self) -> TokenScopes:
        return with_lease_scope([])

    @validate("server_token_scopes")
    def _as_the_site_says(self, proposal: Any) -> TokenScopes:
        return with_lease_scope(proposal["value"])

    def run_pre_spawn_hook(self) -> Any:
        """Raise a `start_timeout` that would cut the wait short, then run the site's hook."""
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
            raise self._no_backend(error, "misunderstood") from error
        except BackendUnreachable as error:
            raise self._no_backend(error, "unreachable") from error
        finally:
            self._is_starting = False
            self._events.close()

    async def progress(self) -> AsyncIterator[dict[str, int | str]]:
        """The events of this start, for JupyterHub's progress page."""
        async for event in self._events.read():
            yield {"progress": event.pct, "message": event.message}

    async def _start(self) -> Any:
        self._wait = None
        wanted = await self._wanted()
        self._shape, self._course = wanted.shape, wanted.course
        if not is_cpu(wanted.shape):
            self._require_token_scope()
        if self.needs_grant(wanted.shape):
            await self._get_slices()
        self._report(waiting.CREATING, "Making your server.")
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
        self._report(waiting.ANSWERING, "Your server is starting; waiting for its first answer.")
        return where

    def _require_token_scope(self) -> None:
        """Refuse a server that could never report its activity.

        Raises:
            NotStarted: its token lacks the scope.
        """
        if not self.token_has_scope():
            raise self._not_started(TOKEN_LACKS_SCOPE, "token-lacks-scope", 503)

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
        self._report(waiting.ASKED, f"Asking for {self._shape}.")
        lease = await self._lease_for(await self.backend.request(self._request_for(self._shape)))
        if lease is None:
            self._shape = CPU
            return
        self._shape = lease.shape
        await self.granted(lease)
        self._report(waiting.OFFERED, f"{lease.shape} is yours.")

    def _not_started(self, message: str, reason: str, status: int = 400) -> NotStarted:
        if reason in HOPELESS:
            # JupyterHub saves the choice otherwise, and the next start fails as well.
            self._choose(spawn_page.forgotten(self.user_options))
        return NotStarted(message, reason=reason, status_code=status)

    def _no_backend(self, error: BackendError, reason: str) -> NotStarted:
        reason = f"{self.backend_name}-{reason}"
        return NotStarted(self.silence, reason=reason, status_code=503, log_message=str(error))

    # Its wait for the slices.

    async def _lease_for(self, asked: TicketView) -> LeaseView | None:
        """The lease, once it is there; None: the student goes on without a GPU."""
        self._wait = waiting.Wait(self, self._report, keeps_ticket=self.keeps_ticket)
        ticket = await self._wait.until_over(asked)
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

    async def attended(self, ticket: int) -> TicketView:
        """For the wait: the ticket when it has changed, or after a while.

        Raises:
            RefusedByBackend: the student has left its course, so the ticket is over.
        """
        attended = await self._patiently(lambda: self.backend.attend(ticket, ATTEND_S))
        if not self._may_have(attended.course):
            await self.backend.cancel(ticket)
            raise _not_in_course(attended.course)
        return attended

    async def asked(self, shape: str) -> TicketView:
        """For the wait: another shape, granted at once; this server's choice from now on."""
        request = self._request_for(shape, only_if_free=True)
        ticket = await self._patiently(lambda: self.backend.request(request))
        self._shape = shape
        self._choose({**self.user_options, "shape": shape, "course": self._course})
        return ticket

    async def still_waiting(self, ticket: TicketView) -> TicketView:
        """For the wait: asking for the same again says that the student still waits."""
        request = self._request_for(ticket.shape, course=ticket.course)
        return await self._patiently(lambda: self.backend.request(request))

    async def given_up(self, ticket: int) -> TicketView:
        """For the wait: the ticket, cancelled."""
        return await self.backend.cancel(ticket)

    @asynccontextmanager
    async def _position_kept(self) -> AsyncIterator[None]:
        """Attend the ticket that waits on until the server is there to do so itself."""
        ticket = self._wait.kept if self._wait else None
        if ticket is None:
            yield
            return
        attending = asyncio.create_task(self._attend_on(ticket))
        try:
            yield
        finally:
            attending.cancel()

    async def _attend_on(self, ticket: int) -> None:
        while True:
            try:
                await self.backend.attend(ticket, 0)
            except BackendError as error:
                self.log.warning("Ticket %d is not attended: %s", ticket, error)
            await asyncio.sleep(ATTEND_S)

    async def _patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """A call that may be made twice, made until the pool answers or patience ends."""
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

    def _request_for(self, shape: str, **other: Any) -> TicketRequest:
        who = {"user": self.user.name, "user_id": self.user_id}
        whose = {**who, "server": self.name, "course": self._course}
        return TicketRequest(**{**whose, "shape": shape, **other})

    def _report(self, pct: int, message: str) -> None:
        self._events.add(pct, message)

    # What a student does while the server waits, or runs.

    async def waiting(self) -> dict[str, Any] | None:
        """What the waiting page is told; None while this start waits for no slice."""
        ticket = self._wait.ticket if self._wait else None
        if ticket is None:
            return None
        free = await self.backend.alternatives(ticket.id)
        if ticket.shape not in self._compute_slices:
            await self._offers()
        return waiting.shown(
            ticket,
            free,
            keeps_ticket=self.keeps_ticket,
            meanwhile=await self.meanwhile(ticket),
            course=self.course_titles.get(self._course) or self._course,
            compute_slices=self._compute_slices.get(ticket.shape, 0),
        )

    async def meanwhile(self, ticket: TicketView) -> str:
        """What to know before starting without a GPU while this ticket waits; empty for nothing.

        Raises:
            BackendError: the backend does not answer.
        """
        return ""

    async def switch_to(self, shape: str) -> None:
        """Let the start that waits go on with `CPU`, another shape, or not at all (empty).

        Raises:
            RefusedByBackend: it does not wait (any more), or the pool cannot grant the shape in one
                step with leaving the queue; it waits on.
            BackendError: the pool does not answer.
        """
        if self._wait is None:
            raise waiting.not_waiting()
        await self._wait.change_to(shape)

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
        if not self._may_have(ticket.course):
            raise _not_in_course(ticket.course)
        await self.backend.take(ticket.id)
        saved = self._last_choice().shape
        shape = saved if saved and needs_slice(saved) else ticket.shape
        return {**self.user_options, "shape": shape, "course": ticket.course}

    # While it runs, and its end.

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

    # State and environment.

    def clear_state(self) -> None:
        """As the base; the grant stays: only `run_post_stop_hook` gives it back.

        JupyterHub calls this at the beginning of every start, too: there the events begin anew.
        """
        super().clear_state()
        if not self._is_starting:
            self._events = waiting.ProgressEvents()

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
        size = self._compute_slices.get(self._shape, 0)
        env["MIGLAB_SHAPE_TITLE"] = shape_title(self._shape, size)
        env["MIGLAB_SHAPE_PICTURE"] = gpu_picture(self._shape, size)
        if self.borrows:
            env["MIGLAB_BORROW"] = json.dumps(self._lent)
        if self.student_api_url:
            env["MIGLAB_API"] = self.student_api_url
        if self.simulated:
            env["MIGLAB_SIMULATED"] = "1"
        return env


def _not_in_course(course: str) -> RefusedByBackend:
    return RefusedByBackend("not-in-course", f"You are not in the course {course}.", 403)


def with_lease_scope(site_scopes: Any) -> TokenScopes:
    """The scopes of a server's own token: the site's, and the lease of that very server.

    Args:
        site_scopes: of the site's `server_token_scopes`, a list or a callable; empty for what the
            hub's role ``server`` has, as in JupyterHub.

    Returns:
        A callable, as JupyterHub takes it.  A hub that does not define the scope gives its servers
        no more than the site does.
    """

    def added(scopes: Iterable[str], spawner: Any) -> list[str]:
        lease = [f"{LEASE_SCOPE}!server"] if LEASE_SCOPE in scope_definitions else []
        return [*(scopes or orm.Role.find(spawner.user.db, "server").scopes), *lease]

    async def awaited(scopes: Awaitable[Iterable[str]], spawner: Any) -> list[str]:
        return added(await scopes, spawner)

    def token_scopes(spawner: Any) -> list[str] | Awaitable[list[str]]:
        # Not a coroutine by itself: while JupyterHub waits here, it loses the server's address,
        # which is not yet in its database (6.1 and 5.5, with `slow_spawn_timeout` 0).
        scopes = site_scopes(spawner) if callable(site_scopes) else site_scopes
        wait_for = awaited if inspect.isawaitable(scopes) else added
        return wait_for(scopes, spawner)

    return token_scopes

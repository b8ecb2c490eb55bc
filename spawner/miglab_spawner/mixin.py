"""The mixin that gives a JupyterHub server its slices: ask, wait, attach, start; and give back.

Knows the pool's client and nothing below it; is configured by traits alone.  docker.py and local.py
lay it over a spawner.  Longer than 300 lines because JupyterHub wants its hooks on one class.

Order of a start: ticket → wait → lease → create → **attach** (the fence) → start → running.
Order of an end: stop (JupyterHub skips it for a dead server) → end whatever holds → release.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from traitlets import default

from miglab_api import offers as offers_room
from miglab_api.leases import LeaseState, LeaseView, ServerStatus
from miglab_api.offers import Offers
from miglab_api.tickets import ATTEND_S, TicketRequest, TicketState, TicketView
from miglab_spawner import scopes
from miglab_spawner.backends.base import (
    Backend,
    PoolError,
    PoolMisunderstood,
    PoolUnreachable,
    RefusedByPool,
)
from miglab_spawner.backends.pool import PoolClient
from miglab_spawner.containers.limits import ContainerLimits, limits_of
from miglab_spawner.lease_session import SavedLease
from miglab_spawner.pages import choice, progress, spawn_page, waiting
from miglab_spawner.pages.choice import SpawnChoice, is_cpu
from miglab_spawner.pages.progress import Note
from miglab_spawner.refusals import HOPELESS, NotStarted
from miglab_spawner.traits import SpawnerTraits

STATE_KEY = "miglab"
_PAUSE_S = 0.5
_OVER = frozenset({LeaseState.RELEASED, LeaseState.EXPIRED})
_NO_POOL = (
    "The GPU pool does not answer. Start without a GPU, or try again in a minute. "
    "If it stays so, tell your instructor."
)

Answer = TypeVar("Answer")


class MIGSpawnerMixin(SpawnerTraits):
    """Puts the pool before any spawner's ``start()`` and after its end.

    A class that uses it comes first in the bases, overrides `prepare` and `end_holder`, and calls
    `attach` when its server exists but does not run yet, `announce_running` when it does.
    """

    log: logging.Logger
    start_timeout: int
    user_options: dict[str, Any]

    _grant: SavedLease | None = None
    _holder = ""
    _course = ""
    _shape = ""
    _is_starting = False
    _news = ""

    def __init__(self, **kwargs: Any) -> None:
        self._notes = progress.Notes()
        self._wait: waiting.Wait | None = None
        super().__init__(**kwargs)

    # What the base class overrides or uses.

    async def prepare(self) -> None:
        """Make ready for the base's ``start()``; the lease is known, the server not yet there."""
        raise NotImplementedError

    async def end_holder(self, holder: str) -> None:
        """Make sure that what holds a lease runs no more: stop it, remove it, whatever it is.

        Called with the holder's name when JupyterHub may have skipped ``stop()``.  Already gone is
        fine; an answer that leaves it open raises nothing: the pool confirms for itself.
        """
        raise NotImplementedError

    async def attach(self, holder: str) -> None:
        """The fence: tell the pool who will hold the lease; only then may it be started.

        Raises:
            RefusedByPool: the lease is over or another's; the server must not be started.
        """
        if self._grant is None:
            return
        self._note(progress.ATTACHING, "Handing the slice over to your server.")
        self._holder = holder
        own = self._grant
        await self._patiently(
            lambda: self.pool.attach(own.lease, own.generation, holder, own.ledger)
        )
        self._note(progress.STARTING, "The slice is yours. Starting your server.")

    async def announce_running(self) -> None:
        """Tell the pool that the holder was started; it finds out by itself if this fails."""
        if self._grant is None:
            return
        own = self._grant
        try:
            await self.pool.running(own.lease, own.generation, own.ledger)
        except PoolError as error:
            self.log.warning("Lease %d runs, but the pool: %s", self._grant.lease, error)

    @property
    def pool(self) -> Backend:
        """Whoever hands out the slices: the lab's pool."""
        return PoolClient(self.pool_url, self.pool_secret_file)

    @property
    def grant(self) -> SavedLease | None:
        """What this server holds now; None without a lease."""
        return self._grant

    @property
    def limits(self) -> ContainerLimits:
        """What this server may use of its host."""
        return limits_of(self._shape or offers_room.CPU, self.shape_limits)

    def adopt(self, grant: SavedLease, holder: str) -> None:
        """Take a lease over that a label names: the hub crashed before it saved its state."""
        self._grant, self._holder = grant, holder

    @property
    def news(self) -> str:
        """Why the last server ended, for the hub's pages; empty if there is nothing to say."""
        return self._news

    def tell_next_time(self, news: str) -> None:
        """Show this on the user's next spawn page: why the server ended."""
        self._news = news
        self.log.warning("%s's server: %s", self.user.name, news)

    # Traits of JupyterHub's Spawner.

    @default("start_timeout")
    def _derived_start_timeout(self) -> int:
        return int(self.longest_wait_s + self.create_timeout_s + self.pool_patience_s) + 1

    @default("server_token_scopes")
    def _lease_scope_too(self) -> Callable[[object], list[str]]:
        return scopes.server_token_scopes

    @default("options_form")
    def _spawn_page(self) -> Callable[..., Awaitable[str]]:
        return _options_form

    @default("options_from_form")
    def _choice_from_form(self) -> Callable[..., dict[str, Any]]:
        return self.read_form

    @default("apply_user_options")
    def _nothing_to_apply(self) -> Callable[..., None]:
        return _leave_to_start

    def read_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """The options in the spawn page's form; a class with a form of its own adds its own."""
        return dict(choice.from_form(formdata))

    async def form_of_base(self) -> str:
        """The base spawner's own form, shown below ours."""
        return ""

    async def render_spawn_page(self) -> str:
        """The spawn page: what the pool offers now, or why it offers nothing."""
        try:
            offers, status = await self._offers(), await self._server_status()
        except RefusedByPool as refused:
            page = spawn_page.page_without_pool(refused.message, self._news)
        except PoolError as error:
            self.log.error("Spawn page without the pool: %s", error)
            page = spawn_page.page_without_pool(_NO_POOL, self._news)
        else:
            page = spawn_page.page_of(offers, self._last_choice(), self._news, status.ticket)
            page = replace(page, simulated=page.simulated and self.says_simulated)
        return spawn_page.render(page) + await self.form_of_base()

    # What a student does while the server waits, or runs without a GPU.

    async def waiting(self) -> dict[str, Any] | None:
        """What the waiting page is told; None while this start waits for no slice."""
        ticket = self._wait.ticket if self._wait else None
        if ticket is None:
            return None
        free = await self.pool.alternatives(ticket.id)
        return waiting.shown(ticket, free, keeps_ticket=self._keeps_ticket)

    async def switch_to(self, shape: str) -> None:
        """Let the start that waits go on with `CPU`, another shape, or not at all (empty).

        Raises:
            RefusedByPool: it does not wait (any more), or the pool cannot grant the shape in one
                step with giving up the place; it waits on.
            PoolError: the pool does not answer.
        """
        if self._wait is None:
            raise waiting.not_waiting()
        await self._wait.wish(shape)

    async def take_offer(self) -> dict[str, Any]:
        """Take what is offered to this server, so that it cannot lapse while the server restarts.

        Returns:
            The options with which the server is to be started again.

        Raises:
            RefusedByPool: nothing is offered (any more).
            PoolError: the pool does not answer.
        """
        ticket = (await self._server_status()).ticket
        if ticket is None:
            raise RefusedByPool("not-offered", "This server waits for nothing.", 409)
        if ticket.course not in (*self._groups(), self.default_course):
            why = f"You are not in the course {ticket.course} (any more)."
            raise RefusedByPool("not-in-course", why, 403)
        await self.pool.take(ticket.id)
        saved = self._last_choice().shape
        shape = ticket.shape if not saved or is_cpu(saved) else saved
        return {**self.user_options, "shape": shape, "course": ticket.course}

    # Life cycle.

    def run_pre_spawn_hook(self) -> Any:
        """Raise a `start_timeout` that would cut the wait short, then run the site's hook."""
        needed = self._derived_start_timeout()
        if self.start_timeout < needed and not is_cpu(self._saved_choice().shape):
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
        except RefusedByPool as refused:
            raise self._not_started(refused.message, refused.reason, refused.status) from None
        except PoolMisunderstood as error:
            raise self._no_pool(error, "pool-misunderstood") from error
        except PoolUnreachable as error:
            raise self._no_pool(error, "pool-unreachable") from error
        finally:
            self._is_starting = False
            self._notes.close()

    async def poll(self) -> Any:
        """None (alive) while waiting and starting; then what the base spawner says."""
        if self._is_starting:
            return None
        return await super().poll()

    async def run_post_stop_hook(self) -> None:
        """End what may still hold the slices and ask for their release; then the site's hook.

        JupyterHub awaits this after every end and every failed start, also where it skips
        ``stop()``.
        """
        try:
            await self._give_back()
        except PoolError as error:
            self.log.warning("%s's release waits for the pool: %s", self.user.name, error)
        finally:
            self._grant, self._holder = None, ""
            answer = super().run_post_stop_hook()
            if inspect.isawaitable(answer):
                await answer

    async def progress(self) -> AsyncIterator[dict[str, int | str]]:
        """The notes of this start, for JupyterHub's progress page."""
        async for note in self._notes.read():
            yield note.as_event()

    # State and environment.

    def clear_state(self) -> None:
        """As the base; the lease stays: only `run_post_stop_hook` gives it back.

        JupyterHub calls this at the begin of every start, too: there the notes begin anew.
        """
        super().clear_state()
        if not self._is_starting:
            self._notes = progress.Notes()

    def get_state(self) -> dict[str, Any]:
        """The base's state; with a key of ours only while there is a lease or news."""
        state: dict[str, Any] = super().get_state()
        ours: dict[str, Any] = {"news": self._news} if self._news else {}
        if self._grant is not None:
            ours |= {
                "lease": self._grant.lease,
                "generation": self._grant.generation,
                "ledger": self._grant.ledger,
                "uuids": list(self._grant.uuids),
                "holder": self._holder,
                "shape": self._shape,
                "course": self._course,
            }
        if ours:
            state[STATE_KEY] = ours
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """As the base; and the lease, when there was one."""
        super().load_state(state)
        ours = state.get(STATE_KEY, {})
        self._news = ours.get("news", "")
        if "lease" in ours:
            self._holder, self._shape = ours["holder"], ours["shape"]
            self._course = ours["course"]
            had = (ours["lease"], ours["generation"], ours["uuids"], ours.get("ledger", ""))
            self._grant = self._grant_of(*had)

    def get_env(self) -> dict[str, str]:
        """The base's environment, and what the server holds."""
        env: dict[str, str] = super().get_env()
        env["MIGLAB_SHAPE"] = self._shape or offers_room.CPU
        env["MIGLAB_COURSE"] = self._course
        if self.student_api_url:
            env["MIGLAB_API"] = self.student_api_url
        if self.simulated:
            env["MIGLAB_SIMULATED"] = "1"
        if self._grant is not None:
            env["MIGLAB_LEASE"] = str(self._grant.lease)
            env["MIGLAB_SLICES"] = ",".join(self._grant.uuids)
        return env

    # The steps of a start.

    async def _start(self) -> Any:
        self._wait = None
        wanted = await self._wanted()
        self._shape, self._course = wanted.shape, wanted.course
        if not is_cpu(wanted.shape):
            await self._get_slices()
        self._note(progress.CREATING, "Making your server.")
        async with asyncio.timeout(self.create_timeout_s), self._place_kept():
            await self.prepare()
            where = await super().start()
        self._news = ""
        self._note(progress.ANSWERING, "Your server is starting; waiting for its first answer.")
        return where

    async def _wanted(self) -> SpawnChoice:
        try:
            asked = choice.parse(self.user_options)
        except choice.BadChoice as error:
            raise self._not_started(str(error), "bad-options") from None
        shape = asked.shape or self.default_shape
        if is_cpu(shape):
            known = asked.course in self._groups()
            return SpawnChoice(offers_room.CPU, asked.course if known else self.default_course)
        return SpawnChoice(shape, await self._course_for(shape, asked.course))

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
        if groups:
            offers = await self.pool.offers(self.user.name, groups)
            if offers.courses:
                return offers
        return await self.pool.offers(self.user.name, [self.default_course])

    def _groups(self) -> list[str]:
        return sorted(group.name for group in self.user.groups)

    async def _get_slices(self) -> None:
        await self._settle_old()
        self._note(progress.ASKED, f"Asking for {self._shape}.")
        request = TicketRequest(
            user=self.user.name, server=self.name, course=self._course, shape=self._shape
        )
        lease = await self._lease_for(await self.pool.request(request))
        if lease is None:
            self._shape = offers_room.CPU
            return
        self._shape = lease.shape
        self._grant = self._grant_of(lease.id, lease.generation, lease.uuids, lease.ledger)
        self._note(progress.OFFERED, f"{lease.shape} is yours.")

    async def _lease_for(self, asked: TicketView) -> LeaseView | None:
        """The lease, once it is there; None: the student goes on without a GPU."""
        self._wait = waiting.Wait(self, self._say, keeps_ticket=self._keeps_ticket)
        ticket = await self._wait.until_over(asked)
        if ticket is None:
            return None
        if ticket.state is TicketState.OFFERED or ticket.state is TicketState.TAKEN:
            number = ticket.id
            return await self._patiently(lambda: self.pool.take(number))
        message = ticket.message or f"Your place in line is gone: {ticket.state}. Start again."
        raise self._not_started(message, ticket.reason or ticket.state.value, 503)

    async def attended(self, ticket: int) -> TicketView:
        """For the wait: the ticket when it has changed, or after a while."""
        return await self._patiently(lambda: self.pool.attend(ticket, ATTEND_S))

    async def asked(self, shape: str) -> TicketView:
        """For the wait: another shape, granted at once; this server's choice from now on."""
        request = TicketRequest(
            user=self.user.name,
            server=self.name,
            course=self._course,
            shape=shape,
            only_if_free=True,
        )
        ticket = await self._patiently(lambda: self.pool.request(request))
        self._shape = shape
        self._choose({**self.user_options, "shape": shape, "course": self._course})
        return ticket

    async def given_up(self, ticket: int) -> TicketView:
        """For the wait: the ticket, cancelled."""
        return await self.pool.cancel(ticket)

    @property
    def _keeps_ticket(self) -> bool:
        """Whether a server without a GPU can attend its ticket: it must know where the pool is."""
        return bool(self.student_api_url)

    @asynccontextmanager
    async def _place_kept(self) -> AsyncIterator[None]:
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
                await self.pool.attend(ticket, 0)
            except PoolError as error:
                self.log.warning("Ticket %d is not attended: %s", ticket, error)
            await asyncio.sleep(ATTEND_S)

    async def _server_status(self) -> ServerStatus:
        return await self.pool.server_status(self.user.name, self.name)

    async def _settle_old(self) -> None:
        """End earlier holders of this very server, so that the pool need not refuse the new one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.create_timeout_s
        for lease in await self._own_leases():
            await self._release(lease, "the same server starts anew")
            while lease.state not in _OVER:
                if loop.time() > deadline:
                    raise self._not_started(
                        "Your earlier server has not ended yet. Try again in a minute.",
                        "old-server-remains",
                        503,
                    )
                await asyncio.sleep(_PAUSE_S)
                lease = await self._state_of(lease)

    async def _state_of(self, lease: LeaseView) -> LeaseView:
        return await self._patiently(lambda: self.pool.lease(lease.id))

    # The steps of an end.

    async def _give_back(self) -> None:
        """Release what this server holds, whether this hub remembers it or the pool does."""
        grant, holder = self._grant, self._holder
        if holder:
            await self.end_holder(holder)
        if grant is None and is_cpu(self._saved_choice().shape):
            return
        if grant is not None and not self._news:
            await self._hear_why(grant)
        for lease in await self._own_leases(also=grant):
            await self._release(lease, self._news or "the server ended")

    async def _hear_why(self, grant: SavedLease) -> None:
        """Tell the student, on the next spawn page, why somebody asked for the slice back."""
        try:
            lease = await self.pool.lease(grant.lease)
        except RefusedByPool as refused:
            self.log.info("Lease %d is not known any more: %s", grant.lease, refused)
            return
        if _is_grant(lease, grant) and lease.release_requested_at is not None and lease.reason:
            self.tell_next_time(
                f"Your server was stopped, because its slice was asked back: {lease.reason}"
            )

    async def _own_leases(self, also: SavedLease | None = None) -> list[LeaseView]:
        """This server's leases that have or had a holder; ``also`` one that never had.

        A grant without a holder may belong to a place in line that is kept, so it is left alone.
        """
        return [
            lease
            for lease in await self.pool.leases(self.user.name)
            if lease.server == self.name
            and lease.state not in _OVER
            and (lease.holder or (also is not None and _is_grant(lease, also)))
        ]

    async def _release(self, lease: LeaseView, reason: str) -> None:
        if lease.holder:
            await self.end_holder(lease.holder)
        try:
            await self.pool.release(lease.id, reason, lease.generation, lease.ledger)
        except RefusedByPool as refused:
            self.log.info("Lease %d needs no release: %s", lease.id, refused)

    # Small things.

    def _grant_of(self, lease: int, generation: int, uuids: Any, ledger: str) -> SavedLease:
        return SavedLease(lease, generation, self.user.name, self.name, tuple(uuids), ledger)

    def _last_choice(self) -> SpawnChoice:
        """What this user chose last; empty if nothing was, or nothing that can be read."""
        try:
            return choice.parse(self.user_options)
        except choice.BadChoice:
            return SpawnChoice()

    def _saved_choice(self) -> SpawnChoice:
        last = self._last_choice()
        return SpawnChoice(last.shape or self.default_shape, last.course)

    def _note(self, pct: int, message: str) -> None:
        self._notes.add(pct, message)

    def _say(self, note: Note) -> None:
        self._note(note.pct, note.message)

    async def _patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """A call that may be made twice, made until the pool answers or patience ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.pool_patience_s
        while True:
            try:
                return await call()
            except PoolUnreachable:
                if loop.time() >= deadline:
                    raise
                self.log.warning("The pool does not answer; %s's start waits", self.user.name)
                await asyncio.sleep(_PAUSE_S)

    def _not_started(self, message: str, reason: str, status: int = 400) -> NotStarted:
        if reason in HOPELESS:
            self._forget_choice()
        return NotStarted(message, reason=reason, status_code=status)

    def _no_pool(self, error: PoolError, reason: str) -> NotStarted:
        return NotStarted(_NO_POOL, reason=reason, status_code=503, log_message=str(error))

    def _forget_choice(self) -> None:
        """Keep a choice that cannot be met out of the next start; JupyterHub saves it otherwise."""
        self._choose(choice.forgotten(self.user_options))

    def _choose(self, options: Mapping[str, Any]) -> None:
        """Save other options than the start began with."""
        self.user_options = dict(options)
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = dict(options)
            self.user.db.commit()


def _is_grant(lease: LeaseView, grant: SavedLease) -> bool:
    """Whether it is this very lease: a restored ledger gives its numbers once more."""
    return (lease.id, lease.generation) == (grant.lease, grant.generation)


async def _options_form(spawner: MIGSpawnerMixin) -> str:
    return await spawner.render_spawn_page()


def _leave_to_start(_spawner: MIGSpawnerMixin, _options: Mapping[str, Any]) -> None:
    """Options are read in ``start()``: a site may replace this hook, and nothing is lost."""

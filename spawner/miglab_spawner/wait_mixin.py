"""A start's wait for its slices: attending the ticket, changing the choice, giving it up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from miglab_api.leases import LeaseView
from miglab_api.tickets import ATTEND_S, TicketRequest, TicketState, TicketView
from miglab_spawner.backends.base import BackendError, BackendUnreachable
from miglab_spawner.choice_mixin import ChoiceMixin
from miglab_spawner.pages import progress, waiting
from miglab_spawner.pages.progress import ProgressEvent

PAUSE_S = 0.5

Answer = TypeVar("Answer")


class WaitMixin(ChoiceMixin):
    """Waits for a ticket's lease, and bears a backend that does not answer for a while."""

    _course = ""

    def __init__(self, **kwargs: Any) -> None:
        self._events = progress.ProgressEvents()
        self._wait: waiting.Wait | None = None
        super().__init__(**kwargs)

    @property
    def patience_s(self) -> float:
        """How long a start that already waits bears a backend that does not answer, seconds."""
        raise NotImplementedError

    @property
    def keeps_ticket(self) -> bool:
        """Whether the ticket can wait on while a server without a GPU runs."""
        raise NotImplementedError

    async def waiting(self) -> dict[str, Any] | None:
        """What the waiting page is told; None while this start waits for no slice."""
        ticket = self._wait.ticket if self._wait else None
        if ticket is None:
            return None
        free = await self.backend.alternatives(ticket.id)
        return waiting.shown(ticket, free, keeps_ticket=self.keeps_ticket)

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

    async def _lease_for(self, asked: TicketView) -> LeaseView | None:
        """The lease, once it is there; None: the student goes on without a GPU."""
        self._wait = waiting.Wait(self, self._say, keeps_ticket=self.keeps_ticket)
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
        """For the wait: the ticket when it has changed, or after a while."""
        return await self._patiently(lambda: self.backend.attend(ticket, ATTEND_S))

    async def asked(self, shape: str) -> TicketView:
        """For the wait: another shape, granted at once; this server's choice from now on."""
        request = TicketRequest(
            user=self.user.name,
            server=self.name,
            course=self._course,
            shape=shape,
            only_if_free=True,
        )
        ticket = await self._patiently(lambda: self.backend.request(request))
        self._shape = shape
        self._choose({**self.user_options, "shape": shape, "course": self._course})
        return ticket

    async def still_waiting(self, ticket: TicketView) -> TicketView:
        """For the wait: asking for the same again says that the student still waits."""
        request = TicketRequest(
            user=self.user.name, server=self.name, course=ticket.course, shape=ticket.shape
        )
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

    def _report(self, pct: int, message: str) -> None:
        self._events.add(pct, message)

    def _say(self, event: ProgressEvent) -> None:
        self._report(event.pct, event.message)

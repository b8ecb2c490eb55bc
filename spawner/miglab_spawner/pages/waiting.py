"""The wait of one start: how it stands in line, and what its student would rather have.

A student who waits may go on without a GPU, with another shape, or not at all.  The wish reaches
the start that is under way, so that nothing is stopped and begun anew, and no place is lost by it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketState, TicketView
from miglab_spawner.backends.base import BackendError, RefusedByBackend
from miglab_spawner.pages.choice import is_cpu
from miglab_spawner.pages.progress import Note, in_line
from miglab_spawner.pages.spawn_page import in_gib

NOTHING = ""  # the shape of who gives up


class TicketQueue(Protocol):
    """What a wait needs of the pool."""

    async def attended(self, ticket: int) -> TicketView:
        """The ticket when it has changed, or after a while."""

    async def asked(self, shape: str) -> TicketView:
        """The ticket for another shape, granted in this step; the old one makes way.

        Raises:
            RefusedByBackend: it is not free (any more); the old ticket is as it was.
        """

    async def given_up(self, ticket: int) -> TicketView:
        """The ticket, cancelled."""


@dataclass
class _Wish:
    shape: str
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Wait:
    """One start's wait.

    Args:
        line: the pool.
        say: takes what the student reads.
        keeps_ticket: whether the place is attended while a server without a GPU runs.

    Attributes:
        ticket: how it stands; None while nothing is waited for.
        kept: the ticket that waits on while the server runs without a GPU; None if none does.
    """

    def __init__(
        self, line: TicketQueue, say: Callable[[Note], None], *, keeps_ticket: bool
    ) -> None:
        self.ticket: TicketView | None = None
        self.kept: int | None = None
        self._line, self._say, self._keeps_ticket = line, say, keeps_ticket
        self._wish: _Wish | None = None
        self._rung = asyncio.Event()

    async def until_over(self, ticket: TicketView) -> TicketView | None:
        """Wait until the ticket waits no more; None: the student goes on without a GPU."""
        found: TicketView | None = ticket
        try:
            while found is not None and found.state is TicketState.WAITING:
                self.ticket = found
                self._say(in_line(found))
                found = await self._news(found)
        finally:
            self.ticket = None
            self._refuse()
        return found

    async def wish(self, shape: str) -> None:
        """Go on with this shape instead: `CPU`, another one, or `NOTHING`.

        Raises:
            RefusedByBackend: nothing waits (any more), or the pool refuses; then it waits on.
            BackendError: the pool does not answer; it waits on.
        """
        if self.ticket is None or self._wish is not None:
            raise not_waiting()
        self._wish = wish = _Wish(shape)
        self._rung.set()
        await asyncio.shield(wish.done)

    async def _news(self, ticket: TicketView) -> TicketView | None:
        """What comes first: a change in line, or a wish."""
        attending = asyncio.ensure_future(self._line.attended(ticket.id))
        rung = asyncio.ensure_future(self._rung.wait())
        try:
            await asyncio.wait({attending, rung}, return_when=asyncio.FIRST_COMPLETED)
            return attending.result() if attending.done() else await self._grant(ticket)
        finally:
            for task in (attending, rung):
                task.cancel()
            await asyncio.gather(attending, rung, return_exceptions=True)

    async def _grant(self, ticket: TicketView) -> TicketView | None:
        wish, self._wish = self._wish, None
        self._rung.clear()
        assert wish is not None
        try:
            after = await self._after(wish.shape, ticket)
        except BackendError as error:
            wish.done.set_exception(error)
            return ticket
        except BaseException:  # the hub ends, the start is stopped, or it fails
            wish.done.set_exception(not_waiting())
            raise
        wish.done.set_result(None)
        return after

    async def _after(self, shape: str, ticket: TicketView) -> TicketView | None:
        if is_cpu(shape) and self._keeps_ticket:
            self.kept = ticket.id
            return None
        if shape and not is_cpu(shape):
            return await self._line.asked(shape)
        over = await self._line.given_up(ticket.id)
        if is_cpu(shape):
            return None
        return over.model_copy(update={"message": "You gave up your place in line."})

    def _refuse(self) -> None:
        """It is over: who wished for something meanwhile is told."""
        if self._wish is not None:
            self._wish.done.set_exception(not_waiting())
            self._wish = None


def not_waiting() -> RefusedByBackend:
    """What is said to a wish that comes too late."""
    return RefusedByBackend("not-waiting", "Your server does not wait for a slice (any more).", 409)


def _size(slices: int, memory_mib: int) -> str:
    return f"{slices} × {in_gib(memory_mib)}" if slices > 1 else in_gib(memory_mib)


def shown(
    ticket: TicketView, alternatives: Sequence[ShapeOffer], *, keeps_ticket: bool
) -> dict[str, Any]:
    """What the waiting page is told; JSON."""
    return {
        "shape": ticket.shape,
        "message": in_line(ticket).message,
        "keeps_ticket": keeps_ticket,
        "alternatives": [
            {"shape": one.shape, "size": _size(one.slices, one.memory_mib)} for one in alternatives
        ],
    }

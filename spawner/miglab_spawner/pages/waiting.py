"""The wait of one start: its position in the queue, and what its student would rather have.

A student who waits may go on without a GPU, with another shape, or not at all.  The choice
reaches the start that is under way: nothing is stopped and begun anew, and no position is lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from miglab_api.offers import ShapeOffer
from miglab_api.shape_words import gpu_picture, shape_title
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import ordinal
from miglab_spawner.backends.base import BackendError, RefusedByBackend
from miglab_spawner.pages.choice import is_cpu
from miglab_spawner.pages.progress import ProgressEvent, queued, range_in_words
from miglab_spawner.pages.spawn_page import in_gib

NOTHING = ""  # the shape of who gives up
WAITS = (TicketState.WAITING, TicketState.ASIDE)


class TicketQueue(Protocol):
    """What a wait needs of the pool."""

    async def attended(self, ticket: int) -> TicketView:
        """The ticket when it has changed, or after a while."""

    async def asked(self, shape: str) -> TicketView:
        """The ticket for another shape, granted in this step; the old one makes way.

        Raises:
            RefusedByBackend: it is not free (any more); the old ticket is as it was.
        """

    async def still_waiting(self, ticket: TicketView) -> TicketView:
        """The ticket, whose student said that they wait, or are back in the queue."""

    async def given_up(self, ticket: int) -> TicketView:
        """The ticket, cancelled."""


@dataclass
class _Change:
    shape: str
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Wait:
    """One start's wait.

    Args:
        queue: the pool.
        say: takes what the student reads.
        keeps_ticket: whether the ticket is attended while a server without a GPU runs.

    Attributes:
        ticket: how it stands; None while nothing is waited for.
        kept: the ticket that waits on while the server runs without a GPU; None if none does.
    """

    def __init__(
        self, queue: TicketQueue, say: Callable[[ProgressEvent], None], *, keeps_ticket: bool
    ) -> None:
        self.ticket: TicketView | None = None
        self.kept: int | None = None
        self._queue, self._say, self._keeps_ticket = queue, say, keeps_ticket
        self._change: _Change | None = None
        self._rung = asyncio.Event()

    async def until_over(self, ticket: TicketView) -> TicketView | None:
        """Wait until the ticket waits no more; None: the student goes on without a GPU."""
        found: TicketView | None = ticket
        try:
            while found is not None and found.state in WAITS:
                self.ticket = found
                self._say(queued(found))
                found = await self._news(found)
        finally:
            self.ticket = None
            self._refuse()
        return found

    async def change_to(self, shape: str) -> None:
        """Go on with this shape: `CPU`, another one, the same (still waiting), or `NOTHING`.

        Raises:
            RefusedByBackend: nothing waits (any more), or the pool refuses; then it waits on.
            BackendError: the pool does not answer; it waits on.
        """
        if self.ticket is None or self._change is not None:
            raise not_waiting()
        self._change = change = _Change(shape)
        self._rung.set()
        await asyncio.shield(change.done)

    async def _news(self, ticket: TicketView) -> TicketView | None:
        """What comes first: news of the ticket, or another choice."""
        attending = asyncio.ensure_future(self._queue.attended(ticket.id))
        rung = asyncio.ensure_future(self._rung.wait())
        try:
            await asyncio.wait({attending, rung}, return_when=asyncio.FIRST_COMPLETED)
            return attending.result() if attending.done() else await self._grant(ticket)
        finally:
            for task in (attending, rung):
                task.cancel()
            await asyncio.gather(attending, rung, return_exceptions=True)

    async def _grant(self, ticket: TicketView) -> TicketView | None:
        change, self._change = self._change, None
        self._rung.clear()
        assert change is not None
        try:
            after = await self._after(change.shape, ticket)
        except BackendError as error:
            change.done.set_exception(error)
            return ticket
        except BaseException:  # the hub ends, the start is stopped, or it fails
            change.done.set_exception(not_waiting())
            raise
        change.done.set_result(None)
        return after

    async def _after(self, shape: str, ticket: TicketView) -> TicketView | None:
        if is_cpu(shape) and self._keeps_ticket:
            self.kept = ticket.id
            return None
        if shape == ticket.shape:
            return await self._queue.still_waiting(ticket)
        if shape and not is_cpu(shape):
            return await self._queue.asked(shape)
        over = await self._queue.given_up(ticket.id)
        if is_cpu(shape):
            return None
        return over.model_copy(update={"message": "You left the queue."})

    def _refuse(self) -> None:
        """It is over: whoever chose something else meanwhile is told."""
        if self._change is not None:
            self._change.done.set_exception(not_waiting())
            self._change = None


def not_waiting() -> RefusedByBackend:
    """What is said to a choice that comes too late."""
    return RefusedByBackend("not-waiting", "Your server is no longer waiting for a slice.", 409)


def _size(slices: int, memory_mib: int) -> str:
    if not memory_mib:
        return f"{slices} slice{'s' * (slices > 1)}"
    return f"{slices} × {in_gib(memory_mib)}" if slices > 1 else in_gib(memory_mib)


def shown(
    ticket: TicketView,
    alternatives: Sequence[ShapeOffer],
    *,
    keeps_ticket: bool,
    course: str,
    compute_slices: int,
) -> dict[str, Any]:
    """What the waiting page is told; JSON.

    Args:
        ticket: how it stands.
        alternatives: what is free meanwhile.
        keeps_ticket: whether a server without a GPU keeps the position.
        course: its title.
        compute_slices: of a whole GPU; 0 where that is not known.
    """
    return {
        "shape": ticket.shape,
        "title": shape_title(ticket.shape, compute_slices),
        "picture": gpu_picture(ticket.shape, compute_slices),
        "course": course,
        "position": ticket.position,
        "which": ordinal(ticket.position) if ticket.position else "",
        "waiting": ticket.waiting,
        "message": queued(ticket).message,
        "range": range_in_words(ticket),
        "basis": ticket.estimate.basis if ticket.estimate else "",
        "asks": ticket.answer_by is not None,
        "aside": ticket.state is TicketState.ASIDE,
        "keeps_ticket": keeps_ticket,
        "alternatives": [
            {
                "shape": one.shape,
                "size": _size(one.slices, one.memory_mib),
                "title": shape_title(one.shape, one.compute_slices),
                "picture": gpu_picture(one.shape, one.compute_slices),
            }
            for one in alternatives
        ],
    }

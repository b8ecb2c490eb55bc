"""What a student reads while the server starts, and the wait of one start for its slices.

Events come in order, for any number of open pages; their words and numbers are made here, pure.

A student who waits may go on without a GPU, with another shape, or not at all.  The choice
reaches the start that is under way: nothing is stopped and begun anew, and no position is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import estimated_wait, gpu_picture, ordinal, queue_position, shape_title
from miglab_spawner.backends import BackendError, RefusedByBackend
from miglab_spawner.pages.spawn_page import in_gib, is_cpu

ASKED, OFFERED, CREATING, ATTACHING, STARTING, ANSWERING = 5, 50, 60, 70, 80, 90
_QUEUED_FROM, _QUEUED_TO = 10, 45


@dataclass(frozen=True)
class ProgressEvent:
    """One line: ``pct`` of the whole start, and the words."""

    pct: int
    message: str


class ProgressEvents:
    """The events of one start; readers get all of them from the first, then each new one."""

    def __init__(self) -> None:
        self._events: list[ProgressEvent] = []
        self._closed = False
        self._changed = asyncio.Event()

    def add(self, pct: int, message: str) -> None:
        """Add an event, unless it says the same as the last one."""
        event = ProgressEvent(pct, message)
        if not self._events or self._events[-1] != event:
            self._events.append(event)
            self._ring()

    def close(self) -> None:
        """No more events come: readers end."""
        self._closed = True
        self._ring()

    async def read(self) -> AsyncIterator[ProgressEvent]:
        """All events so far, then each as it is added, until `close`."""
        seen = 0
        while True:
            changed = self._changed
            for event in self._events[seen:]:
                seen += 1
                yield event
            if seen == len(self._events) and self._closed:
                return
            if seen == len(self._events):
                await changed.wait()

    def _ring(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def queued(ticket: TicketView) -> ProgressEvent:
    """The event for a ticket that waits: its position, and for how long it is likely to wait.

    A ticket that waits without a position is granted: its slices are being made.
    """
    if ticket.state is TicketState.ASIDE:
        return ProgressEvent(_QUEUED_FROM, ticket.message)
    if ticket.position is None and ticket.message:  # a limit holds it: it is in no queue
        return ProgressEvent(_QUEUED_FROM, f"{ticket.message} {_next(ticket)}")
    if ticket.position is None:
        return ProgressEvent(
            _QUEUED_TO, f"It is your turn: {ticket.shape} is being created for you."
        )
    pct = _QUEUED_TO - 5 * ticket.position
    return ProgressEvent(
        max(_QUEUED_FROM, pct),
        f"{queue_position(ticket)} {_wait(ticket)}{_next(ticket)}",
    )


def _next(ticket: TicketView) -> str:
    if ticket.answer_by is None:
        return "This page continues by itself, and you keep your position if you close it."
    return "Are you still waiting? Without an answer within 10 minutes you step aside."


def _wait(ticket: TicketView) -> str:
    if ticket.message:  # it waits for something else than room
        return f"{ticket.message} "
    if ticket.estimate is None:
        return ""
    late = " This is longer than first estimated." if ticket.estimate.is_late else ""
    basis = ticket.estimate.basis
    return f"Estimated wait: {estimated_wait(ticket.estimate)} ({basis}).{late} "


def range_in_words(ticket: TicketView) -> str:
    """How long it is likely to wait, or what for; for the line below the position."""
    if ticket.message:
        return ticket.message
    if ticket.estimate is None:
        return "The wait cannot be estimated yet"
    late = ", longer than first estimated" if ticket.estimate.is_late else ""
    return f"{estimated_wait(ticket.estimate)}{late}".capitalize()


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
        interrupted: the ticket that waited when the start was cancelled; None if none did.
    """

    def __init__(
        self, queue: TicketQueue, say: Callable[[int, str], None], *, keeps_ticket: bool
    ) -> None:
        self.ticket: TicketView | None = None
        self.kept: int | None = None
        self.interrupted: int | None = None
        self._queue, self._say, self._keeps_ticket = queue, say, keeps_ticket
        self._change: _Change | None = None
        self._rung = asyncio.Event()

    async def until_over(self, ticket: TicketView) -> TicketView | None:
        """Wait until the ticket waits no more; None: the student goes on without a GPU."""
        found: TicketView | None = ticket
        try:
            while found is not None and found.state in WAITS:
                self.ticket = found
                event = queued(found)
                self._say(event.pct, event.message)
                found = await self._news(found)
        except asyncio.CancelledError:
            self.interrupted = self.ticket.id if self.ticket else None
            raise
        finally:
            self.ticket = None
            if self._change is not None:  # whoever chose something else meanwhile is told
                self._change.done.set_exception(not_waiting())
                self._change = None
        return found

    async def change_to(self, shape: str) -> None:
        """Go on with this shape: `CPU`, another one, the same (still waiting), or none.

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
    meanwhile: str = "",
    course: str,
    compute_slices: int,
) -> dict[str, Any]:
    """What the waiting page is told; JSON.

    Args:
        ticket: how it stands.
        alternatives: what is free meanwhile.
        keeps_ticket: whether a server without a GPU keeps the position.
        meanwhile: what else such a server means, in the place of that; empty for nothing.
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
        "meanwhile": meanwhile,
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

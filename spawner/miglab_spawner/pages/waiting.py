"""What a student reads while the server starts, and the wait of one start for its slices.

Events come in order, for any number of open pages; their words and numbers are made here, pure.

A student who waits may go on without a GPU, with another shape, or not at all.  The choice
reaches the start that is under way: nothing is stopped and begun anew, and no position is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from miglab_api.line import Line
from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import estimated_wait, gpu_picture, queue_position, shape_title
from miglab_spawner.backends import BackendError, RefusedByBackend
from miglab_spawner.pages.spawn_page import format_gib, is_cpu

ASKED, OFFERED, CREATING, ATTACHING, STARTING, ANSWERING = 5, 50, 60, 70, 80, 90
_QUEUED_FROM, _QUEUED_TO = 10, 45


@dataclass(frozen=True)
class ProgressEvent:
    """One line of the progress page: percent of the start, and a message."""

    pct: int
    message: str


class ProgressEvents:
    """The events of one start; readers get all of them from the first, then each new one."""

    def __init__(self) -> None:
        self._events: list[ProgressEvent] = []
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def last(self) -> ProgressEvent | None:
        """The last event; None before the first."""
        return self._events[-1] if self._events else None

    def add(self, pct: int, message: str) -> None:
        """Add an event, unless it says the same as the last one."""
        event = ProgressEvent(pct, message)
        if self.last != event:
            self._events.append(event)
            self._notify_readers()

    def close(self) -> None:
        """End the events, and with them their readers."""
        self._closed = True
        self._notify_readers()

    async def read(self) -> AsyncIterator[ProgressEvent]:
        """Yield all events so far, then each as it is added, until `close`."""
        read_count = 0
        while True:
            changed = self._changed
            for event in self._events[read_count:]:
                read_count += 1
                yield event
            if read_count == len(self._events) and self._closed:
                return
            if read_count == len(self._events):
                await changed.wait()

    def _notify_readers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def queue_event(ticket: TicketView) -> ProgressEvent:
    """Return the event of a waiting ticket: its position and estimated wait.

    A ticket that waits without a position is granted: its slices are being made.
    """
    if ticket.state is TicketState.ASIDE:
        return ProgressEvent(_QUEUED_FROM, ticket.message)
    if ticket.position is None and ticket.message:  # a limit holds it: it is in no queue
        return ProgressEvent(_QUEUED_FROM, f"{ticket.message} {_continuation(ticket)}")
    if ticket.position is None:
        return ProgressEvent(
            _QUEUED_TO, f"It is your turn: {ticket.shape} is being created for you."
        )
    pct = _QUEUED_TO - 5 * ticket.position
    return ProgressEvent(
        max(_QUEUED_FROM, pct),
        f"{queue_position(ticket)} {_wait_sentence(ticket)}{_continuation(ticket)}",
    )


def _continuation(ticket: TicketView) -> str:
    if ticket.answer_by is None:
        return "This page continues by itself, and you keep your position if you close it."
    return "Are you still waiting? Without an answer within 10 minutes you step aside."


def _wait_sentence(ticket: TicketView) -> str:
    if ticket.message:  # it waits for something else than room
        return f"{ticket.message} "
    if ticket.estimate is None:
        return ""
    late = " This is longer than first estimated." if ticket.estimate.is_late else ""
    basis = ticket.estimate.basis
    return f"Estimated wait: {estimated_wait(ticket.estimate)} ({basis}).{late} "


WAITING_STATES = (TicketState.WAITING, TicketState.ASIDE)


class TicketQueue(Protocol):
    """The part of a spawner that a wait uses to reach the pool."""

    async def attend_ticket(self, ticket: int) -> TicketView:
        """Return the ticket when it has changed, or after a while."""

    async def request_shape(self, shape: str) -> TicketView:
        """Request another shape, granted in this step, in place of the ticket.

        Raises:
            RefusedByBackend: it is not free (any more); the old ticket is as it was.
        """

    async def confirm_waiting(self, ticket: TicketView) -> TicketView:
        """Confirm that the student still waits, or returns to the queue."""

    async def cancel_ticket(self, ticket: int) -> TicketView:
        """Cancel the ticket and return it."""


@dataclass
class _Change:
    shape: str
    result: asyncio.Future[None] = field(
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
        self.background_ticket: int | None = None
        self.interrupted: int | None = None
        self._queue, self._say, self._keeps_ticket = queue, say, keeps_ticket
        self._change: _Change | None = None
        self._change_requested = asyncio.Event()

    async def wait_until_over(self, ticket: TicketView) -> TicketView | None:
        """Wait until the ticket waits no more; None: the student goes on without a GPU."""
        current: TicketView | None = ticket
        try:
            while current is not None and current.state in WAITING_STATES:
                self.ticket = current
                event = queue_event(current)
                self._say(event.pct, event.message)
                current = await self._next_change(current)
        except asyncio.CancelledError:
            self.interrupted = self.ticket.id if self.ticket else None
            raise
        finally:
            self.ticket = None
            if self._change is not None:  # whoever chose something else meanwhile is told
                self._change.result.set_exception(not_waiting_error())
                self._change = None
        return current

    async def change_to(self, shape: str) -> None:
        """Go on with this shape: `CPU`, another one, the same (still waiting), or none.

        Raises:
            RefusedByBackend: nothing waits (any more), or the pool refuses; then it waits on.
            BackendError: the pool does not answer; it waits on.
        """
        if self.ticket is None or self._change is not None:
            raise not_waiting_error()
        self._change = change = _Change(shape)
        self._change_requested.set()
        await asyncio.shield(change.result)

    async def _next_change(self, ticket: TicketView) -> TicketView | None:
        """Return the ticket after its next change, or after the student's other choice."""
        attending = asyncio.ensure_future(self._queue.attend_ticket(ticket.id))
        rung = asyncio.ensure_future(self._change_requested.wait())
        try:
            await asyncio.wait({attending, rung}, return_when=asyncio.FIRST_COMPLETED)
            return attending.result() if attending.done() else await self._apply_change(ticket)
        finally:
            for task in (attending, rung):
                task.cancel()
            await asyncio.gather(attending, rung, return_exceptions=True)

    async def _apply_change(self, ticket: TicketView) -> TicketView | None:
        change, self._change = self._change, None
        self._change_requested.clear()
        assert change is not None
        try:
            after = await self._ticket_after(change.shape, ticket)
        except BackendError as error:
            change.result.set_exception(error)
            return ticket
        except BaseException:  # the hub ends, the start is stopped, or it fails
            change.result.set_exception(not_waiting_error())
            raise
        change.result.set_result(None)
        return after

    async def _ticket_after(self, shape: str, ticket: TicketView) -> TicketView | None:
        if is_cpu(shape) and self._keeps_ticket:
            self.background_ticket = ticket.id
            return None
        if shape == ticket.shape:
            return await self._queue.confirm_waiting(ticket)
        if shape and not is_cpu(shape):
            return await self._queue.request_shape(shape)
        over = await self._queue.cancel_ticket(ticket.id)
        if is_cpu(shape):
            return None
        return over.model_copy(update={"message": "You left the queue."})


def not_waiting_error() -> RefusedByBackend:
    """Return the refusal of a choice that comes too late."""
    return RefusedByBackend("not-waiting", "Your server is no longer waiting for a slice.", 409)


def _size(slices: int, memory_mib: int) -> str:
    if not memory_mib:
        return f"{slices} slice{'s' * (slices > 1)}"
    return f"{slices} × {format_gib(memory_mib)}" if slices > 1 else format_gib(memory_mib)


def waiting_page_data(
    ticket: TicketView,
    alternatives: Sequence[ShapeOffer],
    *,
    keeps_ticket: bool,
    meanwhile: str = "",
    course: str,
    line: Line,
    compute_slices: int,
) -> dict[str, Any]:
    """Return the data of the waiting page, as JSON.

    Args:
        ticket: how it stands.
        alternatives: what is free meanwhile.
        keeps_ticket: whether a server without a GPU keeps the position.
        meanwhile: what else such a server means, in the place of that; empty for nothing.
        course: its title.
        line: where the student stands, as all pages show it.
        compute_slices: of a whole GPU; 0 where that is not known.
    """
    return {
        "shape": ticket.shape,
        "title": shape_title(ticket.shape, compute_slices),
        "picture": gpu_picture(ticket.shape, compute_slices),
        "course": course,
        "line": line.model_dump(mode="json"),
        "message": queue_event(ticket).message,
        "keeps_ticket": keeps_ticket,
        "meanwhile": meanwhile,
        "alternatives": [
            {
                "shape": offer.shape,
                "size": _size(offer.slices, offer.memory_mib),
                "title": shape_title(offer.shape, offer.compute_slices),
                "picture": gpu_picture(offer.shape, offer.compute_slices),
            }
            for offer in alternatives
        ],
    }

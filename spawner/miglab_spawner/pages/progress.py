"""What a student reads while the server starts: events in order, for any number of open pages.

Words and numbers are made here, pure; the spawner only says which step it is at.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import estimated_wait, queue_position

ASKED, OFFERED, CREATING, ATTACHING, STARTING, ANSWERING = 5, 50, 60, 70, 80, 90
_QUEUED_FROM, _QUEUED_TO = 10, 45


@dataclass(frozen=True)
class ProgressEvent:
    """One line: ``pct`` of the whole start, and the words."""

    pct: int
    message: str

    def as_event(self) -> dict[str, int | str]:
        """As JupyterHub's progress event."""
        return {"progress": self.pct, "message": self.message}


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

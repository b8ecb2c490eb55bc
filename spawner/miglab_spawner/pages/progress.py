"""What a student reads while the server starts: notes in order, for any number of open pages.

Words and numbers are made here, pure; the spawner only says which step it is at.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from miglab_api.tickets import TicketView
from miglab_api.wording import likely_wait, place

ASKED, OFFERED, CREATING, ATTACHING, STARTING, ANSWERING = 5, 50, 60, 70, 80, 90
_IN_LINE_FROM, _IN_LINE_TO = 10, 45


@dataclass(frozen=True)
class Note:
    """One line: ``pct`` of the whole start, and the words."""

    pct: int
    message: str

    def as_event(self) -> dict[str, int | str]:
        """As JupyterHub's progress event."""
        return {"progress": self.pct, "message": self.message}


class Notes:
    """The notes of one start; readers get all of them from the first, then each new one."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._closed = False
        self._changed = asyncio.Event()

    def add(self, pct: int, message: str) -> None:
        """Add a note, unless it says the same as the last one."""
        note = Note(pct, message)
        if not self._notes or self._notes[-1] != note:
            self._notes.append(note)
            self._ring()

    def close(self) -> None:
        """No more notes come: readers end."""
        self._closed = True
        self._ring()

    async def read(self) -> AsyncIterator[Note]:
        """All notes so far, then each as it is added, until `close`."""
        seen = 0
        while True:
            changed = self._changed
            for note in self._notes[seen:]:
                seen += 1
                yield note
            if seen == len(self._notes) and self._closed:
                return
            if seen == len(self._notes):
                await changed.wait()

    def _ring(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def in_line(ticket: TicketView) -> Note:
    """The note for a ticket that waits: its position, and for how long it is likely to wait.

    A ticket that waits without a position is granted: its slices are being made.
    """
    if ticket.position is None:
        return Note(_IN_LINE_TO, f"It is your turn: {ticket.shape} is being made for you.")
    pct = _IN_LINE_TO - 5 * ticket.position
    return Note(
        max(_IN_LINE_FROM, pct),
        f"{place(ticket)} {_wait(ticket)}This page moves on by itself, and you keep your place "
        "if you close it.",
    )


def _wait(ticket: TicketView) -> str:
    if ticket.message:  # it waits for something else than room
        return f"{ticket.message} "
    if ticket.estimate is None:
        return ""
    return f"The wait is likely to be {likely_wait(ticket.estimate)} ({ticket.estimate.why}). "

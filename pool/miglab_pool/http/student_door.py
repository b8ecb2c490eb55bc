"""What the student application needs of whoever keeps leases and tickets.

The lab's own pool is one; jobs of Slurm are another, and their students' servers ask the same.
"""

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.staff import StaffMessage
from miglab_api.tickets import TicketView

T = TypeVar("T")


class StudentLeases(Protocol):
    """Of a server's own lease."""

    def of_server(self, user: str, server: str) -> LeaseView | None:
        """The live lease of one server."""

    def keepalive(self, number: int, by: str) -> LeaseView:
        """The holder is still there."""

    def extend(self, number: int, by_s: float, by: str) -> LeaseView:
        """Put off the end."""

    def release(self, number: int, by: str, reason: str) -> LeaseView:
        """Give it back."""


class StudentTickets(Protocol):
    """Of a server's own position in the queue."""

    def server_status(self, user: str, server: str, known: int | None = None) -> ServerStatus:
        """What a server holds and waits for."""

    def cancel_of_server(self, user: str, server: str, by: str) -> TicketView:
        """Leave the queue, or give up the offer."""

    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Join the queue once more."""


class StudentMessages(Protocol):
    """What staff say."""

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """What is to be shown to whoever is at this server."""


class StudentDoor(Protocol):
    """All of it."""

    @property
    def leases(self) -> StudentLeases:
        """Leases."""

    @property
    def tickets(self) -> StudentTickets:
        """Tickets."""

    @property
    def staff(self) -> StudentMessages:
        """Messages."""


class RefusalCounter(Protocol):
    """Counts refusals for the metrics."""

    def refused(self, reason: str) -> None:
        """Count one."""


class StudentRunner(Protocol):
    """Runs decisions one at a time, and answers questions."""

    @property
    def metrics(self) -> RefusalCounter:
        """What is counted on the way."""

    async def decide(self, decision: Callable[[StudentDoor], T]) -> T:
        """Decide, alone."""

    async def look(self, question: Callable[[StudentDoor], T]) -> T:
        """Look, and change nothing."""

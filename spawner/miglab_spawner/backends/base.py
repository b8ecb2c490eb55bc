"""What a start needs of whoever hands out the slices: the calls, and what can go wrong.

`PoolClient` answers it for the lab's own pool, over HTTP; another backend answers the same.
"""

from collections.abc import Sequence
from typing import Protocol

from miglab_api.leases import LeaseView, ServerStatus
from miglab_api.offers import Offers, ShapeOffer
from miglab_api.tickets import TicketRequest, TicketView


class BackendError(Exception):
    """The base of what can go wrong between a spawner and its backend."""


class BackendUnreachable(BackendError):
    """No answer: it is not running, too slow, or not at this address."""


class BackendMisunderstood(BackendError):
    """An answer that cannot be read: another version, or something else altogether."""


class RefusedByBackend(BackendError):
    """The backend's no.

    Attributes:
        reason: a short word for machines.
        message: the same in words that the student can act on.
        status: the HTTP status.
    """

    def __init__(self, reason: str, message: str, status: int) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.status = status


class Backend(Protocol):
    """Tickets and leases of one site.  Every call raises `BackendError`'s kinds, and no other."""

    async def request(self, request: TicketRequest) -> TicketView:
        """Ask for a shape: a new ticket, or the one there is."""

    async def attend(self, ticket: int, wait_s: float) -> TicketView:
        """Attend a ticket: answers when its state or position changed, or after ``wait_s``."""

    async def cancel(self, ticket: int) -> TicketView:
        """Leave the queue."""

    async def take(self, ticket: int) -> LeaseView:
        """Take what was offered; taking twice gives the same lease."""

    async def server_status(self, user: str, server: str) -> ServerStatus:
        """What a server holds and waits for; asking keeps its position."""

    async def alternatives(self, ticket: int) -> list[ShapeOffer]:
        """What who waits could have at once, by leaving the queue."""

    async def offers(self, user: str, courses: Sequence[str]) -> Offers:
        """What these courses offer a user now; a name that is no course is left out."""

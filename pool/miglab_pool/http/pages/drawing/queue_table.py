"""The queue beside the GPUs, and what the principal has: rows and sentences.  Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from miglab_api.gpus import PoolSnapshot
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import estimated_wait
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.pages.elements.wording import wait_short


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One who waits.

    Attributes:
        position: in the queue; "now" for one that is being served.
        who: as the principal may name them.
        since: when it was asked for.
        wait: how long it is likely to last yet, in words; empty if it is not known.
        address: of what can be done to it; empty for nothing.
        is_next: whether staff put it in front.
    """

    ticket: int
    position: str
    who: str
    course: str
    shape: str
    since: float
    wait: str
    address: str
    is_own: bool
    is_next: bool


@dataclass(frozen=True, slots=True)
class QueueTable:
    """Who waits, the next in front; ``shapes``: how many for each, the most wanted first."""

    rows: list[QueueRow]
    shapes: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Head:
    """What stands above: the principal's own, and the figures.

    Attributes:
        paused: why nothing is granted; empty while it is.
        own: the principal's leases.
        own_position: one sentence about the principal.
        is_told: whether that sentence is shown: not to staff who have nothing to do with it.
        sums: the figures.
        pool_button: the label of the button for the whole pool; empty for none.
    """

    paused: str
    own: list[LeaseView]
    own_position: str
    is_told: bool
    sums: list[tuple[str, str]]
    pool_button: str


def table_of(waiting: Sequence[TicketView], principal: Principal) -> QueueTable:
    """The line as the page shows it."""
    return QueueTable(rows(waiting, principal), by_shape(waiting))


def head_of(
    snapshot: PoolSnapshot,
    own: Sequence[LeaseView],
    principal: Principal,
    sums: list[tuple[str, str]],
) -> Head:
    """What stands above, as the page shows it."""
    is_waiting = any(principal.is_user(ticket.user) for ticket in snapshot.waiting)
    return Head(
        snapshot.paused,
        list(own),
        own_position(snapshot, own, principal),
        is_waiting or not principal.is_staff,
        sums,
        _pool_button(principal),
    )


def _pool_button(principal: Principal) -> str:
    words = {Right.MESSAGE: "Message", Right.PAUSE: "pause"}
    return " or ".join(word for right, word in words.items() if principal.has(right))


def rows(waiting: Sequence[TicketView], principal: Principal) -> list[QueueRow]:
    """The line, the next in front."""
    return [_row(ticket, principal) for ticket in waiting]


def _row(ticket: TicketView, principal: Principal) -> QueueRow:
    is_own = principal.is_user(ticket.user)
    return QueueRow(
        ticket.id,
        "now" if ticket.position is None else str(ticket.position),
        "you" if is_own else ticket.user or "somebody",
        ticket.course,
        ticket.shape,
        ticket.created_at,
        wait_short(ticket.estimate) if ticket.estimate else "",
        f"ticket/{ticket.id}" if ticket.user is not None else "",
        is_own,
        ticket.is_next,
    )


def by_shape(waiting: Sequence[TicketView]) -> list[tuple[str, int]]:
    """How many wait for each shape, the most wanted first."""
    return Counter(ticket.shape for ticket in waiting).most_common()


def own_position(snapshot: PoolSnapshot, leases: Sequence[LeaseView], principal: Principal) -> str:
    """One sentence about the principal, which a screen reader is told when it changes."""
    own = [lease for lease in leases if principal.is_user(lease.user)]
    if own:
        return "You hold " + " and ".join(lease.shape for lease in own) + "."
    ticket = next((one for one in snapshot.waiting if principal.is_user(one.user)), None)
    if ticket is None:
        return "You hold no GPU slice and are not waiting for one."
    if ticket.state is TicketState.OFFERED:
        return f"Your {ticket.shape} is ready: start your server."
    if ticket.position is None:
        return f"Your {ticket.shape} is being created."
    wait = f", {estimated_wait(ticket.estimate)}" if ticket.estimate else ""
    return f"You are number {ticket.position} in the queue for {ticket.shape}{wait}."

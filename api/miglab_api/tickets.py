"""Tickets of the queue, and the requests about them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from miglab_api.base import Course, Server, ShapeText, User, UserId, WireModel

ATTEND_S = 20.0  # a start that waits asks after its ticket at least this often


BORROWER = "~run/"  # JupyterHub allows no "/" in the name of a server


class Purpose(StrEnum):
    """What slices are for: a server that keeps them, or measurements that borrow them."""

    SERVER = "server"
    BORROW = "borrow"


def borrower_of(server: str) -> str:
    """Return the name for the borrowing of a server, which has a ticket and lease of its own."""
    return BORROWER + server


def is_borrower(server: str) -> bool:
    """Whether a server name in a ticket or lease stands for the server's borrowing."""
    return server.startswith(BORROWER)


class TicketState(StrEnum):
    """waiting → offered → (taken | cancelled | refused | expired).

    One that is *aside*, because nobody answered whether they still wait or took what was offered,
    keeps its age and is offered nothing; asking for the same again makes it wait on.
    """

    WAITING = "waiting"
    OFFERED = "offered"
    ASIDE = "aside"
    TAKEN = "taken"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    EXPIRED = "expired"


class TicketRequest(WireModel):
    """Ask for a shape; the same user, server, course and shape again is the same ticket.

    Attributes:
        user: as the hub calls them now.
        user_id: who that is, whatever they are called; empty where nobody is ever renamed.
        server: the named server; empty for the default one.
        shape: ``1g.5gb``, ``2x1g.5gb``, ``full`` …, or a need: ``at least 9 GiB``.
        only_if_free: granted at once, or refused (``not-free``) and nothing is changed: the server
            keeps the position, or the offer, that it has.
        purpose: ``borrow`` for measurements: a short lease of a shape that the course lends.
    """

    user: User
    user_id: UserId = ""
    server: Server = ""
    course: Course
    shape: ShapeText
    only_if_free: bool = False
    purpose: Purpose = Purpose.SERVER


class WaitEstimate(WireModel):
    """An estimate of the remaining wait, in seconds.

    Attributes:
        low_s: it hardly lasts shorter.
        likely_s: as often shorter as longer.
        high_s: it hardly lasts longer; in simulation four of five waits end between the two.
        basis: what the figures were made from, in words.
        is_late: whether the wait has outlasted the range that was told first.
        is_longest: whether nothing is estimated: no wait lasts longer than ``high_s``, by the
            guarantees of the leases in use, and it is likely to be shorter.
    """

    low_s: float
    likely_s: float
    high_s: float
    basis: str
    is_late: bool = False
    is_longest: bool = False


class TicketView(WireModel):
    """A ticket in the queue.

    Attributes:
        shape: the shape asked for, resolved to profiles.
        position: 1 for the next in the queue; None unless waiting.
        waiting: how many wait in all.
        lease: the granted lease, from ``offered`` on.
        reason: a short machine-readable word for a refusal (``queue-full``, ``waited-too-long``,
            ``impossible-shape``, ``not-in-course``, ``cancelled`` …), else empty.
        message: the same in words the student can act on.
        offered_at: when its slices were offered; None before.
        expires_at: when an unattended ticket, an offer not taken, or one that is aside ends.
        answer_by: until when its student is asked whether they still wait; None unless asked.
        estimate: how long it is likely to wait; None unless waiting, and where it is not known.
        is_next: whether staff put it in front: the next slices that fit are its.
        purpose: what the slices are for.
    """

    id: int
    user: str | None
    server: str | None
    course: str
    shape: str
    state: TicketState
    position: int | None = None
    waiting: int = 0
    estimate: WaitEstimate | None = None
    created_at: float
    offered_at: float | None = None
    expires_at: float | None = None
    answer_by: float | None = None
    lease: int | None = None
    reason: str = ""
    message: str = ""
    is_next: bool = False
    purpose: Purpose = Purpose.SERVER


class RequeueRequest(WireModel):
    """Ask again for the shape of a ticket that is over."""

    ticket: Annotated[int, Field(ge=0, le=2**53)]


class Headcount(WireModel):
    """How full the lab is, counted in people; every page and command shows the same figures.

    Attributes:
        shape: the smallest that is offered; empty where there is none.
        free: how many people who ask now could have it.
        total: how many could, were nothing leased.
        holding: how many people hold slices.
        offered: how many have slices granted that they have not taken, and hold none.
        waiting: how many wait for one.
    """

    shape: str = ""
    free: int = 0
    total: int = 0
    holding: int = 0
    offered: int = 0
    waiting: int = 0

"""The line: where one person stands, what they hold, and what they can do now.

Every page that a student sees shows it from this one model, in the words of ``web/line.js``;
standings.py makes it of leases and tickets.  Times
are moments of the service, given with its own ``now``, so that a bar neither fills again in a
second tab nor follows a browser's clock.
"""

from enum import StrEnum

from miglab_api.base import WireModel
from miglab_api.tickets import Purpose, WaitEstimate

LAST_END_S = 12 * 3600.0
"""For how long after its end a lease is told to whoever stands nowhere."""


class StandingState(StrEnum):
    """How a server stands in the line.

    waiting ⇄ asked → aside; waiting → offered → starting → holding ⇄ warned → releasing.
    """

    WAITING = "waiting"
    ASKED = "asked"
    ASIDE = "aside"
    OFFERED = "offered"
    STARTING = "starting"
    HOLDING = "holding"
    WARNED = "warned"
    RELEASING = "releasing"


class LineAct(StrEnum):
    """What its person can do; a page shows the acts that it has a route for.

    Attributes:
        RESUME: go to the page of the start that waits, or start the server to wait on.
        STAY: say that one still waits; RETURN: go back into the queue.
        LEAVE: leave the queue.
        TAKE: take what is offered; DECLINE: leave it to the next student.
        OPEN: go to the server.
        KEEPALIVE: say that one is still there.
        EXTEND: ask for more time.
        RELEASE: give the slices back.
    """

    RESUME = "resume"
    STAY = "stay"
    RETURN = "return"
    LEAVE = "leave"
    TAKE = "take"
    DECLINE = "decline"
    OPEN = "open"
    KEEPALIVE = "keepalive"
    EXTEND = "extend"
    RELEASE = "release"


class Standing(WireModel):
    """How one server stands, or what it has borrowed.

    Attributes:
        server: its name, empty for the default one; see `borrower_of` for what is borrowed.
        ticket: the number of its ticket; None once it has a server.
        lease: the number of its lease; None while it waits.
        position: 1 for the next in the queue; None where it has no position.
        waiting: how many wait in all.
        estimate: how long the wait is likely to last; None if unknown.
        message: what the service adds in words: what holds a ticket back, why a lease is reclaimed.
        since: when this state began, seconds since the epoch; None where it has no end.
        until: when this state ends unless somebody acts; None if it has no end.
        guaranteed_until: until when what is held is guaranteed; None where nothing is.
        others_wait: how many others could use what it holds.
        extension_s: how much one extension adds, seconds; 0 if there is none left.
        acts: what its person can do, the one that fits best first.
    """

    state: StandingState
    server: str
    course: str
    shape: str
    ticket: int | None = None
    lease: int | None = None
    position: int | None = None
    waiting: int = 0
    estimate: WaitEstimate | None = None
    message: str = ""
    since: float | None = None
    until: float | None = None
    guaranteed_until: float | None = None
    others_wait: int = 0
    extension_s: float = 0
    acts: tuple[LineAct, ...] = ()


class LeaseEnd(WireModel):
    """A lease that is over, as its student is told afterwards.

    Attributes:
        ended_at: when its slices were free again, seconds since the epoch.
        reason: why, in words.
        is_given_back: whether its student had asked for that.
        purpose: what it was for.
    """

    shape: str
    server: str
    ended_at: float
    reason: str
    is_given_back: bool
    purpose: Purpose


class Line(WireModel):
    """Where one person stands; without standings they hold nothing and wait for nothing.

    Attributes:
        now: the moment of the service at which this was true, seconds since the epoch.
        standings: one for each server, what needs an answer first.
        last_end: the server's lease that ended last, within `LAST_END_S`, for a person without
            standings; None where a service keeps no such record.
    """

    now: float
    standings: tuple[Standing, ...] = ()
    last_end: LeaseEnd | None = None

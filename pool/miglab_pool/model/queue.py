"""Who waits, and what a grant is: plain values for the rules of the queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from miglab_api.tickets import WaitEstimate
from miglab_pool.model.gpu import Choice


class Waiting(NamedTuple):
    """A ticket in the queue.

    Attributes:
        ticket: its id.
        profiles: the profile of each slice wanted.
        since: when it was made; the id breaks ties.
        reserved: whether its course has a reservation in force for it.
        size: the memory slices it asks for, all its slices together.
        front: when staff put it in front of all but reservations; None if nobody did.
        lasts_s: how long its place would be taken at most, if it were served now: until it was
            handed over, used, extended as often as may be, and cleared; infinite for no limit.
        is_borrow: whether a measurement waits, and not a server.
    """

    ticket: int
    profiles: tuple[str, ...]
    since: float
    course: str = ""
    user: str = ""
    reserved: bool = False
    size: int = 1
    front: float | None = None
    lasts_s: float = inf
    is_borrow: bool = False


@dataclass(frozen=True)
class FairShareUsage:
    """What courses and users have used lately, and the rule's measures.

    Attributes:
        now: seconds since the epoch.
        courses: slice-hours used lately, decayed (fair_share.py), divided by the course's weight.
        users: the same of users, unweighted, in all their courses together.
        weights: the courses' weights; 1 for who is not named.
        ageing_s: who has waited for so long goes before all who have not.
    """

    now: float = 0.0
    courses: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    ageing_s: float = inf

    def has_aged(self, one: Waiting) -> bool:
        """Whether it has waited so long that fair share no longer puts it back."""
        return self.now - one.since >= self.ageing_s


ALL_EQUAL = FairShareUsage()


@dataclass(frozen=True)
class Grant:
    """The decision: this ticket gets these slices now."""

    ticket: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class WaitEstimates:
    """The pool's last estimates, when they were made, and when the first of each ticket ends."""

    at: float = 0.0
    of_tickets: Mapping[int, WaitEstimate] = field(default_factory=dict)
    of_shapes: Mapping[str, WaitEstimate] = field(default_factory=dict)
    due: Mapping[int, float] = field(default_factory=dict)

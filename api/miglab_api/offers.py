"""The choices on the spawn page, and how much of each is free."""

from typing import Literal

from miglab_api.base import WireModel
from miglab_api.tickets import Headcount, TicketView, WaitEstimate

CPU = "cpu"
BORROW = "borrow"
"""A server without a slice, whose measurements borrow one: a choice like ``cpu``."""


class ShapeOffer(WireModel):
    """A shape as the spawn page offers it.

    Attributes:
        shape: what to send back in a `TicketRequest`; ``cpu`` for no GPU, ``borrow`` for
            a slice only while something is measured.
        sm_count: SMs per slice (0 for cpu).
        memory_mib: GPU memory per slice (0 for cpu).
        slices: how many slices.
        compute_slices: how many a whole GPU of this model has; 0 where that is not known.
        good_for: one sentence for the student.
        free_now: how many such leases could be granted right now; None for cpu.
        waiting: how many tickets wait for this shape.
        is_held: whether enough is free, but held for somebody in the queue.
        reserved_s: if enough is free, but reserved for a class: for how many seconds at most.
        shortened: if a reservation ends the guarantee: until when and for whom, in words.
        wait: how long somebody would wait who asked now; None if free, or if it is not known.
        total: how many such leases there could be at a time; None where it depends on what else is
            granted.
        never: why it cannot be granted at all, in words; empty if it can.
        held_up: why nothing of it starts now, whatever is free, in words; empty if it could.
        slow: why a start takes long although it is free, in words; empty if it does not.
    """

    shape: str
    sm_count: int
    memory_mib: int
    slices: int
    compute_slices: int = 0
    good_for: str
    free_now: int | None
    waiting: int = 0
    is_held: bool = False
    reserved_s: float | None = None
    shortened: str = ""
    wait: WaitEstimate | None = None
    total: int | None = None
    never: str = ""
    held_up: str = ""
    slow: str = ""


class QuotaLeft(WireModel):
    """How much of one limit is used.

    Attributes:
        quota: the quota's name.
        limit: ``memory_slices`` (memory slices at a time), or ``slice_hours_week`` (memory slices
            times hours, in any seven days).
        is_shared: whether the whole course uses it together.
        allowed: how much of it may be used, in the limit's unit.
        used: how much of it is used.
        more_in_s: when all of it is used: seconds until some of it is there again.
    """

    quota: str
    limit: Literal["memory_slices", "slice_hours_week"]
    is_shared: bool = False
    allowed: float
    used: float = 0.0
    more_in_s: float | None = None


class CourseOffers(WireModel):
    """The offers of one course to one user; ``quotas``: what the user's quotas leave.

    ``borrow`` names the shapes that measurements borrow, the usual one first.  ``guaranteed_s``:
    for how long a lease is guaranteed, seconds; None where leases end when they are set to.
    """

    course: str
    title: str
    shapes: tuple[ShapeOffer, ...]
    default: str
    borrow: tuple[str, ...] = ()
    quotas: tuple[QuotaLeft, ...] = ()
    guaranteed_s: float | None = None


class Offers(WireModel):
    """The spawn page's data.

    Attributes:
        people: how full the lab is.
        ticket: what the server that was named waits for; None if it waits for nothing, or if none
            was named.
    """

    simulated: bool
    courses: tuple[CourseOffers, ...]
    paused: str = ""
    people: Headcount | None = None
    ticket: TicketView | None = None

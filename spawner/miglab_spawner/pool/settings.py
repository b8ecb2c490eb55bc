"""What a site may set about the pool.  Values only: where they come from is the hub's affair."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CourseRules:
    """What one course offers.

    Attributes:
        title: the course's name for people.
        shapes: the shapes its students may ask for, in the spawn page's order; ``cpu`` is none
            of the pool's business and passes through.
        default: the shape chosen beforehand.
    """

    title: str
    shapes: tuple[str, ...]
    default: str = "cpu"


@dataclass(frozen=True)
class PoolSettings:
    """The pool's limits; every duration in seconds.

    Attributes:
        courses: by name; a request for any other course is refused.
        queue_limit: how many may wait; the next is refused with ``queue-full``.
        longest_wait_s: a ticket older than this is refused with ``waited-too-long``.
        attend_grace_s: how long a ticket that nobody asks after keeps its place.
        offer_s: how long an offer is held for someone who does not take it.
        attach_s: how long a taken lease may stay without a holder.
        lease_s: how long a lease lasts from attach on; None for no limit.
        extension_s: the most one extension adds.
        extensions: how often a holder may extend.
        reconcile_s: how often the service compares ledger, NVML and holders.
        probe_s: how soon a holder whose lease is being released is asked after again.
        remove_after_s: how long a stopped container may outlive its lease's release request
            before the pool removes it itself.
        stuck_s: an NVML call that lasts longer marks its GPU unknown.
        retry_s: the first pause after a failed NVML call; doubles up to ``retry_max_s``.
        quarantine_after: how many failed destroys set a slice aside for a person to look at.
        keep_warm: whether a scrubbed slice is made anew at once if nobody waits.
    """

    courses: Mapping[str, CourseRules] = field(default_factory=dict)
    queue_limit: int = 200
    longest_wait_s: float = 3600.0
    attend_grace_s: float = 120.0
    offer_s: float = 120.0
    attach_s: float = 120.0
    lease_s: float | None = None
    extension_s: float = 3600.0
    extensions: int = 3
    reconcile_s: float = 5.0
    probe_s: float = 0.5
    remove_after_s: float = 30.0
    stuck_s: float = 30.0
    retry_s: float = 1.0
    retry_max_s: float = 60.0
    quarantine_after: int = 8
    keep_warm: bool = True

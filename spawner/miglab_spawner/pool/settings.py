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
        weight: the course's share of the slices, compared with the other courses'.
    """

    title: str
    shapes: tuple[str, ...]
    default: str = "cpu"
    weight: float = 1.0


@dataclass(frozen=True)
class Quota:
    """A limit for each student, or for a whole course.  None: no limit of that kind.

    Attributes:
        name: what a refusal calls it.
        course: whom it concerns: who asks in this course; empty for every course.
        user: only this user; empty for everybody.
        is_shared: whether all whom it concerns use it together, not each for themselves.
        live_slices: memory slices held at a time.
        slice_hours_week: memory slices times hours, in any seven days.
        lease_s: longest lease; takes the place of `PoolSettings.lease_s`.
    """

    name: str
    course: str = ""
    user: str = ""
    is_shared: bool = False
    live_slices: int | None = None
    slice_hours_week: float | None = None
    lease_s: float | None = None


@dataclass(frozen=True)
class PoolSettings:
    """The pool's limits; every duration in seconds.

    Attributes:
        courses: by name; a request for any other course is refused.
        assigned: GPUs that one course alone gets leases on, by UUID or by index as text; see
            `assigned_course`.
        queue_limit: how many may wait; the next is refused with ``queue-full``.
        fair_half_life_s: after which time use counts half, when it is decided who is next.
        ageing_s: who has waited for so long goes before all who have not, whatever they used.
        quotas: see quotas.py.
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
        reserve_lead_s: how long before a reservation begins its places are set aside.
        warning_s: how long a holder is warned before an unused lease is taken back.
        stay_s: how long one "I am still here" counts.
        stays: how often it counts before work must be seen.
    """

    courses: Mapping[str, CourseRules] = field(default_factory=dict)
    assigned: Mapping[str, str] = field(default_factory=dict)
    queue_limit: int = 200
    fair_half_life_s: float = 172_800.0
    ageing_s: float = 900.0
    quotas: tuple[Quota, ...] = ()
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
    reserve_lead_s: float = 900.0
    warning_s: float = 300.0
    stay_s: float = 1800.0
    stays: int = 2

    def assigned_course(self, uuid: str, index: int) -> str:
        """The course that a GPU is assigned to; empty for none: every course gets leases there."""
        return self.assigned.get(uuid) or self.assigned.get(str(index), "")

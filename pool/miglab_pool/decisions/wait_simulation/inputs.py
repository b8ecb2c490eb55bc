"""The moment from which a future is worked out.  Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from miglab_pool.gpu.geometry import Placed
from miglab_pool.model.gpu import GpuOccupancy
from miglab_pool.model.queue import FairShareUsage, Waiting

PlacedOn = tuple[str, Placed]  # the GPU, and what lies there

LEAST_KNOWN = 5  # leases over; fewer are no history


@dataclass(frozen=True)
class Holding:
    """What lies on the GPUs and will become free.

    Attributes:
        slices: its slices, each with its GPU.
        age_s: how long it has lasted.
        end_s: until its end as it is set now; None for no end.
        last_end_s: until the end if every extension is used; None for no end.
        idle_end_s: until it is reclaimed as idle, unless somebody says "I am still here".
        is_borrow: whether a measurement holds it, and not a server.
    """

    slices: tuple[PlacedOn, ...]
    age_s: float = 0.0
    end_s: float | None = None
    last_end_s: float | None = None
    idle_end_s: float | None = None
    is_borrow: bool = False


@dataclass(frozen=True)
class Booking:
    """What a reservation keeps, now or later; all times in seconds from the moment on.

    Attributes:
        course: whose it is.
        profiles: of each lease.
        count: how many leases it has yet to draw.
        begins_s: when its slots are first kept.
        starts_s: when the class begins.
        ends_s: when what is not taken up is free for all.
        slots: those of each lease that are kept now; empty: they are not chosen yet.
        coming: how many of those who draw on it are known to be there.
    """

    course: str
    profiles: tuple[str, ...]
    count: int
    begins_s: float
    starts_s: float
    ends_s: float
    slots: tuple[tuple[PlacedOn, ...], ...] = ()
    coming: int = 0

    def is_for(self, one: Waiting) -> bool:
        """Whether somebody in the queue draws on it."""
        return (one.course, one.profiles) == (self.course, self.profiles)


@dataclass(frozen=True)
class Lately:
    """What happened in the last days.

    Attributes:
        lasted_s: how long servers' leases lasted, shortest first.
        comers: examples of who asks, each as likely as it is often here.
        every_s: mean time between two of them; None if nobody comes.
        borrowed_s: how long measurements borrowed, shortest first; seconds where servers' leases
            last hours, so that neither says anything of the other.
    """

    lasted_s: tuple[float, ...] = ()
    comers: tuple[Waiting, ...] = ()
    every_s: float | None = None
    borrowed_s: tuple[float, ...] = ()

    def of(self, *, is_borrow: bool) -> tuple[float, ...]:
        """How long leases of one kind lasted."""
        return self.borrowed_s if is_borrow else self.lasted_s


@dataclass(frozen=True)
class Scene:
    """All that the future is worked out from.

    Attributes:
        queued: who waits, first in front.
        asking: shapes that a newcomer might ask for, with a number that stands for the newcomer.
        gpus: every GPU; the placements of ``holdings`` are part of ``live``.
        usage: what everybody has used lately; its ``now`` is the moment of the estimate.
        lease_s: how long a lease lasts at most if nothing is known; None for no limit.
        borrow_s: the same of what is borrowed.
        longest_wait_s: no measurement waits longer: it is then refused.
        bookings: what is reserved, as far ahead as anybody waits.
    """

    queued: tuple[Waiting, ...]
    gpus: tuple[GpuOccupancy, ...]
    holdings: tuple[Holding, ...]
    lately: Lately
    usage: FairShareUsage
    lease_s: float | None
    borrow_s: float
    longest_wait_s: float
    asking: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    bookings: tuple[Booking, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether there is enough to draw from, of each kind that holds slices or waits."""
        kinds = {one.is_borrow for one in self.holdings} | {one.is_borrow for one in self.queued}
        return all(len(self.lately.of(is_borrow=kind)) >= LEAST_KNOWN for kind in kinds or {False})

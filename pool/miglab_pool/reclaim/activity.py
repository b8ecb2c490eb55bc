"""What a lease is doing: active, idle with something on its slice, idle without, or unknown.

Pure: what the server says and what NVML reads in, a state and figures out.  NVML beats the server:
a GPU that computes is in use, whatever is said or left unsaid; what a student sends can shield a
slice that NVML shows empty for a bounded time only, so does a page that is merely looked at, and
so does silence, where it is the server's own.  Unknown is never idle.

Adds up how long each lease worked and did nothing, for reports of usage.

Memory only: what was not handed over when the service ends, at most a minute, is not known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from miglab_pool.leases.activity import Spent
from miglab_pool.reclaim.signals import Known
from miglab_pool.settings import Reclaim

HOLDING_MIB = 128  # an empty slice shows a few MiB of its own, one CUDA context takes hundreds


class Activity(StrEnum):
    """What a lease is doing."""

    ACTIVE = "active"
    IDLE_HOLDING = "idle-holding"
    IDLE_FREE = "idle-free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """What NVML says of a lease's slices together.

    Attributes:
        processes: how many there are; None if any slice cannot be read (lately).
        memory_used_mib: memory in use; None if any cannot be read.
        free_for_s: for how long they were *known* to be empty since something was last on them.
        activity_pct: how busy the busiest is; None where the hardware does not tell.
        is_computing: whether that is more than a GPU at rest.
        computed_age_s: since they were last seen computing; infinite if it is told and they never
            were; None if unknown.
        is_the_holders: whether what is on the slice is its holder's, so that an empty one says
            something of the holder; never so on a simulated GPU.
        is_readable: whether somebody reads the slices at all; where nobody does, something is taken
            to be on them, and what the server says decides.
    """

    processes: int | None = None
    memory_used_mib: int | None = None
    free_for_s: float = 0.0
    activity_pct: float | None = None
    is_computing: bool = False
    computed_age_s: float | None = None
    is_the_holders: bool = True
    is_readable: bool = True

    @property
    def is_free(self) -> bool:
        """Whether the slices are known to be empty."""
        memory_mib = self.memory_used_mib
        is_empty = memory_mib is not None and memory_mib < HOLDING_MIB
        return self.processes == 0 and is_empty and not self.is_computing


@dataclass(frozen=True, slots=True)
class Judged:
    """The state, and how it came about.

    Attributes:
        activity: the state.
        idle_s: for how long nothing was done that counts; None if unknown.
        work_age_s: since a kernel, a terminal or the CPU did something; None if unknown.
        unknown: what is not known, in words; empty if nothing is missing.  With an `idle_s`: the
            slice alone decided.
        empty_s: for how long the slice was empty, if that alone decides; else None.
    """

    activity: Activity
    idle_s: float | None = None
    work_age_s: float | None = None
    unknown: str = ""
    empty_s: float | None = None


def judge(
    known: Known | None,
    reading: Reading,
    held_s: float,
    limits: Reclaim,
    *,
    others_report: bool = False,
) -> Judged:
    """What the lease is doing.

    Args:
        known: what the server said; None if it said nothing.
        reading: what NVML says.
        held_s: how long the lease is held; nobody is idle longer than that.
        limits: what counts, and for how long: [reclaim].
        others_report: whether enough of the course's servers are heard, so that the silence of one
            is its own.
    """
    if known is None or known.age_s > limits.stale_s:
        judged = _by_gpu_alone(known, reading, held_s, limits)
        is_own_silence = known is not None and others_report
        return _by_empty_slice(judged, reading, held_s, limits) if is_own_silence else judged
    work_age_s, missing = _work(known, reading)
    if reading.processes is None and reading.is_readable:
        missing = missing or "NVML does not tell what is on the slice"
    # Who has run nothing yet came with the lease: until then looking counts from its begin.
    since_s = min(work_age_s, max(0.0, held_s))
    claimed_s = None if missing else _claimed_idle_s(known, since_s, limits)
    if claimed_s is None and not missing:
        missing = "its server does not tell whether somebody uses the page"
    idle_s = _idle_s(claimed_s, reading, held_s, limits)
    if idle_s is None and work_age_s <= limits.stale_s:
        idle_s = min(work_age_s, max(0.0, held_s))  # what is known is enough: it works
    if idle_s is None:
        return Judged(Activity.UNKNOWN, unknown=missing)
    is_by_slice = claimed_s is None or idle_s > claimed_s
    return Judged(
        _state(idle_s, reading, limits),
        idle_s,
        None if missing else work_age_s,
        empty_s=reading.free_for_s if is_by_slice and reading.is_free else None,
    )


def _by_gpu_alone(known: Known | None, reading: Reading, held_s: float, limits: Reclaim) -> Judged:
    """Of a server that is silent: a GPU that computes is in use, everything else is unknown."""
    age_s = reading.computed_age_s
    if age_s is not None and age_s <= limits.stale_s:
        return Judged(Activity.ACTIVE, min(age_s, max(0.0, held_s)), age_s)
    reason = "has not reported" if known is None else f"last reported {known.age_s:.0f} s ago"
    return Judged(Activity.UNKNOWN, unknown=f"its server {reason}")


def _by_empty_slice(judged: Judged, reading: Reading, held_s: float, limits: Reclaim) -> Judged:
    """Of a server that fell silent: an empty slice is shielded no longer than by "busy"."""
    idle_s = _idle_s(None, reading, held_s, limits)
    if idle_s is None or idle_s <= limits.stale_s or judged.activity is Activity.ACTIVE:
        return judged
    return Judged(Activity.IDLE_FREE, idle_s, None, judged.unknown, reading.free_for_s)


def _work(known: Known, reading: Reading) -> tuple[float, str]:
    """Since when nothing worked, by what is known; and what is not known of it.

    CPU time only adds to what kernels and terminals say, unless something is on the slice: then
    it alone tells a program that runs by itself from one that does nothing.  A GPU that computes
    is work; one that does not says nothing: a program may well be busy before and after.
    """
    ages = [
        known.execution_age_s,
        known.terminal_age_s,
        known.cpu_age_s,
        reading.computed_age_s,
    ]
    work_age_s = min((age for age in ages if age is not None), default=float("inf"))
    if known.execution_age_s is None:
        return work_age_s, "its server does not tell what its kernels do"
    if known.terminal_age_s is None:
        return work_age_s, "its server does not tell what its terminals do"
    if known.cpu_age_s is None and not reading.is_free:
        return work_age_s, "its server does not (yet) tell how much CPU it uses"
    return work_age_s, ""


def _claimed_idle_s(known: Known, work_age_s: float, limits: Reclaim) -> float | None:
    """How long it is idle by what the server says; being looked at counts for `unused_s`.

    Is it not known whether somebody looks, that matters only as long as it could count.
    """
    least_s = work_age_s - limits.unused_s
    if known.browser_age_s is not None:
        return max(min(work_age_s, known.browser_age_s), least_s)
    if work_age_s <= limits.stale_s:
        return work_age_s
    return least_s if least_s > limits.stale_s else None


def _idle_s(
    claimed_s: float | None, reading: Reading, held_s: float, limits: Reclaim
) -> float | None:
    """With an empty slice, whatever is said (or left unsaid) shields it for `unused_s`."""
    is_bounded = reading.is_free and reading.is_the_holders
    least_s = reading.free_for_s - limits.unused_s if is_bounded else 0.0
    if claimed_s is None and least_s <= 0:
        return None
    return max(0.0, min(max(claimed_s or 0.0, least_s), held_s))


def _state(idle_s: float, reading: Reading, limits: Reclaim) -> Activity:
    if idle_s <= limits.stale_s:
        return Activity.ACTIVE
    return Activity.IDLE_FREE if reading.is_free else Activity.IDLE_HOLDING


HAND_OVER_S = 60.0
IDLE = frozenset({Activity.IDLE_FREE, Activity.IDLE_HOLDING})


class ActivityTotals:
    """See the module.

    Args:
        clock: seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[int, Spent] = {}
        self._handed_over_at = clock()

    def add(self, lease: int, activity: Activity, for_s: float) -> None:
        """A lease was seen doing this, since the look before."""
        was = self._spent.get(lease, Spent(lease))
        self._spent[lease] = Spent(
            lease,
            was.active_s + (for_s if activity is Activity.ACTIVE else 0.0),
            was.idle_s + (for_s if activity in IDLE else 0.0),
            was.unknown_s + (for_s if activity is Activity.UNKNOWN else 0.0),
        )

    def due(self) -> list[Spent]:
        """What was added up, once a minute; else nothing."""
        now = self._clock()
        if now - self._handed_over_at < HAND_OVER_S:
            return []
        self._handed_over_at = now
        spent, self._spent = list(self._spent.values()), {}
        return spent

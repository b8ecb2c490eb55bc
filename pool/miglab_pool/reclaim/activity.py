"""Keeps the reports of students' servers, and judges leases: active, idle, or unknown.

Reports are memory only, one for each live lease.  Two clocks are never compared: a server sends
ages by its own monotonic clock, and this process stamps their arrival by its own, so a clock that
jumps changes nothing.  `Signals` refuses absurd reports before they get here.

`judge` takes a server's report and NVML's reading, and returns a state with figures.  NVML takes
precedence: a GPU that computes is in use, whatever its server reports.  If NVML shows a slice as
empty, a report of work, an open page or a silent server protects it only for a limited time.
Unknown is never idle.

The time that each lease was active, idle or unknown is summed for reports of usage; of the sums at
most a minute is lost when the service ends.
"""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from miglab_api.leases import KernelSignal, Signals
from miglab_pool.leases.views import ActivitySpan
from miglab_pool.settings import Reclaim

NEVER = math.inf
HOLDING_MIB = 128  # an empty slice shows a few MiB of its own, one CUDA context takes hundreds
HAND_OVER_S = 60.0


@dataclass(frozen=True, slots=True)
class ServerActivity:
    """A server's activity at one moment, as far as its reports tell.

    An age is `NEVER` where there is nothing that could have one, and None where it is unknown.

    Attributes:
        age_s: since the server reported; every other age counts from now, not from then.
        busy: whether a kernel was running something.
        kernels: how many there are.
        execution_age_s: since a kernel last ran something.
        terminals: how many are open.
        terminal_age_s: since one was last used.
        browsers: how many pages are connected.
        browser_age_s: since a person last did something.
        unsaved: documents with unsaved changes.
        cpu_pct: CPU used between the last two reports, percent of one core.
        cpu_age_s: since that was last more than a server at rest uses.
    """

    age_s: float
    busy: bool | None = None
    kernels: int | None = None
    execution_age_s: float | None = None
    terminals: int | None = None
    terminal_age_s: float | None = None
    browsers: int | None = None
    browser_age_s: float | None = None
    unsaved: int | None = None
    cpu_pct: float | None = None
    cpu_age_s: float | None = None


@dataclass(slots=True)
class _LastReport:
    """A server's last report, when it arrived, and when the server was last seen to use CPU."""

    at: float
    signals: Signals | None = None
    cpu_pct: float | None = None
    cpu_busy_at: float = -math.inf


class SignalBoard:
    """The last report of each lease's server.

    Args:
        cpu_busy_pct: what a server at rest stays below, percent of one core.
        clock: seconds that never jump.
    """

    def __init__(
        self,
        cpu_busy_pct: float = Reclaim().cpu_busy_pct,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_busy_pct = cpu_busy_pct
        self._clock = clock
        self._reports: dict[int, _LastReport] = {}

    def take(self, lease: int, signals: Signals) -> None:
        """Take in a report.

        Args:
            lease: a live lease, whose server has proved who it is.
            signals: what it says.
        """
        now = self._clock()
        report = self._reports.setdefault(lease, _LastReport(now))
        report.cpu_pct = _cpu_pct(report, signals, now)
        if report.cpu_pct is not None and report.cpu_pct >= self._cpu_busy_pct:
            report.cpu_busy_at = now
        report.signals, report.at = signals, now

    def activity_of(self, lease: int) -> ServerActivity | None:
        """Return the server's activity now; None if it has not reported to this process."""
        report = self._reports.get(lease)
        if report is None or report.signals is None:
            return None
        return _server_activity(report, report.signals, self._clock())

    def is_silent(self, lease: int, for_s: float) -> bool:
        """Whether its server has said nothing for longer than that, or never."""
        report = self._reports.get(lease)
        return report is None or report.signals is None or self._clock() - report.at > for_s

    def keep(self, leases: Collection[int]) -> None:
        """Forget all but these."""
        for lease in self._reports.keys() - set(leases):
            del self._reports[lease]

    def __len__(self) -> int:
        return len(self._reports)


def _cpu_pct(report: _LastReport, signals: Signals, now: float) -> float | None:
    """Percent of one core since the last report; None if it cannot be told.

    Less CPU time than before means that a process ended whose time was counted.  Two reports
    within a second are too close to tell.
    """
    before = report.signals.cpu_s if report.signals else None
    if before is None or signals.cpu_s is None or signals.cpu_s < before:
        return None
    return (
        100 * (signals.cpu_s - before) / (now - report.at)
        if now - report.at >= 1
        else report.cpu_pct
    )


def _server_activity(report: _LastReport, signals: Signals, now: float) -> ServerActivity:
    since = max(0.0, now - report.at)
    return ServerActivity(
        age_s=since,
        busy=_any_busy(signals.kernels),
        kernels=None if signals.kernels is None else len(signals.kernels),
        execution_age_s=_execution_age_s(signals.kernels, since),
        terminals=signals.terminals,
        terminal_age_s=_age_s(signals.terminals, signals.terminal_age_s, since),
        browsers=signals.browsers,
        browser_age_s=_age_s(signals.browsers, signals.browser_age_s, since),
        unsaved=signals.unsaved,
        cpu_pct=report.cpu_pct,
        cpu_age_s=None if report.cpu_pct is None else now - report.cpu_busy_at,
    )


def _any_busy(kernels: tuple[KernelSignal, ...] | None) -> bool | None:
    if kernels is None:
        return None
    if any(kernel.busy for kernel in kernels):
        return True
    return None if any(kernel.busy is None for kernel in kernels) else False


def _execution_age_s(kernels: tuple[KernelSignal, ...] | None, since: float) -> float | None:
    """Since any kernel last ran something; a busy one ran when it was reported."""
    if kernels is None:
        return None
    ages = [_kernel_age_s(kernel) for kernel in kernels]
    known_ages = [age for age in ages if age is not None]
    if len(known_ages) < len(ages) and 0.0 not in known_ages:
        return None
    return min(known_ages, default=NEVER) + since


def _kernel_age_s(kernel: KernelSignal) -> float | None:
    """Of one that may be busy it is not known when it last ran something."""
    if kernel.busy is None:
        return None
    return 0.0 if kernel.busy else kernel.last_execution_age_s


def _age_s(count: int | None, age_s: float | None, since: float) -> float | None:
    """The age of the last use of pages or terminals; `NEVER` if there is none and no age is known.

    A page that was closed a moment ago was used a moment ago, if the server still reports it.
    """
    if age_s is not None:
        return age_s + since
    return NEVER if count == 0 else None


class Activity(StrEnum):
    """What a lease is doing."""

    ACTIVE = "active"
    IDLE_HOLDING = "idle-holding"
    IDLE_FREE = "idle-free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """NVML's reading of all of a lease's slices together.

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
class ActivityJudgement:
    """A lease's activity, with the figures that led to it.

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
    server: ServerActivity | None,
    reading: Reading,
    held_s: float,
    limits: Reclaim,
    *,
    lab_reports: bool = False,
) -> ActivityJudgement:
    """Judge a lease's activity.

    Args:
        server: what its server reported; None if nothing.
        reading: what NVML reads of its slices.
        held_s: how long the lease is held; nobody is idle longer than that.
        limits: what counts, and for how long: [reclaim].
        lab_reports: whether enough of the lab's servers are heard, so that the silence of one is
            its own.
    """
    if server is None or server.age_s > limits.stale_s:
        judgement = _judge_by_gpu(server, reading, held_s, limits)
        return (
            _judge_by_empty_slice(judgement, reading, held_s, limits) if lab_reports else judgement
        )
    work_age_s, missing = _age_of_work(server, reading)
    if reading.processes is None and reading.is_readable:
        missing = missing or "NVML does not tell what is on the slice"
    # Who has run nothing yet came with the lease: until then looking counts from its begin.
    since_s = min(work_age_s, max(0.0, held_s))
    claimed_s = None if missing else _claimed_idle_s(server, since_s, limits)
    if claimed_s is None and not missing:
        missing = "its server does not tell whether somebody uses the page"
    idle_s = _idle_s(claimed_s, reading, held_s, limits)
    if idle_s is None and work_age_s <= limits.stale_s:
        idle_s = min(work_age_s, max(0.0, held_s))  # what is known is enough: it works
    if idle_s is None:
        return ActivityJudgement(Activity.UNKNOWN, unknown=missing)
    is_by_slice = claimed_s is None or idle_s > claimed_s
    return ActivityJudgement(
        _activity_of(idle_s, reading, limits),
        idle_s,
        None if missing else work_age_s,
        empty_s=reading.free_for_s if is_by_slice and reading.is_free else None,
    )


def _judge_by_gpu(
    server: ServerActivity | None, reading: Reading, held_s: float, limits: Reclaim
) -> ActivityJudgement:
    """Judge a lease whose server is silent: a computing GPU is in use, all else is unknown."""
    age_s = reading.computed_age_s
    if age_s is not None and age_s <= limits.stale_s:
        return ActivityJudgement(Activity.ACTIVE, min(age_s, max(0.0, held_s)), age_s)
    reason = "has not reported" if server is None else f"last reported {server.age_s:.0f} s ago"
    return ActivityJudgement(Activity.UNKNOWN, unknown=f"its server {reason}")


def _judge_by_empty_slice(
    judgement: ActivityJudgement, reading: Reading, held_s: float, limits: Reclaim
) -> ActivityJudgement:
    """Judge an empty slice of a silent server: it is protected no longer than one said to be busy.

    Neither has something to lose on the slice.  So it does not matter whether the server has ever
    reported.
    """
    idle_s = _idle_s(None, reading, held_s, limits)
    if idle_s is None or idle_s <= limits.stale_s or judgement.activity is Activity.ACTIVE:
        return judgement
    return ActivityJudgement(
        Activity.IDLE_FREE, idle_s, None, judgement.unknown, reading.free_for_s
    )


def _age_of_work(server: ServerActivity, reading: Reading) -> tuple[float, str]:
    """Return the age of the last work, as far as it is known, and what is unknown of it.

    CPU time only adds to what kernels and terminals say, unless something is on the slice: then
    it alone tells a program that runs by itself from one that does nothing.  A GPU that computes
    is work; one that does not says nothing: a program may well be busy before and after.
    """
    ages = [
        server.execution_age_s,
        server.terminal_age_s,
        server.cpu_age_s,
        reading.computed_age_s,
    ]
    work_age_s = min((age for age in ages if age is not None), default=float("inf"))
    if server.execution_age_s is None:
        return work_age_s, "its server does not tell what its kernels do"
    if server.terminal_age_s is None:
        return work_age_s, "its server does not tell what its terminals do"
    if server.cpu_age_s is None and not reading.is_free:
        return work_age_s, "its server does not (yet) tell how much CPU it uses"
    return work_age_s, ""


def _claimed_idle_s(server: ServerActivity, work_age_s: float, limits: Reclaim) -> float | None:
    """For how long a lease is idle by its server's report; an open page counts for `unused_s`.

    If it is unknown whether a page is open, that matters only as long as it could count.
    """
    least_s = work_age_s - limits.unused_s
    if server.browser_age_s is not None:
        return max(min(work_age_s, server.browser_age_s), least_s)
    if work_age_s <= limits.stale_s:
        return work_age_s
    return least_s if least_s > limits.stale_s else None


def _idle_s(
    claimed_s: float | None, reading: Reading, held_s: float, limits: Reclaim
) -> float | None:
    """For how long a lease is idle; a report protects an empty slice only for `unused_s`."""
    is_bounded = reading.is_free and reading.is_the_holders
    least_s = reading.free_for_s - limits.unused_s if is_bounded else 0.0
    if claimed_s is None and least_s <= 0:
        return None
    return max(0.0, min(max(claimed_s or 0.0, least_s), held_s))


def _activity_of(idle_s: float, reading: Reading, limits: Reclaim) -> Activity:
    if idle_s <= limits.stale_s:
        return Activity.ACTIVE
    return Activity.IDLE_FREE if reading.is_free else Activity.IDLE_HOLDING


IDLE = frozenset({Activity.IDLE_FREE, Activity.IDLE_HOLDING})


class ActivityTotals:
    """How long each lease was active, idle and unknown, added up and handed over once a minute.

    Args:
        clock: seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[int, ActivitySpan] = {}
        self._handed_over_at = clock()

    def add(self, lease: int, activity: Activity, for_s: float) -> None:
        """Add the time since the last round to a lease's activity."""
        before = self._spent.get(lease, ActivitySpan(lease))
        kind = "idle_s" if activity in IDLE else f"{activity.value}_s"
        self._spent[lease] = replace(before, **{kind: getattr(before, kind) + for_s})

    def take_due(self) -> list[ActivitySpan]:
        """Return the sums once a minute and start them anew; else return nothing."""
        now = self._clock()
        if now - self._handed_over_at < HAND_OVER_S:
            return []
        self._handed_over_at = now
        spent, self._spent = list(self._spent.values()), {}
        return spent

"""What students' servers last said of themselves, each signal with its age.

Memory only, one entry for each live lease.  Two clocks are never compared: a server sends ages by
its own monotonic clock, what arrives is stamped by this process's, so a clock that jumps changes
nothing.  What is absurd never gets here (`Signals` refuses it).  Decides nothing; must not import
the pool.
"""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from miglab_api.leases import KernelSignal, Signals
from miglab_pool.reclaim.token_bucket import TokenBuckets
from miglab_pool.settings import Reclaim

BURST = 10.0  # reports at once: a page that loads, a "still here", a saved document
PER_S = 0.5  # and then so many per second; a server pushes one every 15 s
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a server at one moment.

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
class _Entry:
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
        self._entries: dict[int, _Entry] = {}
        self._buckets = TokenBuckets(BURST, PER_S, clock)

    def take(self, lease: int, signals: Signals) -> None:
        """Take in a report.

        Args:
            lease: a live lease, whose server has proved who it is.
            signals: what it says.

        Raises:
            TooOften: it reports faster than any need.
        """
        now = self._clock()
        self._buckets.spend(lease)
        entry = self._entries.setdefault(lease, _Entry(now))
        entry.cpu_pct = _cpu_pct(entry, signals, now)
        if entry.cpu_pct is not None and entry.cpu_pct >= self._cpu_busy_pct:
            entry.cpu_busy_at = now
        entry.signals, entry.at = signals, now

    def known(self, lease: int) -> Known | None:
        """What is known now; None if the server has said nothing (to this process)."""
        entry = self._entries.get(lease)
        if entry is None or entry.signals is None:
            return None
        return _known(entry, entry.signals, self._clock())

    def keep(self, leases: Collection[int]) -> None:
        """Forget all but these."""
        for gone in self._entries.keys() - set(leases):
            del self._entries[gone]

    def __len__(self) -> int:
        return len(self._entries)


def _cpu_pct(entry: _Entry, signals: Signals, now: float) -> float | None:
    """Percent of one core since the last report; None if it cannot be told.

    Less CPU time than before means that a process ended whose time was counted.  Two reports
    within a second are too close to tell.
    """
    before = entry.signals.cpu_s if entry.signals else None
    if before is None or signals.cpu_s is None or signals.cpu_s < before:
        return None
    return (
        100 * (signals.cpu_s - before) / (now - entry.at) if now - entry.at >= 1 else entry.cpu_pct
    )


def _known(entry: _Entry, said: Signals, now: float) -> Known:
    since = max(0.0, now - entry.at)
    return Known(
        age_s=since,
        busy=_busy(said.kernels),
        kernels=None if said.kernels is None else len(said.kernels),
        execution_age_s=_execution_age_s(said.kernels, since),
        terminals=said.terminals,
        terminal_age_s=_age_s(said.terminals, said.terminal_age_s, since),
        browsers=said.browsers,
        browser_age_s=_age_s(said.browsers, said.browser_age_s, since),
        unsaved=said.unsaved,
        cpu_pct=entry.cpu_pct,
        cpu_age_s=None if entry.cpu_pct is None else now - entry.cpu_busy_at,
    )


def _busy(kernels: tuple[KernelSignal, ...] | None) -> bool | None:
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
    known = [age for age in ages if age is not None]
    if len(known) < len(ages) and 0.0 not in known:
        return None
    return min(known, default=NEVER) + since


def _kernel_age_s(kernel: KernelSignal) -> float | None:
    """Of one that may be busy it is not known when it last ran something."""
    if kernel.busy is None:
        return None
    return 0.0 if kernel.busy else kernel.last_execution_age_s


def _age_s(count: int | None, age_s: float | None, since: float) -> float | None:
    """The age of what a count of things did; with none there is none that could have done it.

    A page that was closed a moment ago was used a moment ago, if the server still says so.
    """
    if age_s is not None:
        return age_s + since
    return NEVER if count == 0 else None

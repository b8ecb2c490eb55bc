"""The timing loop, the warm-up before it, and what ranks on the cores of one CPU gain side by side.

Runs in the child. `timing_loop` is meant to be read: it is the whole of how labkit times anything.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Work = Callable[[], Any]
FLUSH_FLOOR = 32 << 20  # bytes; 256 MB, which triton flushes, would be 5 % of a 1g.5gb slice
WARM_WINDOW = 5
WARM_TOLERANCE = 0.03
WARM_RUNS = 60
WARM_S = 2.0
SHORTEST_S = 200e-6  # a shorter call is repeated within a sample, so that the clock does not show
BLOCK_S = 0.2  # a plot is redrawn at most five times a second


@dataclass(frozen=True)
class Turn:
    """One timed call of one variant. `launch_s` is the host's time until the call was queued."""

    round: int
    name: str
    seconds: float
    launch_s: float


class HostClock:
    """The host's clock, for the CPU and for what communicates; on a GPU it first waits."""

    def __init__(self, torch: Any, flush: Any = None) -> None:
        ranks = ranks_of(torch)
        self.wait: Work = torch.cuda.synchronize if torch.cuda.is_available() else _do_nothing
        self.empty_cache: Work = flush.zero_ if flush is not None else _do_nothing
        self.meet: Work = _do_nothing if ranks is None else ranks.barrier
        self.is_shared = ranks is not None
        self.is_cold = flush is not None
        self.flush_bytes = 0 if flush is None else flush.numel() * flush.element_size()
        self.repeats = ranks is None and not torch.cuda.is_available()
        self.name = "host"

    def mark(self) -> Any:
        self.wait()
        return time.perf_counter()

    def between(self, start: Any, end: Any) -> float:
        return float(end - start)


class EventClock(HostClock):
    """CUDA events: the GPU itself notes the time (to about 0.5 µs) as its queue gets there."""

    def __init__(self, torch: Any, flush: Any = None) -> None:
        super().__init__(torch, flush)
        self._event = torch.cuda.Event
        self.name = "cuda events"

    def mark(self) -> Any:
        event = self._event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3


def _do_nothing() -> None:
    """What a clock does where there is nothing to do."""


def timing_loop(
    works: Mapping[str, Work], rounds: range, clock: HostClock, inner: int = 1, block: int = 1
) -> Iterator[list[Turn]]:
    """Time every function once a round, and hand over the turns block by block.

    Four things make a time right. The queue is never empty: the kernel that empties the L2 cache
    still runs while Python queues what follows, so the second event never waits for Python. Every
    call finds the same cold cache. We synchronise before we read a clock. And rounds alternate (A
    B, then B A), so that whatever drifts hurts both alike.
    """
    for start in range(rounds.start, rounds.stop, block):
        turns = []
        for number in range(start, min(start + block, rounds.stop)):
            order = list(works) if number % 2 == 0 else list(works)[::-1]
            for name in order:
                clock.meet()  # several ranks start at the same moment; one alone just goes on
                clock.empty_cache()
                start_mark = clock.mark()
                call_start = time.perf_counter()
                for _ in range(inner):
                    works[name]()
                launched_s = time.perf_counter() - call_start
                turns.append((number, name, start_mark, clock.mark(), launched_s))
        clock.wait()  # once a block: only now have all the events really happened
        yield [
            Turn(number, name, clock.between(start_mark, end_mark) / inner, launched_s / inner)
            for number, name, start_mark, end_mark, launched_s in turns
        ]


def ranks_of(torch: Any) -> Any:
    """`torch.distributed` where several ranks run, which start each call together; else None."""
    ranks = torch.distributed
    return ranks if ranks.is_available() and ranks.is_initialized() else None


def make_clock(torch: Any, *, cold: bool) -> HostClock:
    """Choose events for a GPU's own work, and the host's clock for a CPU's and for several ranks.

    Args:
        torch: the module, which only a child imports.
        cold: whether each call starts with an empty L2 (only on a GPU): twice its size is written,
            at least 32 MB, so that nothing of the last call is left.
    """
    gpu, flush = torch.cuda.is_available(), None
    if gpu and cold:
        l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        size = max(2 * l2_bytes, FLUSH_FLOOR)
        flush = torch.empty(size // 4, dtype=torch.int32, device="cuda")
    return (EventClock if gpu and ranks_of(torch) is None else HostClock)(torch, flush)


def _is_stable(samples: list[float]) -> bool:
    """Whether the median of the last few runs is that of the few before, within 3 %."""
    if len(samples) < 2 * WARM_WINDOW:
        return False
    last = statistics.median(samples[-WARM_WINDOW:])
    before = statistics.median(samples[-2 * WARM_WINDOW : -WARM_WINDOW])
    return abs(last - before) <= WARM_TOLERANCE * before


def warm_up(work: Work, clock: HostClock, *, fixed: bool = False) -> list[float]:
    """Run until the time no longer changes, at most 60 times or 2 s; shown, never counted.

    Args:
        work: the function to run.
        clock: how to time it.
        fixed: run exactly five times, as several ranks do, which must make the same number of
            collective calls.
    """
    runs_fixed_count = fixed or clock.is_shared
    samples: list[float] = []
    ends = time.perf_counter() + WARM_S

    def is_over() -> bool:
        if runs_fixed_count or len(samples) < 2:
            return len(samples) >= WARM_WINDOW
        return _is_stable(samples) or len(samples) >= WARM_RUNS or time.perf_counter() > ends

    while not is_over():
        for turns in timing_loop({"": work}, range(1), clock):
            samples += [turn.seconds for turn in turns]
    return samples


def plan_inner(warm: list[float], clock: HostClock) -> int:
    """How often a short CPU call is repeated within one sample; GPU calls and ranks never are."""
    if not clock.repeats:
        return 1
    typical = statistics.median(warm[-WARM_WINDOW:])
    return max(1, math.ceil(SHORTEST_S / max(typical, 1e-9)))


def plan_block(typical_s: float) -> int:
    """Rounds between two reports: what fits 0.2 s disturbs little and keeps plots live."""
    return max(1, min(20, int(BLOCK_S / max(typical_s, 1e-6))))


PIECE_S = 0.01  # long beside the barrier that ends it (0.2 ms), short beside what is measured
SIZE = 384  # of the products; they fit a core's own cache, so that memory is not asked about


class SideBySide:
    """Times one rank alone and all ranks together; every rank must make the same calls.

    Ranks on a CPU are processes that want a core each. Where the second core is half of the first
    (a hyperthread), belongs to somebody else or is not there, two ranks cannot be faster than one,
    whatever they compute: that says something of the machine and nothing of data parallelism. So a
    piece of work that needs no communication is timed in every round, on one rank and on all of
    them.

    Args:
        torch: the module, which only a child imports.
    """

    def __init__(self, torch: Any) -> None:
        self._ranks: Any = None if torch.cuda.is_available() else ranks_of(torch)
        self._alone_s: list[float] = []
        self._together_s: list[float] = []
        self._core_share: list[float] = []
        if self._ranks is not None:
            self._first = self._ranks.get_rank() == 0
            self._factor, self._product = (torch.full((SIZE, SIZE), 1.0 / SIZE) for _ in range(2))
            self._torch, self._calls = torch, 1
            self._calls = self._planned()

    def _planned(self) -> int:
        """As many products as take the first rank 10 ms, agreed among all."""
        once = min(self._timed(works=True) for _ in range(5))
        calls = self._torch.tensor([math.ceil(PIECE_S / max(once, 1e-6))])
        self._ranks.broadcast(calls, 0)
        return int(calls[0])

    def measure(self) -> None:
        """One round: the first rank while the others wait, then all of them."""
        if self._ranks is not None:
            self._alone_s.append(self._timed(works=self._first))
            self._together_s.append(self._timed(works=True))
            self._core_share.append(self._share)

    def _timed(self, *, works: bool) -> float:
        """Seconds until the last rank is done."""
        self._ranks.barrier()
        started, cpu_started = time.perf_counter(), time.thread_time()
        for _ in range(self._calls if works else 0):
            self._torch.mm(self._factor, self._factor, out=self._product)
        self._share = (time.thread_time() - cpu_started) / (time.perf_counter() - started)
        self._ranks.barrier()
        return time.perf_counter() - started

    def summary(self) -> dict[str, list[float]]:
        """Seconds of every round, and the share of a core that the first rank had while all worked.

        Empty where the ranks have devices of their own.
        """
        if not self._alone_s:
            return {}
        seconds = {"alone_s": self._alone_s, "together_s": self._together_s}
        return {**seconds, "core_share": self._core_share}

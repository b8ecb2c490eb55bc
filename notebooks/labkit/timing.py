"""The timing loop, the warm-up before it, and the flush that goes with it.

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
SHORTEST_S = (
    200e-6  # shorter calls are repeated inside one sample, so that reading the clock does not show
)
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

    def __init__(self, torch: Any, flush: Any = None, barrier: Work | None = None) -> None:
        self.wait: Work = torch.cuda.synchronize if torch.cuda.is_available() else _nothing
        self.empty_cache: Work = flush.zero_ if flush is not None else _nothing
        self.meet: Work = barrier or _nothing
        self.is_cold = flush is not None
        self.flush_bytes = 0 if flush is None else flush.numel() * flush.element_size()
        self.repeats = barrier is None and not torch.cuda.is_available()
        self.name = "host"

    def mark(self) -> Any:
        self.wait()
        return time.perf_counter()

    def between(self, begun: Any, ended: Any) -> float:
        return float(ended - begun)


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

    def between(self, begun: Any, ended: Any) -> float:
        return float(begun.elapsed_time(ended)) / 1e3


def _nothing() -> None:
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
                begun = clock.mark()
                called = time.perf_counter()
                for _ in range(inner):
                    works[name]()
                launched_s = time.perf_counter() - called
                turns.append((number, name, begun, clock.mark(), launched_s))
        clock.wait()  # once a block: only now have all the events really happened
        yield [
            Turn(number, name, clock.between(begun, ended) / inner, launched_s / inner)
            for number, name, begun, ended, launched_s in turns
        ]


def make_clock(torch: Any, *, cold: bool, barrier: Work | None = None) -> HostClock:
    """Choose events for a GPU's own work and the host's clock otherwise; allocate the flush buffer.

    Args:
        torch: the module, which only a child imports.
        cold: whether each call starts with an empty L2 (only on a GPU): twice its size is written,
            at least 32 MB, so that nothing of the last call is left.
        barrier: makes several ranks start together; then the host's clock is used.
    """
    gpu, flush = torch.cuda.is_available(), None
    if gpu and cold:
        l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        size = max(2 * l2_bytes, FLUSH_FLOOR)
        flush = torch.empty(size // 4, dtype=torch.int32, device="cuda")
    return EventClock(torch, flush) if gpu and barrier is None else HostClock(torch, flush, barrier)


def is_stable(samples: list[float]) -> bool:
    """Whether the median of the last few runs is that of the few before, within 3 %."""
    if len(samples) < 2 * WARM_WINDOW:
        return False
    last = statistics.median(samples[-WARM_WINDOW:])
    before = statistics.median(samples[-2 * WARM_WINDOW : -WARM_WINDOW])
    return abs(last - before) <= WARM_TOLERANCE * before


def warm_up(name: str, work: Work, clock: HostClock, *, fixed: bool = False) -> list[float]:
    """Run until the time no longer changes, at most 60 times or 2 s; shown, never counted.

    Args:
        name: what is warmed up.
        work: the function to run.
        clock: how to time it.
        fixed: run exactly five times, so that several ranks make the same number of collective
            calls.
    """
    samples: list[float] = []
    ends = time.perf_counter() + WARM_S

    def is_over() -> bool:
        if fixed or len(samples) < 2:
            return len(samples) >= WARM_WINDOW
        return is_stable(samples) or len(samples) >= WARM_RUNS or time.perf_counter() > ends

    while not is_over():
        for turns in timing_loop({name: work}, range(1), clock, 1, 1):
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

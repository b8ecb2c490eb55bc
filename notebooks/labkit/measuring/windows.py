"""Copies of one job that share a device, all together and one alone in turns; in the children.

Every copy is a process. In one window all of them work, in the next only the first; windows change
places from pair to pair, so that what drifts hurts both alike. One run shows what neighbours cost
a call, and what all copies do together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

WARM_CALLS = 5
ORDER = ("together", "alone", "alone", "together")  # two pairs of windows, again and again
WINDOW_S = 0.15
START_S = 0.2  # from the word of the first copy to the first window
WORKED = 0.9  # of a window; the rest is for the last call to end
CALLS_A_WINDOW = 2  # of each copy while all work, or a window says nothing about rates


def in_windows(function: Callable[..., Any], copies: int, pairs: int) -> Callable[..., Any]:
    """The function's work, called in windows and counted."""

    def in_turns(**arguments: Any) -> Any:
        from labkit.measuring.windows import count_in_windows

        return count_in_windows(function(**arguments), copies, pairs)

    return in_turns


def count_in_windows(work: Callable[[], Any], copies: int, pairs: int) -> dict[str, Any]:
    """One copy: warm up, meet the others, then work in its windows; in a child only.

    Returns:
        The calls per second of each window, and the CPU used while all worked.
    """
    import torch

    settle = quiet_wait(torch)
    number, start, window_s = _meet(copies, _warm(work, settle))
    rates: dict[str, list[float]] = {"together": [], "alone": []}
    cpu = 0.0
    for window, name in enumerate(islice(cycle(ORDER), 2 * pairs)):
        if name == "alone" and number:
            continue
        begins = start + window * window_s
        time.sleep(max(0.0, begins - time.monotonic()))
        rate, used = calls_per_s(work, settle, begins + WORKED * window_s)
        rates[name].append(rate)
        cpu += used if name == "together" else 0.0
    return {**rates, "cpu_per_copy": cpu / pairs}


def _warm(work: Callable[[], Any], settle: Callable[[], Any]) -> float:
    """Seconds per call, the slow first calls left out."""
    times = []
    for _ in range(WARM_CALLS):
        begun = time.monotonic()
        work()
        settle()
        times.append(time.monotonic() - begun)
    return min(times)


def calls_per_s(
    work: Callable[[], Any], settle: Callable[[], Any], ends: float
) -> tuple[float, float]:
    """Calls per second until `ends` (at least one call), and CPU seconds per second."""
    begun, cpu, calls = time.monotonic(), time.process_time(), 0
    while calls == 0 or time.monotonic() < ends:
        work()
        settle()
        calls += 1
    wall = time.monotonic() - begun
    return calls / wall, (time.process_time() - cpu) / wall


def _meet(copies: int, typical_s: float) -> tuple[int, float, float]:
    """Wait until every copy is warm; the first says when the windows begin and how long they are.

    The monotonic clock is the same for all processes of a Linux machine.
    """
    import torch.distributed as dist

    window_s = max(WINDOW_S, CALLS_A_WINDOW * copies * typical_s)
    if copies == 1:
        return 0, time.monotonic(), window_s
    dist.barrier()
    plan = [time.monotonic() + START_S, window_s]
    dist.broadcast_object_list(plan, 0)
    return dist.get_rank(), plan[0], plan[1]


def quiet_wait(torch: Any) -> Callable[[], None]:
    """Wait for the GPU asleep: the usual wait spins, and would count as CPU a copy needs."""
    if not torch.cuda.is_available():
        return lambda: None

    def settle() -> None:
        event = torch.cuda.Event(blocking=True)
        event.record()
        event.synchronize()

    return settle

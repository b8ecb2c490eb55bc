"""labkit's own times against other people's timers, on what the machine has.

On a CPU against torch.utils.benchmark; on a GPU against triton.testing.do_bench with the same
flush; on several GPUs an all-reduce against a plain torch.distributed loop. Always in alternated
blocks, so that drift hurts both alike.
"""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit.measuring.measure import ranks
from labkit.timing import HostClock, make_clock, plan_inner, timing_loop, warm_up

BLOCKS = 10
ROUNDS = 20
LARGE = 1 << 26  # bytes all-reduced at least
Timer = Callable[[], float]


def alternate(ours: Timer, theirs: Timer, blocks: int) -> list[float]:
    """Our time over theirs, block by block, with the first turn changing."""
    found = []
    for block in range(blocks):
        turn = (ours, theirs) if block % 2 == 0 else (theirs, ours)
        seconds = {timer: timer() for timer in turn}
        found.append(seconds[ours] / seconds[theirs])
    return found


def own_timer(torch: Any, work: Callable[[], Any], l2_bytes: int, *, cold: bool) -> Timer:
    """A block of labkit's timing loop, as its median."""
    clock = make_clock(torch, l2_bytes=l2_bytes, cold=cold)
    inner = plan_inner(warm_up("work", work, clock), clock)
    return lambda: loop_median(work, clock, inner)


def loop_median(
    work: Callable[[], Any], clock: HostClock, inner: int, rounds: int = ROUNDS
) -> float:
    """Median seconds per call of one block."""
    blocks = timing_loop({"work": work}, range(rounds), clock, inner, rounds)
    return statistics.median(turn.seconds for turns in blocks for turn in turns)


def cpu_works(torch: Any) -> dict[str, Callable[[], Any]]:
    """A matmul that computes, and a copy that moves memory."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    source = torch.randn(1 << 22)
    target = torch.empty_like(source)
    return {"matmul fp32 n=512": lambda: a @ b, "copy 16 MiB": lambda: target.copy_(source)}


def cpu_ratios(torch: Any, blocks: int) -> dict[str, list[float]]:
    """Against torch.utils.benchmark with as many threads as we use."""
    from torch.utils import benchmark

    found = {}
    for name, work in cpu_works(torch).items():
        timer = benchmark.Timer(
            "work()", globals={"work": work}, num_threads=torch.get_num_threads()
        )
        ours = own_timer(torch, work, 0, cold=False)
        number = max(1, int(0.002 / ours()))

        def theirs(timer: Any = timer, number: int = number) -> float:
            times = [timer.timeit(number).median for _ in range(ROUNDS)]
            return float(statistics.median(times))

        found[name] = alternate(ours, theirs, blocks)
    return found


def gpu_works(torch: Any) -> dict[str, Callable[[], Any]]:
    """bf16 products at two sizes and a copy of 1 GiB."""
    works: dict[str, Callable[[], Any]] = {}
    for size in (4096, 8192):
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        works[f"matmul bf16 n={size}"] = functools.partial(torch.matmul, a, b)
    source = torch.empty(1 << 28, device="cuda", dtype=torch.float32).normal_()
    target = torch.empty_like(source)
    return {**works, "copy 1 GiB": functools.partial(target.copy_, source)}


def gpu_ratios(torch: Any, blocks: int) -> dict[str, list[float]]:
    """Against triton's do_bench, which flushes 256 MB: we flush as much."""
    testing: Any = importlib.import_module("triton.testing")
    found = {}
    same_flush = 256 << 20
    for name, work in gpu_works(torch).items():
        ours = own_timer(torch, work, same_flush // 2, cold=True)

        def theirs(work: Callable[[], Any] = work) -> float:
            return float(testing.do_bench(work, warmup=5, rep=100, quantiles=[0.5])) / 1e3

        found[name] = alternate(ours, theirs, blocks)
    return found


def reduce_both_ways(
    size_bytes: int = LARGE, blocks: int = BLOCKS, rounds: int = ROUNDS
) -> list[float]:
    """In one rank: an all-reduce by labkit's loop over a plain loop, block by block."""
    import torch
    import torch.distributed as dist

    place = "cuda" if torch.cuda.is_available() else "cpu"
    payload = torch.ones(size_bytes // 4, device=place)
    clock = HostClock(torch, barrier=dist.barrier)

    def work() -> None:
        dist.all_reduce(payload)

    def plain() -> float:
        times = []
        for _ in range(rounds):
            dist.barrier()
            clock.wait()
            begun = time.perf_counter()
            dist.all_reduce(payload)
            clock.wait()
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    loop_median(work, clock, 1, rounds)
    plain()
    return alternate(lambda: loop_median(work, clock, 1, rounds), plain, blocks)


def reduce_ratios(count: int, blocks: int, size_bytes: int = LARGE) -> dict[str, list[float]]:
    """All-reduce over `count` ranks; each block counts as its slowest rank's ratio would."""
    done = ranks(
        reduce_both_ways,
        n=count,
        size_bytes=size_bytes,
        blocks=blocks,
        rounds=ROUNDS,
        timeout_s=300.0,
    )
    per_block = [statistics.median(block) for block in zip(*done.values, strict=True)]
    return {f"all-reduce {size_bytes >> 20} MiB, {count} ranks, {done.backend}": per_block}


def all_ratios(blocks: int = BLOCKS) -> dict[str, list[float]]:
    """Every comparison this machine allows, by name."""
    import torch

    if not torch.cuda.is_available():
        return {**cpu_ratios(torch, blocks), **reduce_ratios(2, blocks, 1 << 22)}
    found = gpu_ratios(torch, blocks)
    for count in (2, 4):
        if torch.cuda.device_count() >= count:
            found |= reduce_ratios(count, blocks)
    return found


def medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each comparison's blocks."""
    return {name: round(statistics.median(blocks), 4) for name, blocks in found.items()}

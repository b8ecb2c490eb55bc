"""`./lab bench labkit`: labkit's times over other people's timers, on what this machine has.

On a CPU against torch.utils.benchmark; on a GPU against triton.testing.do_bench with the same
flush.  Always in alternated blocks, so that drift hurts both alike.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Annotated, Any

import typer

from miglab_bench.harness.results import say, table_of

MISSING = 2
ROUNDS = 20
FLUSH_BYTES = 256 << 20  # do_bench's own
Timer = Callable[[], float]


def alternate(our_timer: Timer, their_timer: Timer, blocks: int) -> list[float]:
    """Return our time over theirs for each block; each goes first in turn."""
    ratios = []
    for block in range(blocks):
        turn = (our_timer, their_timer) if block % 2 == 0 else (their_timer, our_timer)
        seconds = {timer: timer() for timer in turn}
        ratios.append(seconds[our_timer] / seconds[their_timer])
    return ratios


def timer_of_labkit(torch: Any, work: Callable[[], Any], *, is_gpu: bool) -> Timer:
    """Return a timer that runs a block of labkit's timing loop and returns its median."""
    from labkit.timing import EventClock, make_clock, plan_inner, timing_loop, warm_up

    clock = make_clock(torch, cold=False)
    if is_gpu:  # as much as the other one writes
        clock = EventClock(torch, torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda"))
    inner = plan_inner(warm_up(work, clock), clock)

    def loop_median() -> float:
        blocks = timing_loop({"work": work}, range(ROUNDS), clock, inner, ROUNDS)
        return median(turn.seconds for turns in blocks for turn in turns)

    return loop_median


def workloads(torch: Any, *, is_gpu: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Products that compute, and a copy that moves memory."""
    if is_gpu:
        sizes, elements, dtype_name, copied = [4096, 8192], 1 << 28, "bf16", "copy 1 GiB"
        place = {"device": "cuda", "dtype": torch.bfloat16}
    else:
        sizes, elements, dtype_name, copied = [512], 1 << 22, "fp32", "copy 16 MiB"
        place = {}
    for size in sizes:
        a, b = (torch.randn(size, size, **place) for _ in range(2))
        yield f"matmul {dtype_name} n={size}", partial(torch.matmul, a, b)
    source = torch.empty(elements, device="cuda" if is_gpu else "cpu").normal_()
    yield copied, partial(torch.empty_like(source).copy_, source)


def reference_timer(
    torch: Any, work: Callable[[], Any], our_timer: Timer, *, is_gpu: bool
) -> Timer:
    """Return triton's timer, which flushes as we do, or torch's with as many threads as we use."""
    if is_gpu:
        do_bench: Any = importlib.import_module("triton.testing").do_bench
        return lambda: float(do_bench(work, warmup=5, rep=100, quantiles=[0.5])) / 1e3
    from torch.utils import benchmark

    threads, number = torch.get_num_threads(), max(1, int(0.002 / our_timer()))
    timer = benchmark.Timer("work()", globals={"work": work}, num_threads=threads)
    return lambda: median(timer.timeit(number).median for _ in range(ROUNDS))


def all_ratios(blocks: int) -> dict[str, float]:
    """The median over the blocks of every comparison that this machine allows, by name."""
    import torch

    is_gpu = torch.cuda.is_available()
    ratios = {}
    for name, work in workloads(torch, is_gpu=is_gpu):
        labkit_timer = timer_of_labkit(torch, work, is_gpu=is_gpu)
        other_timer = reference_timer(torch, work, labkit_timer, is_gpu=is_gpu)
        ratios[name] = round(median(alternate(labkit_timer, other_timer, blocks)), 4)
    return ratios


def bench_labkit(
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    count: Annotated[int, typer.Option(min=10, help="How many alternating blocks.")] = 10,
) -> None:
    """Compare labkit's timing with torch's own (CPU) or triton's (GPU)."""
    try:
        ratios = all_ratios(count)
    except ImportError as error:
        typer.echo(f"{error.name} is not installed here: pip install ./notebooks[torch]", err=True)
        raise typer.Exit(MISSING) from error
    title = f"labkit's time over other timers', medians of {count} alternated blocks"
    rows = [{"what": name, "ratio": f"{ratio:.4f}"} for name, ratio in ratios.items()]
    say({"ratios": ratios}, table_of(rows, title), as_json=as_json)

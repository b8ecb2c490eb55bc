"""When each operation of a step ran, by PyTorch's own profiler: what a timeline is drawn from.

Lanes are what can go on at the same time: the operators that Python calls, the launches of kernels,
the kernels of the GPU, and messages between ranks. In a child only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from labkit.arguments import public

OPERATORS, LAUNCHES, KERNELS, MESSAGES = "operators", "launches", "GPU kernels", "messages"
LAUNCH = ("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset")
MESSAGE = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")
ANNOTATIONS = ("Optimizer.", "ProfilerStep", "DistributedDataParallel.", "aten::")
MOST_SPANS = 2000

Span = tuple[str, str, float, float]
"""Lane, name, and begin and end in milliseconds from the first operation's begin."""


@public
def spans_of(work: Callable[[], Any], *, warm: int = 2, inner: bool = False) -> list[Span]:
    """Run a step under PyTorch's profiler; when each of its operations began and ended.

    The profiler itself costs some microseconds an operation, so a step takes longer than alone. It
    sees a first step that is not kept, since starting it takes milliseconds. The GPU is idle when
    the step begins: what an earlier one left in its queue would count as waiting.

    Args:
        work: the step; several ranks must all call it.
        warm: how often it runs before.
        inner: keep operators that ran inside another one, too.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    for _ in range(warm):
        work()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = schedule(wait=0, warmup=1, active=1, repeat=1)
        with profile(activities=kinds, schedule=plan) as seen:
            for _ in range(2):
                work()
                if on_gpu:
                    torch.cuda.synchronize()
                seen.step()
    found = [span for event in seen.events() if (span := _span(torch, event)) is not None]
    return from_zero(found if inner else outermost(found))


def _span(torch: Any, event: Any) -> Span | None:
    begun, ended = event.time_range.start / 1e3, event.time_range.end / 1e3
    on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
    lane = lane_of(event, on_gpu=on_gpu)
    return None if lane is None else (lane, event.name, begun, ended)


def is_annotation(event: Any) -> bool:
    """Whether an event on the GPU's lane only says which kernels belong together.

    A "#" in the name does not tell: PyTorch's elementwise kernels, such as a ReLU's or a cast's,
    are C++ lambdas, which CUDA names "{lambda(int)#1}".
    """
    return bool(getattr(event, "is_user_annotation", False)) or event.name.startswith(ANNOTATIONS)


def lane_of(event: Any, *, on_gpu: bool) -> str | None:
    """Where an event of the profiler's belongs; nowhere if it only wraps others."""
    name = event.name
    if name.startswith(MESSAGE):
        return MESSAGES
    if on_gpu:
        return None if is_annotation(event) else KERNELS
    if name.startswith(LAUNCH):
        return LAUNCHES
    return OPERATORS if name.startswith("aten::") else None


def outermost(spans: Iterable[Span]) -> Iterator[Span]:
    """Without operators that ran inside another one; messages may overlap one another."""
    covered = float("-inf")
    for span in sorted(spans, key=lambda one: (one[2], -one[3])):
        if span[0] == OPERATORS:
            if span[3] <= covered:
                continue
            covered = span[3]
        yield span


def from_zero(spans: Iterable[Span]) -> list[Span]:
    """The first begins at 0; of very many the longest are kept."""
    found = sorted(spans, key=lambda one: one[2] - one[3])[:MOST_SPANS]
    first = min((begun for _, _, begun, _ in found), default=0.0)
    moved = [(lane, name, begun - first, ended - first) for lane, name, begun, ended in found]
    return sorted(moved, key=lambda one: one[2])


def busy_ms(spans: Iterable[Span], *lanes: str) -> float:
    """How long at least one operation of these lanes ran; overlapping ones count once."""
    total, covered = 0.0, float("-inf")
    for _, _, begun, ended in sorted((one for one in spans if one[0] in lanes), key=lambda s: s[2]):
        total += max(0.0, ended - max(begun, covered))
        covered = max(covered, ended)
    return total


def hidden_ms(spans: Iterable[Span]) -> float:
    """How long messages travelled while something was computed."""
    known = list(spans)
    computing = KERNELS if any(one[0] == KERNELS for one in known) else OPERATORS
    both = busy_ms(known, MESSAGES, computing)
    return busy_ms(known, MESSAGES) + busy_ms(known, computing) - both

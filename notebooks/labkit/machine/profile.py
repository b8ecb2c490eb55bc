"""Where a step's time goes: operations that the SMs limit, and operations that the memory limits.

In a child only. Every operation's bytes and FLOPs are counted from its tensors, and its time is
PyTorch's own profiler's. What does more operations a byte than the ridge of the roofs is limited by
the SMs, all else by the memory; a kernel's name says nothing about that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.arguments import public
from labkit.machine.dispatch import watching

CALLS = 3


@dataclass
class OperationCount:
    """Bytes that an operation reads and writes, and its floating-point operations."""

    moved: int = 0
    flops: int = 0


@public
def profile_of(work: Callable[[], Any], ridge: float) -> dict[str, float]:
    """Milliseconds of one call by what limits them: `sm_ms` and `memory_ms`; and `operations`.

    Args:
        work: the step, which runs a few times.
        ridge: operations per byte at which the roof of the memory meets that of arithmetic (T-4).
    """
    work()
    return by_limit(_milliseconds(work), count_operations(work), ridge)


def by_limit(
    took: Mapping[str, float], counted: Mapping[str, OperationCount], ridge: float
) -> dict[str, float]:
    """Sort milliseconds by operation into those right of the ridge and those left of it."""
    found = {"sm_ms": 0.0, "memory_ms": 0.0, "operations": float(len(took))}
    for name, milliseconds in took.items():
        known = counted.get(name, OperationCount())
        is_arithmetic = known.flops > ridge * known.moved
        found["sm_ms" if is_arithmetic else "memory_ms"] += milliseconds
    return found


def count_operations(work: Callable[[], Any]) -> dict[str, OperationCount]:
    """The bytes and FLOPs of one call, by operation: `aten::mm` and the like."""
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    counted: dict[str, OperationCount] = {}

    def note(called: Any, args: Any, kwargs: Any, made: Any) -> None:
        one = counted.setdefault(called._schema.name, OperationCount())
        tensors = [t for t in tree_leaves((args, kwargs, made)) if hasattr(t, "nbytes")]
        one.moved += sum(tensor.nbytes for tensor in tensors)
        if (flops_of := flop_registry.get(called._overloadpacket)) is not None:
            one.flops += int(flops_of(*args, **kwargs, out_val=made))

    with watching(note):
        work()
    return counted


def _milliseconds(work: Callable[[], Any]) -> dict[str, float]:
    """The time of each operation itself in one call: of its kernels on a GPU, of the CPU's else."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=kinds) as seen:
            for _ in range(CALLS):
                work()
            if on_gpu:
                torch.cuda.synchronize()
        events = [one for one in seen.key_averages() if one.key.startswith("aten::")]
    spent = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times = {one.key: getattr(one, spent) / 1e3 / CALLS for one in events}
    return {name: milliseconds for name, milliseconds in times.items() if milliseconds > 0}

"""Where a step's time goes: kernels that the SMs limit, and kernels that the memory limits.

In a child only. PyTorch's own profiler names every kernel and its time; a product of matrices, a
convolution or attention is arithmetic, all else (adding, casting, Adam) reads and writes more than
it computes. On a CPU the operators are told apart in the same way.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from labkit.arguments import public
from labkit.machine.spans import is_annotation

ARITHMETIC = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|sdpa|flash|fmha|conv|aten::(addmm|mm|bmm|baddbmm|linear)$"
    r"|mkldnn|scaled_dot_product",
    re.IGNORECASE,
)
CALLS = 3


@public
def profile_of(work: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of one call by what limits them: `sm_ms` and `memory_ms`; and `kernels`.

    Args:
        work: the step, which runs a few times.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    work()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=kinds) as seen:
            for _ in range(CALLS):
                work()
            if on_gpu:
                torch.cuda.synchronize()
        spans = list(_on_gpu(torch, seen.events()) if on_gpu else _on_cpu(seen.events()))
    return by_limit(spans)


def by_limit(spans: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sort names and microseconds of `CALLS` calls into the two kinds."""
    found = {"sm_ms": 0.0, "memory_ms": 0.0, "kernels": 0.0}
    for name, microseconds in spans:
        kind = "sm_ms" if ARITHMETIC.search(name) else "memory_ms"
        found[kind] += microseconds / 1e3 / CALLS
        found["kernels"] += 1 / CALLS
    return found


def _on_gpu(torch: Any, events: Any) -> Iterable[tuple[str, float]]:
    for event in events:
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu and not is_annotation(event):
            yield event.name, event.device_time


def _on_cpu(events: Any) -> Iterable[tuple[str, float]]:
    for event in events:
        if event.name.startswith("aten::"):
            yield event.name, event.self_cpu_time_total

"""Out of memory, in all the forms it takes, and how much a function needs at its peak.

On a MIG slice the allocator's own report fails, and what arrives is an internal assertion instead
of an OutOfMemoryError (pytorch issues 112377, 122068, 197312). Both mean the same thing to a
student.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from labkit.errors import OutOfMemory

SIGNS = (
    "out of memory",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "cudaErrorMemoryAllocation",
)


def is_out_of_memory(kind: str, message: str) -> bool:
    """Whether memory was full: torch's clean error, MIG's broken one, or the CPU's."""
    return kind in ("OutOfMemoryError", "MemoryError") or any(sign in message for sign in SIGNS)


def out_of_memory_sentence(error: Mapping[str, Any]) -> str:
    """What the student is told, their own line first."""
    place = f"line {error['line']} of the cell:   {error['text']}\n" if "line" in error else ""
    broken = "INTERNAL ASSERT" in error["message"]
    odd = (
        " (torch reports this on a MIG slice as an internal assertion; it means the same)"
        if broken
        else ""
    )
    return (
        f"{place}Out of memory{odd}. The work needs more than this device has free: "
        "make the batch or the model smaller, use a 16-bit type, or ask for a bigger slice. "
        "The process that ran out is gone, so its memory is free again."
    )


async def largest_that_fits(
    fits: Callable[[int], Awaitable[Any]], low: int, high: int, *, step: int = 1
) -> tuple[int | None, tuple[tuple[int, bool], ...]]:
    """Find by bisection the largest size that fits in memory; each try is a process of its own.

    Args:
        fits: tries one size; raises OutOfMemory when it does not fit.
        low: the smallest size tried.
        high: the largest size tried.
        step: sizes are `low` plus a multiple of this.

    Returns:
        The largest size that fits (None when not even `low` does) and every try in order.
    """
    tries: list[tuple[int, bool]] = []
    best: int | None = None
    first, last = 0, (high - low) // step
    while first <= last:
        middle = (first + last) // 2
        size = low + middle * step
        try:
            await fits(size)
        except OutOfMemory:
            tries.append((size, False))
            last = middle - 1
        else:
            tries.append((size, True))
            best, first = size, middle + 1
    return best, tuple(tries)

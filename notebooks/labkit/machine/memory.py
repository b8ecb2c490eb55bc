"""Out of memory, in all the forms it takes.

On a MIG slice the allocator's own report fails, and what arrives is an internal assertion instead
of an OutOfMemoryError (pytorch issues 112377, 122068, 197312). Both mean the same thing to a
student.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

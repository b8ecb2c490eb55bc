"""A make-believe slice on a bigger GPU: fewer SMs, less memory, MIG's own out-of-memory error.

For rehearsing notebooks where no MIG GPU is at hand. `LABKIT_EMULATE="sms=16,memory_mib=4352"`
turns it on, every record then says "emulated". Bandwidth and L2 are *not* divided, so nothing
emulated is a result about MIG.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.errors import LabError

VARIABLE = "LABKIT_EMULATE"
_ENTERED: list[Any] = []  # a context that nobody holds is destroyed under the work that runs in it
MIG_OOM = (
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp", '
    "as a MIG slice says when memory is full"
)


@dataclass(frozen=True)
class Emulation:
    """How small the make-believe slice is; None leaves that side whole."""

    sms: int | None = None
    memory_mib: int | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Emulation:
        """Read LABKIT_EMULATE.

        Raises:
            LabError: it is not of the form sms=16,memory_mib=4352.
        """
        text = environ.get(VARIABLE, "").strip()
        parts = [part.partition("=")[::2] for part in text.split(",") if part]
        try:
            return cls(**{name: int(value) for name, value in parts})
        except (TypeError, ValueError):
            raise LabError(
                f"{VARIABLE}={text!r} is not understood; write for example sms=16,memory_mib=4352"
            ) from None

    def apply(self, torch: Any) -> None:
        """Confine this process; on a machine without a GPU there is nothing to confine."""
        if not torch.cuda.is_available():
            return
        if self.memory_mib is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self.memory_mib * 2**20 / total))
        if self.sms is not None:
            enter_green_context(torch, self.sms)

    @contextlib.contextmanager
    def translating(self, torch: Any) -> Iterator[None]:
        """Raise the broken error a MIG slice raises instead of torch's clean one."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            if self.memory_mib is None:
                raise
            raise RuntimeError(MIG_OOM).with_traceback(error.__traceback__) from None


def enter_green_context(torch: Any, sms: int) -> None:
    """Confine this process's current stream to about `sms` SMs.

    The driver rounds up (to multiples of 2 on an A100, of 8 on Hopper).
    """
    context = green_context(sms)
    torch.cuda.set_stream(context.Stream())  # follows the work into autograd's threads
    _ENTERED.append(context)


def green_context(sms: int) -> Any:
    """Some of the SMs, for streams of their own.

    Raises:
        LabError: this torch (before 2.11), CUDA or driver has no green contexts.
    """
    try:
        from torch.cuda.green_contexts import GreenContext

        return GreenContext.create(num_sms=sms, device_id=0)
    except (ImportError, RuntimeError, NotImplementedError, OSError) as error:
        raise LabError(f"This machine cannot partition its SMs: {error}") from error

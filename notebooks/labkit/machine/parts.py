"""Less than the whole device: parts of it, and a make-believe slice for rehearsals.

A part has some of the SMs (green contexts), on a CPU some of the threads. It has its own SMs, but
shares memory and L2 with the rest: that is the difference to a slice, and two experiments are about
it. Part and whole live in one child and take turns.

`LABKIT_EMULATE="sms=16,memory_mib=4352"` makes a slice on a bigger GPU: fewer SMs, less memory,
MIG's own out-of-memory error; every record then says "emulated". Bandwidth and L2 are *not*
divided, so nothing emulated is a result about MIG.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.arguments import public
from labkit.errors import LabError
from labkit.records import Place

FRACTIONS = (8, 4, 2)
GRAPH, PYTHON = "CUDA graph", "launched by Python"


@dataclass(frozen=True)
class Parts:
    """The sizes a device can be cut to, in `unit`s (SMs or threads); `sizes` leave out the whole.

    Parts of a CPU are threads: "scaled down", a picture of the method and no result about a GPU.
    """

    unit: str
    whole: int
    sizes: tuple[int, ...]

    def named(self, size: int) -> str:
        """A size in words, "1 thread"."""
        return f"{size} {self.unit.removesuffix('s') if size == 1 else self.unit}"

    @property
    def half(self) -> int:
        """The largest part that is not the whole; the whole where nothing smaller exists."""
        return self.sizes[-1] if self.sizes else self.whole


@public
def parts_of(place: Place) -> Parts:
    """The sizes that the (first) device held here can be cut into.

    Green contexts come in steps of 2 SMs, at least 4, up to compute capability 8, and of 8 from 9
    on (CUDA driver API 13.2).
    """
    device = place.devices[0]
    if device.backend == "cpu" or device.sms is None:
        return Parts("threads", device.threads, _part_sizes(device.threads, 1, 1))
    newer = int((device.capability or "8").split(".")[0]) >= 9
    step, smallest = (8, 8) if newer else (2, 4)
    return Parts("SMs", device.sms, _part_sizes(device.sms, step, smallest))


@public
def launches(place: Place) -> Mapping[str, bool]:
    """How a small step can be launched here, by name: whether it is a CUDA graph, the graph first.

    Launched by Python, a small step times Python. A CPU has no graphs and one way without a name.
    """
    return {GRAPH: True, PYTHON: False} if place.devices[0].backend == "cuda" else {"": False}


def _part_sizes(all_units: int, step: int, smallest: int) -> tuple[int, ...]:
    cut = {max(smallest, all_units // fraction // step * step) for fraction in FRACTIONS}
    return tuple(sorted(size for size in cut if size < all_units))


@public
def on_part(
    function: Callable[..., Any], size: int | None, *, graph: bool = False
) -> Callable[..., Any]:
    """The same function, confined to a part of the device; None leaves it the whole device.

    Args:
        function: as for `labkit.measure`; it must return the function to be timed.
        size: SMs, or threads on a CPU.
        graph: replay the work's kernels as a CUDA graph, so that Python is not timed.
    """

    def on_a_part(**arguments: Any) -> Any:
        from labkit.machine import parts

        return parts.confined(function(**arguments), size, graph=graph)

    return on_a_part


@public
def confined(
    work: Callable[[], Any], size: int | None, *, graph: bool = False
) -> Callable[[], Any]:
    """Make `work` run on a part of this process's device; in a child only.

    A graph is recorded on the part: its kernels stay there wherever it is replayed (counted on an
    H200: 16 SMs from a graph recorded on 16).

    Raises:
        LabError: there is no function to be timed, or the SMs cannot be partitioned here.
    """
    import torch

    if not callable(work):
        raise LabError("A function that runs on a part must return the function to be timed.")
    if not torch.cuda.is_available():
        return work if size is None else _confine_to_threads(work, size)
    if size is None:
        return _as_cuda_graph(work) if graph else work
    return _confine_to_sms(torch, work, size, graph=graph)


def _confine_to_threads(work: Callable[[], Any], threads: int) -> Callable[[], Any]:
    import torch

    def confined_work() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            work()
        finally:
            torch.set_num_threads(before)

    return confined_work


def _confine_to_sms(
    torch: Any, work: Callable[[], Any], sms: int, *, graph: bool
) -> Callable[[], Any]:
    context = _green_context(sms)
    stream, kept_alive = context.Stream(), [context]  # nobody else holds it: it would be destroyed
    if graph:
        work = _as_cuda_graph(work, stream)

    def confined_work() -> None:
        outer = torch.cuda.current_stream()
        stream.wait_stream(outer)
        with torch.cuda.stream(stream):
            work()
        assert kept_alive, "the context must outlive its stream"
        outer.wait_stream(stream)

    return confined_work


WARM_CALLS = 3  # the first calls allocate and choose kernels, which no graph may record


def _as_cuda_graph(work: Callable[[], Any], stream: Any = None) -> Callable[[], Any]:
    """Record the work's kernels once, to be replayed as a CUDA graph; on a CPU the work itself.

    Args:
        work: always does the same, on the same tensors, without asking the GPU for a result.
        stream: where it is recorded; None takes the current one, or a new one beside the default.
    """
    import torch

    if not torch.cuda.is_available():
        return work
    current = torch.cuda.current_stream()
    if stream is None:
        is_default = current == torch.cuda.default_stream()
        stream = torch.cuda.Stream() if is_default else current
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(WARM_CALLS):
            work()
    current.wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    kept_alive = (graph, work)  # the graph reads and writes the work's tensors

    def replay() -> None:
        kept_alive[0].replay()

    return replay


EMULATE = "LABKIT_EMULATE"
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
        text = environ.get(EMULATE, "").strip()
        parts = [part.partition("=")[::2] for part in text.split(",") if part]
        try:
            return cls(**{name: int(value) for name, value in parts})
        except (TypeError, ValueError):
            raise LabError(
                f"{EMULATE}={text!r} is not understood; write for example sms=16,memory_mib=4352"
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
    context = _green_context(sms)
    torch.cuda.set_stream(context.Stream())  # follows the work into autograd's threads
    _ENTERED.append(context)


def _green_context(sms: int) -> Any:
    """Some of the SMs, for streams of their own.

    Raises:
        LabError: this torch (before 2.11), CUDA or driver has no green contexts.
    """
    try:
        from torch.cuda.green_contexts import GreenContext

        return GreenContext.create(num_sms=sms, device_id=0)
    except (ImportError, RuntimeError, NotImplementedError, OSError) as error:
        raise LabError(f"This machine cannot partition its SMs: {error}") from error

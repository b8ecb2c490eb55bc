"""Parts of what the student holds: some of its SMs (green contexts), on a CPU some of its threads.

A part has its own SMs, but shares memory and L2 with the rest: that is the difference to a slice,
and two experiments are about it. Part and whole live in one child and take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from labkit.arguments import public
from labkit.errors import LabError
from labkit.machine.emulate import green_context
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
    """What the (first) device held here can be cut into.

    Green contexts come in steps of 2 SMs, at least 4, up to compute capability 8, and of 8 from 9
    on (CUDA driver API 13.2).
    """
    held = place.devices[0]
    if held.backend == "cpu" or held.sms is None:
        return Parts("threads", held.threads, _sizes(held.threads, 1, 1))
    newer = int((held.capability or "8").split(".")[0]) >= 9
    step, least = (8, 8) if newer else (2, 4)
    return Parts("SMs", held.sms, _sizes(held.sms, step, least))


@public
def launches(place: Place) -> Mapping[str, bool]:
    """How a small step can be launched here, by name: whether it is a CUDA graph, the graph first.

    Launched by Python, a small step times Python. A CPU has no graphs and one way without a name.
    """
    return {GRAPH: True, PYTHON: False} if place.devices[0].backend == "cuda" else {"": False}


def _sizes(whole: int, step: int, least: int) -> tuple[int, ...]:
    cut = {max(least, whole // fraction // step * step) for fraction in FRACTIONS}
    return tuple(sorted(size for size in cut if size < whole))


@public
def on_part(
    function: Callable[..., Any], size: int | None, *, graph: bool = False
) -> Callable[..., Any]:
    """The same function, confined to a part; None leaves it the whole.

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
        return work if size is None else _on_threads(work, size)
    if size is None:
        return graphed(work) if graph else work
    return _on_sms(torch, work, size, graph=graph)


def _on_threads(work: Callable[[], Any], threads: int) -> Callable[[], Any]:
    import torch

    def confined_work() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            work()
        finally:
            torch.set_num_threads(before)

    return confined_work


def _on_sms(torch: Any, work: Callable[[], Any], sms: int, *, graph: bool) -> Callable[[], Any]:
    context = green_context(sms)
    stream, held = context.Stream(), [context]  # nobody else holds it: it would be destroyed
    if graph:
        work = graphed(work, stream)

    def confined_work() -> None:
        outer = torch.cuda.current_stream()
        stream.wait_stream(outer)
        with torch.cuda.stream(stream):
            work()
        assert held, "the context must outlive its stream"
        outer.wait_stream(stream)

    return confined_work


WARM_CALLS = 3  # the first calls allocate and choose kernels, which no graph may record


def graphed(work: Callable[[], Any], stream: Any = None) -> Callable[[], Any]:
    """The work's kernels, recorded once and replayed; on a CPU the work itself.

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
    held = (graph, work)  # the graph reads and writes the work's tensors: they must live as long

    def replay() -> None:
        held[0].replay()

    return replay

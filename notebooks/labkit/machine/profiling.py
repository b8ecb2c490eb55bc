"""A training step taken apart: when its operations ran, what limited them, what it held in memory.

Times are PyTorch's own profiler's; bytes and operations are counted from the tensors that each
operation gets and makes. What runs a step belongs into a child; the rest is pure.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.arguments import public
from labkit.errors import WrongArgument

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
    from torch.profiler import schedule

    for _ in range(warm):
        work()
    with _profiler(schedule=schedule(wait=0, warmup=1, active=1, repeat=1)) as profiler:
        for _ in range(2):
            work()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            profiler.step()
    spans = [span for event in profiler.events() if (span := _span(torch, event)) is not None]
    return _shifted_to_zero(spans if inner else outermost(spans))


@contextmanager
def _profiler(**options: Any) -> Iterator[Any]:
    """Run PyTorch's profiler on the CPU, and on the GPU if there is one, without its warnings."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profile(activities=kinds, **options) as profiler:
            yield profiler


def _span(torch: Any, event: Any) -> Span | None:
    on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
    lane, time = lane_of(event, on_gpu=on_gpu), event.time_range
    return None if lane is None else (lane, event.name, time.start / 1e3, time.end / 1e3)


def lane_of(event: Any, *, on_gpu: bool) -> str | None:
    """Where an event of the profiler's belongs; nowhere if it only wraps others.

    On a GPU these are annotations. A "#" in the name does not tell them: PyTorch's elementwise
    kernels, such as a ReLU's or a cast's, are C++ lambdas, which CUDA names "{lambda(int)#1}".
    """
    name = event.name
    if name.startswith(MESSAGE):
        return MESSAGES
    if on_gpu:
        is_annotation = getattr(event, "is_user_annotation", False) or name.startswith(ANNOTATIONS)
        return None if is_annotation else KERNELS
    if name.startswith(LAUNCH):
        return LAUNCHES
    return OPERATORS if name.startswith("aten::") else None


def outermost(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans without operators that ran inside others; messages may overlap."""
    covered = float("-inf")
    for span in sorted(spans, key=lambda s: (s[2], -s[3])):
        if span[0] == OPERATORS:
            if span[3] <= covered:
                continue
            covered = span[3]
        yield span


def _shifted_to_zero(spans: Iterable[Span]) -> list[Span]:
    """Shift the spans so that the first begins at 0; of very many, keep the longest."""
    longest = sorted(spans, key=lambda s: s[2] - s[3])[:MOST_SPANS]
    first = min((begin for _, _, begin, _ in longest), default=0.0)
    shifted = [(lane, name, begin - first, end - first) for lane, name, begin, end in longest]
    return sorted(shifted, key=lambda s: s[2])


def busy_ms(spans: Iterable[Span], *lanes: str) -> float:
    """How long at least one operation of these lanes ran; overlapping ones count once."""
    total, covered = 0.0, float("-inf")
    for _, _, begin, end in sorted(
        (span for span in spans if span[0] in lanes), key=lambda s: s[2]
    ):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


def hidden_ms(spans: Iterable[Span]) -> float:
    """How long messages travelled while something was computed."""
    all_spans = list(spans)
    computing = KERNELS if any(span[0] == KERNELS for span in all_spans) else OPERATORS
    either = busy_ms(all_spans, MESSAGES, computing)
    return busy_ms(all_spans, MESSAGES) + busy_ms(all_spans, computing) - either


CALLS = 3  # of which the mean is taken


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
    return by_limit(_milliseconds(work), _count_operations(work), ridge)


def by_limit(
    milliseconds_by_operation: Mapping[str, float],
    counts: Mapping[str, OperationCount],
    ridge: float,
) -> dict[str, float]:
    """Sort milliseconds by operation into those right of the ridge and those left of it."""
    totals = {"sm_ms": 0.0, "memory_ms": 0.0, "operations": float(len(milliseconds_by_operation))}
    for name, milliseconds in milliseconds_by_operation.items():
        count = counts.get(name, OperationCount())
        is_arithmetic = count.flops > ridge * count.moved
        totals["sm_ms" if is_arithmetic else "memory_ms"] += milliseconds
    return totals


def _count_operations(work: Callable[[], Any]) -> dict[str, OperationCount]:
    """The bytes and FLOPs of one call, by operation: `aten::mm` and the like."""
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    counts: dict[str, OperationCount] = {}

    def note(operation: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        count = counts.setdefault(operation._schema.name, OperationCount())
        tensors = [t for t in tree_leaves((args, kwargs, outputs)) if hasattr(t, "nbytes")]
        count.moved += sum(tensor.nbytes for tensor in tensors)
        if (flops_of := flop_registry.get(operation._overloadpacket)) is not None:
            count.flops += int(flops_of(*args, **kwargs, out_val=outputs))

    with watching(note):
        work()
    return counts


def _milliseconds(work: Callable[[], Any]) -> dict[str, float]:
    """The time of each operation itself in one call: of its kernels on a GPU, of the CPU's else."""
    import torch

    on_gpu = torch.cuda.is_available()
    with _profiler() as profiler:
        for _ in range(CALLS):
            work()
        if on_gpu:
            torch.cuda.synchronize()
    time_field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    events = [event for event in profiler.key_averages() if event.key.startswith("aten::")]
    times = {event.key: getattr(event, time_field) / 1e3 / CALLS for event in events}
    return {name: milliseconds for name, milliseconds in times.items() if milliseconds > 0}


PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimiser"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARIES)
MIB = 2**20


class _LiveTensors:
    """The storages that are alive, each with its bytes and its kind, and the most there were.

    Attributes:
        most: of each kind, the most bytes at any moment.
        at_peak: the bytes of each kind at the moment when all kinds together were the most.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._bytes_now = dict.fromkeys(KINDS, 0)
        self.most, self.at_peak = dict(self._bytes_now), dict(self._bytes_now)

    def note(self, tensor: Any, kind: str = TEMPORARIES) -> None:
        """Count a tensor; a later note may give a temporary its kind."""
        storage = tensor.untyped_storage()
        key = id(storage)  # one object for as long as the storage lives
        if key in self._live:
            self._reclassify(key, kind)
            return
        self._live[key] = (
            weakref.ref(storage, lambda _: self._forget(key)),
            storage.nbytes(),
            kind,
        )
        self._add_bytes(kind, storage.nbytes())

    def _reclassify(self, key: int, kind: str) -> None:
        reference, size, before = self._live[key]
        if before == TEMPORARIES and kind != TEMPORARIES:
            self._live[key] = (reference, size, kind)
            self._bytes_now[before] -= size
            self._add_bytes(kind, size)

    def _forget(self, key: int) -> None:
        _, size, kind = self._live.pop(key)
        self._bytes_now[kind] -= size

    def _add_bytes(self, kind: str, size: int) -> None:
        self._bytes_now[kind] += size
        self.most[kind] = max(self.most[kind], self._bytes_now[kind])
        if sum(self._bytes_now.values()) > sum(self.at_peak.values()):
            self.at_peak = dict(self._bytes_now)

    def begin(self) -> None:
        """Restart the peaks from what is alive now."""
        self.most, self.at_peak = dict(self._bytes_now), dict(self._bytes_now)


@public
def count_step(step: Callable[[], Any], network: Any, *optimizers: Any) -> dict[str, float]:
    """Run a training step twice and count the second: MiB by kind, and at the fullest moment.

    Args:
        step: forward, backward, optimizer and `zero_grad`.
        network: its parameters and gradients are told from the rest.
        optimizers: their state is, too; the first step makes it.

    Returns:
        Of each kind the most MiB at any moment; "peak", the most of all kinds together; and "at the
        peak: …", what that peak is made of. Not all kinds are at their most at one moment, so the
        peak is at most their sum.
    """
    if not hasattr(network, "parameters") or not all(
        hasattr(optimizer, "state") for optimizer in optimizers
    ):
        raise WrongArgument(
            "count_step takes the step, then the network (a `torch.nn.Module`) and its optimizers, "
            f"not {network!r:.60}."
        )
    live = _LiveTensors()
    for parameter in network.parameters():
        live.note(parameter, PARAMETERS)
    with _recording_tensors(live, network):
        step()
        states = (state for optimizer in optimizers for state in optimizer.state.values())
        for value in (value for state in states for value in state.values()):
            if hasattr(value, "untyped_storage"):
                live.note(value, OPTIMIZER)
        live.begin()
        step()
    most_mib = {kind: size / MIB for kind, size in live.most.items()}
    parts = {f"at the peak: {kind}": size / MIB for kind, size in live.at_peak.items()}
    return most_mib | {"peak": sum(live.at_peak.values()) / MIB} | parts


@contextmanager
def _recording_tensors(live: _LiveTensors, network: Any) -> Iterator[None]:
    """Note every tensor that is made, kept for the backward pass, or becomes a gradient."""
    import torch
    from torch.utils._pytree import tree_leaves

    def note(_: Any, __: Any, ___: Any, outputs: Any) -> None:
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, torch.Tensor):
                live.note(leaf)

    def keep(tensor: Any) -> Any:
        live.note(tensor, ACTIVATIONS)
        return tensor.detach()  # the tensor itself would keep its own graph alive

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda p: live.note(p.grad, GRADIENTS))
        for parameter in network.parameters()
        if parameter.requires_grad
    ]
    try:
        with watching(note), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def watching(note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> Any:
    """A context in which each operation of this thread is told to `note` when it has run.

    Args:
        note: is told the operation, what it was given, by place and by name, and what it made.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_dispatch__(
            self, operation: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            outputs = operation(*args, **(kwargs or {}))
            note(operation, args, kwargs or {}, outputs)
            return outputs

    return Watching()

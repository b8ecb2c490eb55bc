"""What a sharded training needs: collectives, layers in units, Adam by parts, and counters.

Everything here is in host memory and over gloo, on every tier, so that bytes and memory can be
counted in the same way wherever the ranks are. It runs in the child, and wakes torch there.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.arguments import public
from labkit.errors import NotMeasured
from labkit.machine.profiling import MIB

BYTES_SENT = 200  # its offset in Linux's tcp_info (include/uapi/linux/tcp.h), from 4.19 on
TCP_INFO_BYTES = BYTES_SENT + 8
MEMORY_EVENT = "[memory]"  # of an allocation or a release, in a trace of torch's profiler
RATE, DECAYS, EPSILON = 1e-3, (0.9, 0.999), 1e-8  # Adam's, as in torch


class Ring:
    """The collectives of a sharded step between ranks that are processes, each as a ring.

    A ring sends (n-1)/n of the whole tensor for a reduce-scatter, and as much for an all-gather.
    torch's own reduce-scatter over gloo sends twice that, because it is an all-reduce of which each
    rank keeps its part (torch 2.13).

    Attributes:
        messages: how many this rank has sent.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist, self.group = dist, dist.new_group(backend="gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.messages = 0

    def reduce_scatter(self, tensor: Any) -> Any:
        """Return this rank's part of the ranks' sum; the tensor stays as it is."""
        parts = tensor.chunk(self.world)
        carried = parts[self.rank - 1]
        for step in range(self.world - 1):
            carried = self._pass_on(carried).add_(parts[(self.rank - step - 2) % self.world])
        return carried

    def all_gather(self, part: Any) -> Any:
        """Return all ranks' parts as one tensor.

        It is written into the tensor that the part is a view of, if that is the whole one, and
        into a new one otherwise.
        """
        gathered = part._base
        if gathered is None or gathered.numel() != self.world * part.numel():
            gathered = part.new_empty(self.world * part.numel())
        slots = gathered.chunk(self.world)
        slots[self.rank].copy_(part)
        for step in range(self.world - 1):
            before = (self.rank - step - 1) % self.world
            self._pass_on(slots[(self.rank - step) % self.world], slots[before])
        return gathered

    def all_reduce(self, tensor: Any) -> Any:
        """Add up the ranks' tensors in place, and return the sum."""
        slot = tensor.chunk(self.world)[self.rank]
        return self.all_gather(slot.copy_(self.reduce_scatter(tensor)))

    def _pass_on(self, outgoing: Any, incoming: Any = None) -> Any:
        """Send a tensor to the next rank, and receive the previous rank's."""
        incoming = outgoing.new_empty(outgoing.shape) if incoming is None else incoming
        self.messages += 1
        sending = self._dist.isend(outgoing, (self.rank + 1) % self.world, group=self.group)
        self._dist.recv(incoming, (self.rank - 1) % self.world, group=self.group)
        sending.wait()
        return incoming


class UnitLayers:
    """Square layers with ReLU, in units; the weights of a unit are one flat tensor.

    Forward and backward are written out, without autograd: what is kept, and for how long, is
    whatever the caller holds. Nothing is kept but the layers' inputs and results.

    Args:
        width: of every layer.
        depth: layers of the network.
        units: into how many the layers are divided; all of them have as many.
    """

    def __init__(self, width: int, depth: int, units: int) -> None:
        self.width, self.units, self.layers_of_unit = width, units, depth // units
        self._kept: dict[int, list[Any]] = {}

    @property
    def unit_size(self) -> int:
        """How many weights a unit has."""
        return self.layers_of_unit * self.width**2

    def first_weights(self, number: int) -> Any:
        """The weights that a unit begins with, on every rank the same."""
        import torch

        luck = torch.Generator().manual_seed(number)
        weights = torch.empty(self.unit_size)
        return weights.normal_(generator=luck).mul_((2 / self.width) ** 0.5)

    def forward(self, number: int, x: Any, weights: Any) -> Any:
        """Return the unit's result; its layers' inputs are kept for the backward pass."""
        results = [x]
        for matrix in self._matrices(weights):
            results.append((results[-1] @ matrix).relu_())
        self._kept[number] = results
        return results[-1]

    def backward(self, number: int, delta: Any, weights: Any) -> tuple[Any, Any]:
        """Return the gradient of the unit's input, and that of its weights, which is flat."""
        results = self._kept.pop(number)
        gradient = weights.new_empty(self.unit_size)
        matrices, gradients = self._matrices(weights), self._matrices(gradient)
        for layer in reversed(range(self.layers_of_unit)):
            of_sum = delta * (results[layer + 1] > 0)
            gradients[layer].copy_(results[layer].T @ of_sum)
            delta = of_sum @ matrices[layer].T
        return delta, gradient

    def gradients_of(
        self, x: Any, weights: Sequence[Any], ready: Callable[[int, Any], None]
    ) -> None:
        """Go forward and backward with whole weights; the loss is the mean square over two.

        Args:
            x: this rank's samples.
            weights: of every unit.
            ready: takes a unit's number and its gradient, the last unit's first, as soon as the
                backward pass has made it; nothing else holds the gradient.
        """
        for number, unit_weights in enumerate(weights):
            x = self.forward(number, x, unit_weights)
        delta = x / x.numel()
        for number in reversed(range(self.units)):
            delta, gradient = self.backward(number, delta, weights[number])
            ready(number, gradient)
            del gradient

    def _matrices(self, flat: Any) -> Any:
        return flat.view(self.layers_of_unit, self.width, self.width)


class PartAdam:
    """Adam for parts of weights; only the parts that it is given have their moments on this rank.

    It writes the new part over the old one, and uses the gradient's memory for what it computes.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[Any, Any]] = {}
        self._steps: dict[int, int] = {}

    def step(self, number: int, part: Any, gradient: Any) -> Any:
        """Take a step with one unit's part, and return it."""
        if number not in self._states:
            self._states[number] = (part.new_zeros(part.shape), part.new_zeros(part.shape))
        mean, square = self._states[number]
        steps = self._steps[number] = self._steps.get(number, 0) + 1
        mean.mul_(DECAYS[0]).add_(gradient, alpha=1 - DECAYS[0])
        square.mul_(DECAYS[1]).addcmul_(gradient, gradient, value=1 - DECAYS[1])
        root = gradient.copy_(square).div_(1 - DECAYS[1] ** steps).sqrt_().add_(EPSILON)
        return part.addcdiv_(mean, root, value=-RATE / (1 - DECAYS[0] ** steps))


@public
def sent_bytes() -> int:
    """The bytes that this process has sent over its open TCP connections, as Linux counts them.

    Raises:
        NotMeasured: this system does not say.
    """
    counts = [_sent_by(int(entry.name)) for entry in Path("/proc/self/fd").iterdir()]
    counted = [count for count in counts if count is not None]
    if not counted:
        raise NotMeasured("This system does not say how many bytes a connection has sent.")
    return sum(counted)


def _sent_by(descriptor: int) -> int | None:
    """The bytes sent over one connection; None if the descriptor is none."""
    try:
        duplicate = os.dup(descriptor)
    except OSError:  # it was the listing's own
        return None
    try:
        connection = socket.socket(fileno=duplicate)
    except OSError:  # a file, a pipe or another thing without an address
        os.close(duplicate)
        return None
    with connection:
        return _sent_over(connection)


def _sent_over(connection: socket.socket) -> int | None:
    """The bytes sent over a socket; None if it is no TCP connection, or nothing says so."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < TCP_INFO_BYTES:
        return None
    return int(struct.unpack_from("Q", info, BYTES_SENT)[0])


@public
def peak_mib(work: Callable[[], Any]) -> float:
    """Run something, and return the most MiB of tensors that it held at one moment.

    Every allocation of this thread counts, also those of torch's own C++ code, until it is released
    by whichever thread. What was alive before does not count, so the work should make all of its
    tensors. What gloo's threads allocate is not seen.
    """
    from torch.profiler import ProfilerActivity, profile

    gc.collect()  # modules of an earlier run refer to one another
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    with tempfile.TemporaryDirectory(prefix="labkit-trace-") as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    allocations = [
        (event["ts"], event["args"]["Bytes"], event["args"]["Total Allocated"])
        for event in events
        if event.get("name") == MEMORY_EVENT
    ]
    if not allocations:
        raise NotMeasured("PyTorch's profiler recorded no allocation.")
    return peak_growth(allocations) / MIB


def peak_growth(changes: Sequence[tuple[float, int, int]]) -> int:
    """How far the allocated bytes rose above what they were before the first change.

    Args:
        changes: of every allocation and release its time, its bytes (negative for a release), and
            how many bytes are allocated after it.
    """
    ordered = sorted(changes, key=lambda change: change[0])
    _, first_bytes, first_total = ordered[0]
    return max(total for *_, total in ordered) - (first_total - first_bytes)

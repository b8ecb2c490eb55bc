"""A cluster of eight workers that trains one small model, data-parallel, on shards of one text.

Each worker is a process on the CPU, with one thread; gradients travel in buckets, one a layer, over
the ring of `labkit.exercises.sharding`. What can be wrong with a worker is a subclass that does one
thing otherwise (`labkit.exercises.cluster_faults`), so that whatever is measured is a real effect.

A worker sits at a *place*, which has a shard of the text and a link to the next place. Workers may
be seated otherwise: then a fault of a worker moves with it, and one of a link stays.

It runs in the children, and wakes torch there.
"""

from __future__ import annotations

import functools
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.exercises.sharding import Ring
from labkit.exercises.small_model import text_bytes

WORKERS = 8
CONTEXT, EMBEDDING, WIDTH, VOCABULARY = 8, 16, 64, 256
LAYERS = ("embedding", "first", "second", "output")
SHAPES = (
    (VOCABULARY, EMBEDDING),
    (CONTEXT * EMBEDDING, WIDTH),
    (WIDTH, WIDTH),
    (WIDTH, VOCABULARY),
)
MICRO_BATCHES, SAMPLES = 4, 128  # of a worker in a step
RATE, MOMENTUM, DROPOUT = 0.03, 0.9, 0.2
CHECKPOINT, RESTART, STEPS = 25, 30, 60  # an older checkpoint, the last one, the end
SEED, OTHER_SEED, HELD_OUT_SEED = 1, 2, 3
HELD_OUT_SAMPLES = 2048


@functools.cache
def shards() -> Sequence[Any]:
    """The text that is trained on, a part for each place."""
    import torch

    text = torch.frombuffer(bytearray(text_bytes("train")), dtype=torch.uint8)
    return list(text.chunk(WORKERS))


def samples_at(place: int, step: int) -> Any:
    """A step's samples from a place's shard: by micro-batch, the bytes read and the one after."""
    import torch

    shard = shards()[place]
    luck = torch.Generator().manual_seed(1000 * step + place)
    starts = torch.randint(len(shard) - CONTEXT, (MICRO_BATCHES, SAMPLES), generator=luck)
    return shard[starts[..., None] + torch.arange(CONTEXT + 1)].long()


def first_parameters() -> list[Any]:
    """The parameters that every worker begins with."""
    import torch

    luck = torch.Generator().manual_seed(SEED)
    return [torch.randn(shape, generator=luck) / shape[0] ** 0.5 for shape in SHAPES]


def loss_of(parameters: Sequence[Any], samples: Any, units_on: Any) -> Any:
    """The mean loss of a micro-batch, with some units of both hidden layers switched off."""
    from torch.nn import functional

    table, first, second, output = parameters
    hidden = functional.embedding(samples[:, :CONTEXT], table).flatten(1)
    for matrix in (first, second):
        hidden = (hidden @ matrix).tanh() * units_on
    return functional.cross_entropy(hidden @ output, samples[:, CONTEXT])


class ClockedRing(Ring):
    """The ring, with what its messages took.

    Attributes:
        delay_s: for which each message of this rank is held up by its link.
        sending_s: of each message, how long this rank handed it over to its link.
        waiting_s: of each, how long it waited for the previous rank's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.delay_s = 0.0
        self.sending_s: list[float] = []
        self.waiting_s: list[float] = []

    def _pass_on(self, outgoing: Any, incoming: Any = None) -> Any:
        incoming = outgoing.new_empty(outgoing.shape) if incoming is None else incoming
        began_s = time.perf_counter()
        sending = self.send(outgoing, (self.rank + 1) % self.world)
        sent_s = time.perf_counter()
        self._dist.recv(incoming, (self.rank - 1) % self.world, group=self.group)
        self.sending_s.append(sent_s - began_s)
        self.waiting_s.append(time.perf_counter() - sent_s)
        sending.wait()
        return incoming

    def send(self, tensor: Any, to: int) -> Any:
        """Begin to send a tensor once the link has let it through."""
        if self.delay_s:
            time.sleep(self.delay_s)
        self.messages += 1
        return self._dist.isend(tensor, to, group=self.group)

    def round_trip_s(self, other: int, tries: int = 20) -> float:
        """The shortest of some round trips of a small message; the other rank calls it, too."""
        import torch

        message, seconds = torch.zeros(64), []
        for _ in range(tries):
            began_s = time.perf_counter()
            if self.rank < other:
                self.send(message, other).wait()
                self._dist.recv(message, other, group=self.group)
            else:
                self._dist.recv(message, other, group=self.group)
                self.send(message, other).wait()
            seconds.append(time.perf_counter() - began_s)
        return min(seconds)

    def gathered(self, value: Any) -> list[Any]:
        """What every rank gives, in their order."""
        values: list[Any] = [None] * self.world
        self._dist.all_gather_object(values, value, group=self.group)
        return values


@dataclass
class Checkpoint:
    """What a worker needs to go on: the parameters, and what the optimizer has kept of the past."""

    parameters: list[Any]
    momenta: list[Any]


class ClusterWorker:
    """A worker with which nothing is wrong.

    Args:
        place: where it sits.
        ring: to the other workers.
    """

    seed = SEED
    is_of_the_place = False  # whether a fault stays where it is when workers change places

    def __init__(self, place: int, ring: ClockedRing) -> None:
        import torch

        self.place, self.ring = place, ring
        self.parameters = first_parameters()
        self.momenta = [torch.zeros_like(matrix) for matrix in self.parameters]

    def checkpoint(self) -> Checkpoint:
        """A copy of what it needs to go on."""
        parameters, momenta = (
            [matrix.detach().clone() for matrix in matrices]
            for matrices in (self.parameters, self.momenta)
        )
        return Checkpoint(parameters, momenta)

    def restore(self, last: Checkpoint, older: Checkpoint) -> None:
        """Go on from the last checkpoint; the older one is still on the disk."""
        self.parameters, self.momenta = last.parameters, last.momenta

    def samples(self, step: int) -> Any:
        """The step's samples."""
        return samples_at(self.place, step)

    def units_on(self, step: int) -> Any:
        """A factor for each hidden unit: the run's seed switches the same ones off everywhere."""
        import torch

        luck = torch.Generator().manual_seed(1000 * self.seed + step)
        return (torch.rand(WIDTH, generator=luck) >= DROPOUT) / (1 - DROPOUT)

    def gradients(self, samples: Any, step: int) -> tuple[float, list[Any]]:
        """The mean loss of the micro-batches, and the mean of their gradients, by layer."""
        import torch

        leaves = [matrix.requires_grad_() for matrix in self.parameters]
        sums, losses = self.accumulators(), []
        for micro_batch in samples:
            loss = loss_of(leaves, micro_batch, self.units_on(step))
            for total, gradient in zip(sums, torch.autograd.grad(loss, leaves), strict=True):
                total += gradient
            losses.append(loss.item())
        return sum(losses) / len(losses), self.averaged(sums)

    def accumulators(self) -> list[Any]:
        """Zeros, to which the micro-batches' gradients are added."""
        import torch

        return [torch.zeros(shape) for shape in SHAPES]

    def averaged(self, sums: list[Any]) -> list[Any]:
        """The mean gradients, in fp32."""
        return [total.float() / MICRO_BATCHES for total in sums]

    def exchanged(self, layer: int, gradient: Any) -> Any:
        """The mean of all workers' gradients of one layer: a bucket of its own."""
        total = self.ring.all_reduce(gradient.flatten().clone())
        return total.div_(self.ring.world).view_as(gradient)

    def update(self, means: Iterable[Any]) -> None:
        """A step of SGD with momentum."""
        import torch

        with torch.no_grad():
            for matrix, momentum, mean in zip(self.parameters, self.momenta, means, strict=True):
                momentum.mul_(MOMENTUM).add_(mean)
                matrix.sub_(momentum, alpha=RATE)


@dataclass
class StepNotes:
    """What was noted of one worker's step.

    Attributes:
        sending_s: of each message, in their order.
        waiting_s: of each message, in their order.
        before: the gradient that it sent, by layer.
        after: the mean that it took its step with, by layer.
    """

    step_s: float
    computing_s: float
    sending_s: list[float]
    waiting_s: list[float]
    loss: float
    samples: Any
    before: list[Any] = field(repr=False)
    after: list[Any] = field(repr=False)


def take_step(worker: ClusterWorker, step: int) -> StepNotes:
    """Take one step of the training: compute, exchange from the last layer on, update."""
    ring, began_s, began_cpu_s = worker.ring, time.perf_counter(), time.thread_time()
    ring.sending_s, ring.waiting_s = [], []
    samples = worker.samples(step)
    loss, before = worker.gradients(samples, step)
    computing_s = time.thread_time() - began_cpu_s
    backwards = [worker.exchanged(n, before[n]) for n in reversed(range(len(LAYERS)))]
    after = backwards[::-1]
    worker.update(after)
    return StepNotes(
        step_s=time.perf_counter() - began_s,
        computing_s=computing_s,
        sending_s=ring.sending_s,
        waiting_s=ring.waiting_s,
        loss=loss,
        samples=samples,
        before=before,
        after=after,
    )


def train_to_restart(worker: ClusterWorker, kind: type[ClusterWorker]) -> ClusterWorker:
    """Train to the restart, and return the worker of another kind that goes on from there."""
    older = worker.checkpoint()
    for step in range(RESTART):
        if step == CHECKPOINT:
            older = worker.checkpoint()
        take_step(worker, step)
    restarted = kind(worker.place, worker.ring)
    restarted.restore(worker.checkpoint(), older)
    return restarted


def held_out_bits(parameters: Sequence[Any]) -> float:
    """Bits per byte on text that nobody trains on, with all units on."""
    import math

    import torch

    data = torch.frombuffer(bytearray(text_bytes("held_out")), dtype=torch.uint8)
    luck = torch.Generator().manual_seed(HELD_OUT_SEED)
    starts = torch.randint(len(data) - CONTEXT, (HELD_OUT_SAMPLES,), generator=luck)
    samples = data[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    with torch.no_grad():
        return float(loss_of(parameters, samples, torch.ones(WIDTH))) / math.log(2)


def checksum(tensor: Any) -> str:
    """Eight hexadecimal digits that any changed bit of a tensor changes."""
    return f"{zlib.crc32(tensor.detach().contiguous().numpy().tobytes()):08x}"

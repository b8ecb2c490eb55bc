"""Pipelines that really run: a stage's layers with a backward pass in two halves, and a clock.

An order is a list of (action, chunk): F, a micro-batch forward; B, the gradient of the input; W,
that of the weights; BW, both as one, whose gradient leaves when both are done. A rank with several
chunks of the layers has several stages of the pipeline: chunk c of rank r is stage c * ranks + r.
A chunk's micro-batches come in their order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Action = tuple[str, int]  # F, B, W or BW, and the chunk
Key = tuple[str, int, int]  # of a message: F, B or BW, the stage that needs it, the micro-batch


class ActionSpan(NamedTuple):
    """When a stage did one action, in seconds of the machine's own clock."""

    stage: int
    action: str
    micro_batch: int
    begin_s: float
    end_s: float


def actions_of(order: str) -> list[Action]:
    """The actions of a rank with one chunk; without any W, each B is both halves as one."""
    backward = "B" if "W" in order else "BW"
    return [(backward if action == "B" else action, 0) for action in order]


def interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Action]:
    """The order of 1F1B with several chunks a rank (Narayanan et al. 2021, section 2.2).

    Args:
        rank: whose order it is.
        ranks: how many there are.
        micro_batches: a multiple of `ranks`.
        chunks: of each rank.
    """
    groups = range(micro_batches // ranks)
    forward = [chunk for _ in groups for chunk in range(chunks) for _ in range(ranks)]
    backward = [chunks - 1 - chunk for chunk in forward]
    warm = min(len(forward), 2 * (ranks - rank - 1) + (chunks - 1) * ranks)
    order = [("F", chunk) for chunk in forward[:warm]]
    for number, chunk in enumerate(backward):
        order += [("F", later) for later in forward[warm + number : warm + number + 1]]
        order += [("BW", chunk)]
    return order


class StageLayers:
    """Square layers with ReLU of one stage, whose backward pass comes in two halves.

    Written out, without autograd, so that each of F, B and W is one product for each layer.

    Args:
        width: of every layer.
        numbers: of the layers in the whole network, which give their first weights.
        device: where they are.
    """

    def __init__(self, width: int, numbers: Sequence[int], device: str) -> None:
        import torch

        self.numbers = numbers
        self.weights = []
        for number in numbers:
            luck = torch.Generator(device).manual_seed(number)
            matrix = torch.empty(width, width, device=device).normal_(generator=luck)
            self.weights.append(matrix.mul_((2 / width) ** 0.5))
        self.gradients = [torch.zeros_like(matrix) for matrix in self.weights]
        self._results: dict[int, list[Any]] = {}
        self._deltas: dict[int, list[Any]] = {}

    def forward(self, micro_batch: int, x: Any) -> Any:
        """Return the stage's result; its layers' inputs and results are kept."""
        results = self._results[micro_batch] = [x]
        for matrix in self.weights:
            results.append((results[-1] @ matrix).relu_())
        return results[-1]

    def backward_input(self, micro_batch: int, delta: Any) -> Any:
        """Return the gradient of the stage's input; those of the layers' sums are kept for W."""
        results, deltas = self._results[micro_batch], []
        for matrix, result in zip(self.weights[::-1], results[:0:-1], strict=True):
            deltas.append(delta * (result > 0))
            delta = deltas[-1] @ matrix.T
        self._deltas[micro_batch] = deltas[::-1]
        return delta

    def backward_weights(self, micro_batch: int) -> None:
        """Add the gradients of the weights, and let go of what was kept."""
        results, deltas = self._results.pop(micro_batch), self._deltas.pop(micro_batch)
        for gradient, result, delta in zip(self.gradients, results, deltas, strict=False):
            gradient.addmm_(result.T, delta)

    def gradient_norms(self) -> dict[int, float]:
        """The norm of each layer's gradient, by the layer's number."""
        norms = [gradient.norm().item() for gradient in self.gradients]
        return dict(zip(self.numbers, norms, strict=True))

    @property
    def kept_bytes(self) -> int:
        """What is kept for backward passes now."""
        lists = (*self._results.values(), *self._deltas.values())
        return sum(tensor.nbytes for tensors in lists for tensor in tensors)

    def zero(self) -> None:
        """Begin the sums of the gradients anew."""
        for gradient in self.gradients:
            gradient.zero_()


class Inbox:
    """A rank's messages by key: every rank knows in which order the others send.

    Args:
        wires: `labkit.exercises.Wires`.
        orders: of all ranks.
        rank: whose inbox it is.
        stages: of the pipeline.
    """

    def __init__(
        self, wires: Any, orders: Sequence[Sequence[Action]], rank: int, stages: int
    ) -> None:
        self._wires = wires
        self._came: dict[Key, Any] = {}
        self._expected = {
            source: deque(_keys_to(rank, source, orders, stages))
            for source in range(len(orders))
            if source != rank
        }

    def take(self, key: Key, source: int) -> Any:
        """Wait for a message, and keep those that come before it."""
        while key not in self._came:
            self._came[self._expected[source].popleft()] = self._wires.receive(source)
        return self._came.pop(key)


def _numbered(order: Sequence[Action]) -> Iterator[tuple[str, int, int]]:
    """Each action with its chunk and its micro-batch."""
    counts: dict[Action, int] = {}
    for action, chunk in order:
        micro_batch = counts.get((action, chunk), 0)
        counts[action, chunk] = micro_batch + 1
        yield action, chunk, micro_batch


def _keys_to(
    rank: int, source: int, orders: Sequence[Sequence[Action]], stages: int
) -> Iterator[Key]:
    """What one rank sends to another, in order."""
    ranks = len(orders)
    for action, chunk, micro_batch in _numbered(orders[source]):
        if action == "W":  # is for nobody
            continue
        target = chunk * ranks + source + (1 if action == "F" else -1)
        if 0 <= target < stages and target % ranks == rank:
            yield action, target, micro_batch


@dataclass
class PipelineStep:
    """Steps of one rank of a pipeline, by an order; what it notes of the last one.

    Attributes:
        chunks: the rank's stages, by chunk.
        inputs: of each micro-batch, on the first stage's device.
        orders: of all ranks.
        rank: this one.
        wires: `labkit.exercises.Wires`.
        spans: of the last step.
        most_bytes: that were kept for backward passes at a moment of the last step.
    """

    chunks: Sequence[StageLayers]
    inputs: Sequence[Any]
    orders: Sequence[Sequence[Action]]
    rank: int
    wires: Any
    spans: list[ActionSpan] = field(default_factory=list)
    most_bytes: int = 0
    _losses: dict[int, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Do one step."""
        self.spans, self.most_bytes = [], 0
        stages = len(self.orders) * len(self.chunks)
        inbox = Inbox(self.wires, self.orders, self.rank, stages)
        for layers in self.chunks:
            layers.zero()
        for action, chunk, micro_batch in _numbered(self.orders[self.rank]):
            self._act(inbox, stages, action, chunk, micro_batch)
        self.wires.finish()

    def _act(self, inbox: Inbox, stages: int, action: str, chunk: int, micro_batch: int) -> None:
        """Wait for what an action needs, do it by the clock, and send what it makes."""
        ranks, layers = len(self.orders), self.chunks[chunk]
        stage = chunk * ranks + self.rank
        needed = self._needed(inbox, stages, stage, action, micro_batch)
        results = [self._timed(layers, stage, half, micro_batch, needed) for half in action]
        target = stage + (1 if action == "F" else -1)
        if action != "W" and 0 <= target < stages:
            self.wires.send(target % ranks, results[0])
        elif action == "F":
            self._losses[micro_batch] = results[0] / results[0].numel()

    def _timed(
        self, layers: StageLayers, stage: int, action: str, micro_batch: int, needed: Any
    ) -> Any:
        """Do F, B or W by the clock, and count what is kept then."""
        begin_s = time.monotonic()
        result = self._compute(layers, action, micro_batch, needed)
        self.spans.append(ActionSpan(stage, action, micro_batch, begin_s, time.monotonic()))
        self.most_bytes = max(self.most_bytes, sum(layers.kept_bytes for layers in self.chunks))
        return result

    def _needed(self, inbox: Inbox, stages: int, stage: int, action: str, micro_batch: int) -> Any:
        if action == "W":
            return None
        if action == "F" and stage == 0:
            return self.inputs[micro_batch]
        if action != "F" and stage == stages - 1:
            return self._losses.pop(micro_batch)
        source = (stage + (-1 if action == "F" else 1)) % len(self.orders)
        message = inbox.take((action, stage, micro_batch), source)
        return message.to(self.inputs[0].device)

    def _compute(self, layers: StageLayers, action: str, micro_batch: int, needed: Any) -> Any:
        result = None
        if action == "W":
            layers.backward_weights(micro_batch)
        else:
            method = layers.forward if action == "F" else layers.backward_input
            result = method(micro_batch, needed)
        if layers.weights[0].is_cuda:
            import torch

            torch.cuda.synchronize()
        return result


def waiting_share(spans: Sequence[ActionSpan], ranks: int) -> float:
    """The share of all ranks' time, from the first action to the last one, without an action."""
    busy_s = sum(span.end_s - span.begin_s for span in spans)
    step_s = max(span.end_s for span in spans) - min(span.begin_s for span in spans)
    return 1 - busy_s / (ranks * step_s)


def ideal_waiting(schedule: str, ranks: int, micro_batches: int, chunks: int = 2) -> float:
    """The waiting share where F, B and W take equally long, and messages no time.

    Sources: GPipe and 1F1B, (p - 1) / (m + p - 1); interleaved, (p - 1) / (v m + p - 1)
    (Narayanan et al. 2021, section 2.2); zero bubble H1, a third of 1F1B's waiting, so
    (p - 1) / (3 m + p - 1) (Qi et al. 2023, table 2).
    """
    factor = {"interleaved": chunks, "zero bubble": 3}.get(schedule, 1)
    return (ranks - 1) / (factor * micro_batches + ranks - 1)

"""Exact checks of the memory ledger and of ZeRO-1, against counted tensors and steps taken.

The ledger is compared with what `count_step` counts of real steps of the same network; a typical
mistake is told by the number it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from labkit.exercises import networks
from labkit.exercises.code_checks import CodeVerdict, all_reducer, for_ranks, judged, run_ranks
from labkit.machine.tensor_memory import (
    ACTIVATIONS,
    GRADIENTS,
    MIB,
    OPTIMIZER,
    PARAMETERS,
    count_step,
)

PREDICTED = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS)
CASES = (
    (16, 2, 8, 1, False, 1),
    (16, 3, 32, 4, False, 1),
    (16, 3, 32, 1, True, 1),
    (16, 4, 32, 2, True, 1),
    (16, 2, 8, 1, False, 2),
)
SPARE_BYTES = 64  # Adam counts its steps, 4 bytes a matrix


def check_ledger(function: Callable[..., Mapping[str, float]]) -> CodeVerdict:
    """Whether a ledger says what a step of `networks.blocks` holds, kind by kind.

    Args:
        function: `ledger(width, depth, rows, micro_batches, checkpoint, ranks)` returning the bytes
            of "parameters", "gradients", "optimiser" and "activations", each at its most.
    """

    def check(case: tuple[Any, ...]) -> str:
        said = function(*case)
        return _missing(said) or _fault(case, said, _counted(*case))

    def words(case: tuple[Any, ...]) -> str:
        width, depth, rows, micro_batches, checkpoint, ranks = case
        size = f"width {width}, depth {depth}, {rows} rows, micro_batches={micro_batches}"
        return f"{size}, checkpoint={checkpoint}, ranks={ranks}"

    right = f"every kind agrees with what was counted, in {len(CASES)} cases"
    return judged(right, *((words(case), partial(check, case)) for case in CASES))


def _counted(
    width: int, depth: int, rows: int, micro_batches: int, checkpoint: bool, ranks: int
) -> dict[str, int]:
    """Bytes by kind of a real step; of several ranks, rank 0's."""
    import torch

    network, _ = networks.blocks(width, depth)
    optimizer = torch.optim.Adam(list(network.parameters())[::ranks])

    def step() -> None:
        networks.gradients_of(network, width, rows, micro_batches, checkpoint)
        optimizer.step()
        network.zero_grad()

    found = count_step(step, network, optimizer)
    return {kind: round(found[kind] * MIB) for kind in PREDICTED}


def _missing(said: object) -> str:
    if said is None:
        return "write ledger first"
    if not isinstance(said, Mapping) or set(PREDICTED) - set(said):
        return f"return a dict with the bytes of {', '.join(PREDICTED)}"
    return ""


def _fault(case: tuple[Any, ...], said: Mapping[str, float], want: Mapping[str, int]) -> str:
    """The first wrong kind, and which mistake gives its number; empty when all are right."""
    for kind in PREDICTED:
        if abs(said[kind] - want[kind]) <= SPARE_BYTES:
            continue
        found = f"{kind}: you say {said[kind]:,.0f} bytes, but {want[kind]:,} were counted"
        known = _mistakes(kind, want[kind], *case)
        why = (words for words, gives in known if abs(gives - said[kind]) <= SPARE_BYTES)
        return ": ".join([found, *islice(why, 1)])
    return ""


def _mistakes(
    kind: str,
    want: int,
    width: int,
    depth: int,
    rows: int,
    micro_batches: int,
    checkpoint: bool,
    ranks: int,
) -> Iterator[tuple[str, float]]:
    """Typical mistakes, and the bytes each of them gives."""
    yield "these are numbers, and in fp32 each number has 4 bytes", want / 4
    yield "ranks share only the optimizer state: ZeRO-1 leaves this whole on each", want / ranks
    yield "ZeRO-1 divides the optimizer state: each rank holds only its part", want * ranks
    if kind == OPTIMIZER:
        yield "Adam keeps two numbers for a parameter, its moments", want / 2
    if kind == GRADIENTS:
        yield "micro-batches add into the same gradients", want * micro_batches
        yield "micro-batches add into the same gradients", want / micro_batches
    if kind != ACTIVATIONS:
        return
    whole, batch = 4 * rows * width, 4 * rows * width // micro_batches
    plain = depth * 5 * batch + batch
    if micro_batches > 1:
        yield "only one micro-batch is alive at a time", depth * 5 * whole + whole
        yield "only one micro-batch is alive at a time", (depth + 5) * whole
    yield (
        "ReLU keeps its result, not what went in, and the next layer keeps the same tensor",
        plain + 4 * depth * batch,
    )
    yield "a layer also keeps its input, for the gradient of its weights", 4 * depth * batch + batch
    yield "the output is kept as well, for the loss", want - batch
    if checkpoint:
        yield "with checkpointing, a block's inner activations are not kept", plain
        yield (
            "while one block runs backward, its inner activations are there again",
            (depth + 1) * batch,
        )


def check_zero_step(function: Callable[..., Any]) -> CodeVerdict:
    """Whether ranks take one Adam step together while each holds the state of its own weights only.

    Args:
        function: `zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast)`; it
            returns the new weights. `adam(number, weight, gradient)` returns the new weight and
            makes that weight's state on this rank; `all_reduce(tensor)` returns the sum over the
            ranks; `broadcast(tensor, source)` returns the source's tensor.
    """
    import torch

    def check(world: int) -> str:
        generator = torch.Generator().manual_seed(world)
        made = [
            [torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(5)]
            for _ in range(world + 1)
        ]
        return _zero_fault(function, made[0], made[1:])

    right = "all ranks hold the new weights, and each weight's state is on one rank"
    return judged(right, *for_ranks(check, 1, 2, 3))


def _zero_fault(
    function: Callable[..., Any], weights: list[Any], gradients: list[list[Any]]
) -> str:
    import torch

    world = len(gradients)
    stepped: list[dict[int, Any]] = [{} for _ in range(world)]  # by rank: which weights, with what

    def one_rank(_: Any, rank: int, world: int, send: Any, receive: Any) -> Any:
        def adam(number: int, weight: Any, gradient: Any) -> Any:
            stepped[rank][number] = gradient
            return weight - 0.1 * gradient.sign()  # Adam's first step

        all_reduce = all_reducer(rank, world, send, receive)

        def broadcast(tensor: Any, source: int) -> Any:
            if rank != source:
                return receive(source)
            for other in range(world):
                if other != rank:
                    send(other, tensor)
            return tensor

        given = ([one.clone() for one in weights], [one.clone() for one in gradients[rank]])
        new = function(*given, adam, rank, world, all_reduce, broadcast)
        return None if new is None else torch.stack(list(new))

    results, _ = run_ranks(one_rank, [torch.zeros(1)] * world)
    means = [sum(parts) / world for parts in zip(*gradients, strict=True)]
    return _who_stepped(stepped, means) or _what_came(results, weights, means)


def _who_stepped(stepped: list[dict[int, Any]], means: list[Any]) -> str:
    """Whether each weight was stepped by one rank, with the mean gradient."""
    world, known = len(stepped), [number for one in stepped for number in one]
    if not known:
        return "write zero_step first: adam was never called"
    if len(known) > len(set(known)):
        return "several ranks call adam for the same weight: its state would be on each of them"
    if set(known) != set(range(len(means))):
        return "no rank calls adam for some of the weights"
    for number, gradient in (item for one in stepped for item in one.items()):
        if (gradient - means[number] * world).norm() < 1e-9 and world > 1:
            return "adam gets the sum of the gradients, not their mean"
        if (gradient - means[number]).norm() > 1e-9:
            return f"adam does not get the ranks' mean gradient of weight {number}"
    return ""


def _what_came(results: list[Any], weights: list[Any], means: list[Any]) -> str:
    import torch

    want = torch.stack([one - 0.1 * mean.sign() for one, mean in zip(weights, means, strict=True)])
    for rank, found in enumerate(results):
        if found is None:
            return "return the list of the new weights"
        if found.shape != want.shape or (found - want).norm() > 1e-9:
            return f"rank {rank} does not hold every new weight: who sends it the others' weights?"
    return ""

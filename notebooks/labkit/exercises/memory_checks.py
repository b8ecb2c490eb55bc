"""Exact checks of the memory ledger and of ZeRO-1, against counted tensors and steps taken.

The ledger is compared with what `count_step` counts of real steps of the same network; a typical
mistake is told by the number it gives.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from labkit.exercises import networks
from labkit.exercises.code_checks import (
    CodeVerdict,
    Exchanges,
    for_ranks,
    is_same,
    mistake_in,
    random_tensors,
    require_same_shape,
    run_exchanging,
    verdict_of,
)
from labkit.exercises.formula_checks import ExactFormula
from labkit.machine.profiling import (
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
WEIGHT_SHAPES = ((4,), (3, 2), (5,), (2, 4), (1,))  # of what ranks step together
WEIGHTS = len(WEIGHT_SHAPES)
SPARE_BYTES = 64  # Adam counts its steps, 4 bytes a matrix


@functools.cache
def _bytes_of_real_step(
    width: int, depth: int, rows: int, micro_batches: int, checkpoint: bool, ranks: int
) -> dict[str, int]:
    """Run a real step and return its bytes by kind; with several ranks, those of rank 0."""
    import torch

    network, _ = networks.blocks(width, depth)
    optimizer = torch.optim.Adam(list(network.parameters())[::ranks])

    def step() -> None:
        networks.gradients_of(network, width, rows, micro_batches, checkpoint)
        optimizer.step()
        network.zero_grad()

    counted_mib = count_step(step, network, optimizer)
    return {kind: round(counted_mib[kind] * MIB) for kind in PREDICTED}


def _draw_step(luck: random.Random) -> tuple[int, int, int, int, bool, int]:
    """A step of any size whose rows and matrices can be divided as it says."""
    micro_batches, ranks = luck.choice((1, 2, 4)), luck.choice((1, 2, 4))
    depth, rows = luck.choice((2, 4)), micro_batches * luck.choice((4, 8))
    return luck.choice((8, 16, 24)), depth, rows, micro_batches, luck.random() < 0.5, ranks


def _times(kind: str, factor: Callable[..., float]) -> Callable[..., dict[str, float]]:
    """A mistaken ledger: the right one with one kind's bytes multiplied by a factor."""
    return lambda *case: {
        **_bytes_of_real_step(*case),
        kind: _bytes_of_real_step(*case)[kind] * factor(*case),
    }


# Whether `ledger(width, depth, rows, micro_batches, checkpoint, ranks)` says what a step of
# `networks.blocks` holds: a dict with the bytes of each kind, each at its most.
check_ledger = ExactFormula(
    "ledger",
    _bytes_of_real_step,
    CASES,
    {
        "these are numbers, and in fp32 each number has 4 bytes": (
            lambda *case: {kind: size / 4 for kind, size in _bytes_of_real_step(*case).items()}
        ),
        "Adam keeps two numbers for a parameter, its moments": _times(OPTIMIZER, lambda *_: 1 / 2),
        "ZeRO-1 divides the optimizer state: each rank holds only its part": _times(
            OPTIMIZER, lambda *case: case[-1]
        ),
        "only one micro-batch is alive at a time": _times(ACTIVATIONS, lambda *case: case[3]),
    },
    spare=SPARE_BYTES,
    draw=_draw_step,
)


def check_zero_step(function: Callable[..., Any]) -> CodeVerdict:
    """Whether ranks take one Adam step together while each holds the state of its own weights only.

    Args:
        function: `zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast)`; it
            returns the new weights. `adam(number, weight, gradient)` returns the new weight and
            makes that weight's state on this rank; `all_reduce(tensor)` returns the sum over the
            ranks; `broadcast(tensor, source)` returns the source's tensor.
    """

    def check(world: int) -> str:
        weights, *gradients = (random_tensors(*WEIGHT_SHAPES) for _ in range(world + 1))
        stepped: list[tuple[int, int, Any]] = []  # by which rank, which weight, with what

        def one_rank(exchanges: Exchanges) -> Any:
            def adam(number: int, weight: Any, gradient: Any) -> Any:
                require_same_shape((weight, gradient), "adam was given")
                stepped.append((exchanges.rank, number, gradient))
                return weight - 0.1 * gradient.sign()  # Adam's first step

            copies = (
                [tensor.clone() for tensor in all_of]
                for all_of in (weights, gradients[exchanges.rank])
            )
            return function(
                *copies, adam, exchanges.rank, world, exchanges.all_reduce, exchanges.broadcast
            )

        results, _ = run_exchanging(one_rank, world)
        totals: list[Any] = [sum(parts) for parts in zip(*gradients, strict=True)]
        fault = _fault_of_adam_calls(stepped, totals, world)
        return fault or _fault_of_weights(results, weights, totals)

    right = "all ranks hold the new weights, and each weight's state is on one rank"
    return verdict_of(right, *for_ranks(check, 1, 2, 3))


def _fault_of_adam_calls(stepped: list[tuple[int, int, Any]], totals: list[Any], world: int) -> str:
    """The fault in Adam's calls; empty if one rank steps each weight with the mean gradient."""
    stepped_numbers = sorted(number for _, number, _ in stepped)
    if not stepped_numbers:
        return "write zero_step first: adam was never called"
    if stepped_numbers != list(range(WEIGHTS)):
        return (
            f"adam was called for the weights {stepped_numbers}: "
            f"each of {WEIGHTS} must be stepped by "
            "exactly one rank, which alone holds its state"
        )
    if idle := set(range(world)) - {rank for rank, _, _ in stepped}:
        return f"rank {min(idle)} holds the state of no weight: the state must be divided among all"
    for _, number, gradient in stepped:
        if not is_same(gradient, totals[number] / world):
            the_sum = [("adam gets the sum of the gradients, not their mean", totals[number])]
            otherwise = f"adam does not get the ranks' mean gradient of weight {number}"
            return mistake_in(gradient, the_sum, otherwise)
    return ""


def _fault_of_weights(results: list[Any], weights: list[Any], totals: list[Any]) -> str:
    right = [weight - 0.1 * total.sign() for weight, total in zip(weights, totals, strict=True)]
    for rank, new_weights in enumerate(results):
        if len(new_weights or ()) != WEIGHTS or not all(map(is_same, new_weights, right)):
            return f"rank {rank} does not hold every new weight: who sends it the others' weights?"
    return ""

"""Exact checks of ZeRO's steps: who holds which part, and what is sent, in which order.

Weights are flat tensors, one for each unit of layers, and every length can be divided among the
ranks. The student's code gets a reduce-scatter and an all-gather that note each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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

UNIT_SIZES = (12, 24, 6, 18)  # all can be divided by 2 and by 3
UNITS = len(UNIT_SIZES)
WORLDS = (2, 3, 1)  # with one rank, some mistakes do not show
GATHER, SCATTER, LAYER = "all_gather", "reduce_scatter", "layer"


class PartExchanges:
    """One rank's reduce-scatters and all-gathers, noted in order.

    Attributes:
        log: of each call its kind, and how many numbers it was given, or a layer's unit.
    """

    def __init__(self, exchanges: Exchanges, world: int) -> None:
        self._exchanges, self.rank, self.world = exchanges, exchanges.rank, world
        self.log: list[tuple[str, int]] = []

    def reduce_scatter(self, tensor: Any) -> Any:
        """Return this rank's part of the ranks' sum."""
        self.log.append((SCATTER, tensor.numel()))
        _require_flat(tensor)
        return part_of(self._exchanges.all_reduce(tensor), self.rank, self.world)

    def all_gather(self, part: Any) -> Any:
        """Return the ranks' parts, joined in their order."""
        import torch

        self.log.append((GATHER, part.numel()))
        _require_flat(part)
        parts = [self._exchanges.broadcast(part, source) for source in range(self.world)]
        require_same_shape(parts, "ranks gave one all-gather")
        return torch.cat(parts)

    def count(self, kind: str) -> int:
        """How many calls there were of a kind."""
        return sum(name == kind for name, _ in self.log)


def _require_flat(tensor: Any) -> None:
    if tensor.dim() != 1:
        raise ValueError(f"a flat tensor is expected, not one of the shape {tuple(tensor.shape)}")


def part_of(tensor: Any, rank: int, world: int) -> Any:
    """A rank's part of a flat tensor, as a tensor of its own."""
    return tensor.chunk(world)[rank].clone()


def _copies(tensors: Sequence[Any]) -> list[Any]:
    return [tensor.clone() for tensor in tensors]


class _Case:
    """Weights and every rank's gradients, what is right for them, and the calls of `adam`."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.weights, *self.gradients = (random_tensors(*UNIT_SIZES) for _ in range(world + 1))
        self.totals: list[Any] = [sum(parts) for parts in zip(*self.gradients, strict=True)]
        self.stepped: list[tuple[int, int, Any, Any]] = []  # rank, unit, part, gradient

    def adam_of(self, rank: int) -> Callable[[int, Any, Any], Any]:
        """Return a rank's `adam`, which takes Adam's first step and notes what it was given."""

        def adam(number: int, part: Any, gradient: Any) -> Any:
            require_same_shape((part, gradient), "adam was given")
            self.stepped.append((rank, number, part, gradient))
            return part - 0.1 * gradient.sign()

        return adam

    def run(
        self, one_rank: Callable[[PartExchanges], Any]
    ) -> tuple[list[Any], list[PartExchanges]]:
        """Run the ranks; return each one's result and its exchanges."""
        exchanges_of: dict[int, PartExchanges] = {}

        def run_rank(exchanges: Exchanges) -> Any:
            collectives = exchanges_of[exchanges.rank] = PartExchanges(exchanges, self.world)
            return one_rank(collectives)

        results, _ = run_exchanging(run_rank, self.world)
        return results, [exchanges_of[rank] for rank in range(self.world)]

    def fault_of_adam(self) -> str:
        """The fault in `adam`'s calls; empty if every rank steps its own part of every unit."""
        for rank in range(self.world):
            numbers = sorted(number for stepper, number, *_ in self.stepped if stepper == rank)
            if numbers != list(range(UNITS)):
                return (
                    f"rank {rank} called adam for the units {numbers}: every rank steps its own "
                    f"part of each of {UNITS} units"
                )
        return next(filter(None, (self._fault_of_call(*call) for call in self.stepped)), "")

    def _fault_of_call(self, rank: int, number: int, part: Any, gradient: Any) -> str:
        weights = self.weights[number]
        if not is_same(part, part_of(weights, rank, self.world)):
            known_mistakes = [("the whole unit, whose moments every rank would then hold", weights)]
            otherwise = "not the rank's own part of the weights"
            mistake = mistake_in(part, known_mistakes, otherwise)
            return f"adam got {mistake} (rank {rank}, unit {number})"
        return self.fault_of_mean(gradient, number, rank, "adam's gradient")

    def fault_of_mean(self, gradient: Any, number: int, rank: int, subject: str) -> str:
        """The fault in a part of a mean gradient; empty if it is right."""
        total = part_of(self.totals[number], rank, self.world)
        if is_same(gradient, total / self.world):
            return ""
        known_mistakes = (
            ("the sum over the ranks, not their mean", total),
            ("one rank's own", part_of(self.gradients[rank][number], rank, self.world)),
        )
        otherwise = "not the rank's part of the ranks' mean"
        return f"{subject} of unit {number} is {mistake_in(gradient, known_mistakes, otherwise)}"

    def fault_of_weights(self, results: Sequence[Any]) -> str:
        """The fault in the weights that the ranks hold at the end; empty if they are right."""
        for rank, new_weights in enumerate(results):
            for number, weights in enumerate(self.weights):
                right = weights - 0.1 * self.totals[number].sign()
                if len(new_weights) != UNITS or not is_same(new_weights[number], right):
                    return (
                        f"rank {rank} does not hold the new weights of unit {number}: every rank "
                        "gathers the parts that the others have stepped"
                    )
        return ""


def _fault_of_traffic(exchanges: PartExchanges, gathers: int) -> str:
    """Describe needless traffic: each unit travels once as a gradient, `gathers` times as weights.

    Args:
        exchanges: of one rank.
        gathers: how often each unit's weights are gathered.
    """
    scattered = sum(size for kind, size in exchanges.log if kind == SCATTER)
    gathered = sum(size for kind, size in exchanges.log if kind == GATHER) * exchanges.world
    total = sum(UNIT_SIZES)
    if scattered != total:
        return f"{scattered} numbers were reduce-scattered; the gradients have {total}"
    if gathered != gathers * total:
        times = "once" if gathers == 1 else f"{gathers} times"
        return f"{gathered} numbers were gathered; the weights, {times}, are {gathers * total}"
    return ""


def _is_unwritten(results: Sequence[Any]) -> bool:
    return any(not isinstance(result, list | tuple) or not result for result in results)


def check_zero1(function: Callable[..., Any]) -> CodeVerdict:
    """Whether ranks take an Adam step together in which each holds the moments of its part only.

    Args:
        function: `zero1_step(weights, gradients, adam, rank, world, reduce_scatter, all_gather)`;
            it returns the new weights of all units. `adam(number, part, gradient)` returns the new
            part and makes its moments on this rank.
    """

    def check(world: int) -> str:
        case = _Case(world)

        def one_rank(collectives: PartExchanges) -> Any:
            tensors = _copies(case.weights), _copies(case.gradients[collectives.rank])
            adam = case.adam_of(collectives.rank)
            new = function(
                *tensors,
                adam,
                collectives.rank,
                world,
                collectives.reduce_scatter,
                collectives.all_gather,
            )
            return None if new is None else list(new)

        results, exchanges = case.run(one_rank)
        if _is_unwritten(results):
            return "write zero1_step first: it returns the new weights of all units"
        fault = case.fault_of_adam() or case.fault_of_weights(results)
        return fault or _fault_of_traffic(exchanges[0], gathers=1)

    right = "all ranks hold the new weights, and each one the moments of its own parts"
    return verdict_of(right, *for_ranks(check, *WORLDS))


def check_zero2(make: Callable[..., Any]) -> CodeVerdict:
    """Whether gradients are scattered as the backward pass makes them, and then stepped by parts.

    Args:
        make: `Zero2(rank, world, reduce_scatter, all_gather)`; `ready(number, gradient)` is called
            for each unit, the last one first; `step(weights, adam)` returns the new weights.
    """

    def check(world: int) -> str:
        case, late = _Case(world), []

        def one_rank(collectives: PartExchanges) -> Any:
            zero2 = make(
                collectives.rank, world, collectives.reduce_scatter, collectives.all_gather
            )
            for number in reversed(range(UNITS)):
                zero2.ready(number, case.gradients[collectives.rank][number].clone())
                if collectives.count(SCATTER) != UNITS - number:
                    late.append(number)
                    return None  # what follows would only show what this leads to
            new = zero2.step(_copies(case.weights), case.adam_of(collectives.rank))
            return None if new is None else list(new)

        results, exchanges = case.run(one_rank)
        if late:
            return (
                f"the gradient of unit {late[0]} was not scattered in ready, so that all of it "
                "stays in memory"
            )
        if _is_unwritten(results):
            return "write step, too: it returns the new weights of all units"
        fault = case.fault_of_adam() or case.fault_of_weights(results)
        return fault or _fault_of_traffic(exchanges[0], gathers=1)

    right = "every gradient was scattered at once, and all ranks hold the new weights"
    return verdict_of(right, *for_ranks(check, *WORLDS))


class _Layers:
    """What stands for layers: of each unit a forward and a backward function, which are noted."""

    def __init__(self, collectives: PartExchanges, case: _Case) -> None:
        self._exchanges, self._case = collectives, case
        self.faults: list[str] = []

    def forward(self, number: int, x: Any, weights: Any) -> Any:
        self._note(number, weights)
        return x * (number + 2) + weights.sum()

    def backward(self, number: int, delta: Any, weights: Any) -> tuple[Any, Any]:
        self._note(number, weights)
        return delta * (number + 2), self._case.gradients[self._exchanges.rank][number].clone()

    def _note(self, number: int, weights: Any) -> None:
        if not is_same(weights, self._case.weights[number]):
            own_part = part_of(
                self._case.weights[number], self._exchanges.rank, self._exchanges.world
            )
            known_mistakes = [("this rank's part of them, where all are needed", own_part)]
            mistake = mistake_in(weights, known_mistakes, "not the unit's own")
            self.faults.append(f"the weights of unit {number} are {mistake}")
        self._exchanges.log.append((LAYER, number))


def _fault_of_order(collectives: PartExchanges, order: Sequence[int]) -> str:
    """The fault in when weights are gathered and used; empty if unit after unit, in this order."""
    used = [number for kind, number in collectives.log if kind == LAYER]
    if used != list(order):
        return f"the units were used in the order {used}; it must be {list(order)}"
    gathered = 0
    for kind, _ in collectives.log:
        gathered += kind == GATHER
        if kind == LAYER:
            if gathered > 1:
                return "several units are gathered before one is used: together they fill memory"
            gathered = 0
    return ""


def check_zero3(forward: Callable[..., Any], backward: Callable[..., Any]) -> CodeVerdict:
    """Whether both passes gather one unit's weights at a time, and scatter each gradient at once.

    Args:
        forward: `zero3_forward(x, parts, layer, all_gather)` returning the last unit's result;
            `layer(number, x, weights)` returns a unit's.
        backward: `zero3_backward(delta, parts, layer_backward, world, reduce_scatter, all_gather)`
            returning this rank's parts of the mean gradients, by unit;
            `layer_backward(number, delta, weights)` returns the gradient of the unit's input and
            that of its weights.
    """

    def check(world: int) -> str:
        case, faults = _Case(world), []
        (x,) = random_tensors(5)

        def one_rank(collectives: PartExchanges) -> Any:
            layers = _Layers(collectives, case)
            parts = [part_of(weights, collectives.rank, world) for weights in case.weights]
            result = forward(x.clone(), _copies(parts), layers.forward, collectives.all_gather)
            faults.extend(layers.faults or [_fault_of_order(collectives, range(UNITS))])
            forward_log, collectives.log = collectives.log, []
            means = backward(
                x.clone(),
                _copies(parts),
                layers.backward,
                world,
                collectives.reduce_scatter,
                collectives.all_gather,
            )
            faults.extend(layers.faults or [_fault_of_order(collectives, range(UNITS)[::-1])])
            faults.append(_fault_of_waiting(collectives))
            collectives.log = [*forward_log, *collectives.log]
            return result, None if means is None else list(means)

        results, exchanges = case.run(one_rank)
        if any(result is None or not means for result, means in results):
            return "write zero3_forward and zero3_backward first"
        fault = next(filter(None, faults), "") or _fault_of_results(case, x, results)
        return fault or _fault_of_traffic(exchanges[0], gathers=2)

    right = "one unit is gathered at a time, and every gradient is scattered at once"
    return verdict_of(right, *for_ranks(check, *WORLDS))


def _fault_of_waiting(collectives: PartExchanges) -> str:
    """The fault if a unit's gradient is not scattered before the next unit is used."""
    waiting = 0
    for kind, _ in collectives.log:
        waiting += (kind == LAYER) - (kind == SCATTER)
        if waiting > 1:
            return "a gradient waits, whole, while the next unit's is made: scatter it at once"
    return ""


def _fault_of_results(case: _Case, x: Any, results: Sequence[Any]) -> str:
    right = x
    for number, weights in enumerate(case.weights):
        right = right * (number + 2) + weights.sum()
    for rank, (result, means) in enumerate(results):
        if not is_same(result, right):
            return f"rank {rank}'s forward pass does not return the last unit's result"
        if len(means) != UNITS:
            return f"zero3_backward returns {UNITS} parts, one for each unit, in their order"
        for number, mean in enumerate(means):
            if fault := case.fault_of_mean(mean, number, rank, "the mean gradient"):
                return fault
    return ""

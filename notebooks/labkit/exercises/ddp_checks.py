"""Exact checks of data parallelism by hand: per tensor, flat, and in buckets that start early.

The ranks are threads whose messages are counted, as for an all-reduce. An all-reduce here starts at
once and returns a function that waits for it; so it can be seen what was started before the
backward pass was over, and whether anybody waited too soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, for_ranks, judged, run_ranks

SHAPES = ((4, 3), (3,), (5, 4), (6,), (2, 2, 2), (7,))
BUCKET = 16  # numbers
TOLERANCE = 1e-9


@dataclass
class _Seen:
    """What one rank did: numbers of each all-reduce, in order, and what happened too early."""

    sizes: list[int] = field(default_factory=list)
    before_end: int = 0
    waited_before_end: bool = False
    is_over: bool = False

    def all_reduce(self, rank: int, world: int, send: Any, receive: Any) -> Callable[[Any], Any]:
        """Send at once to all others; what is returned adds what they send, in order."""
        others = [other for other in range(world) if other != rank]
        arrived: list[Any] = []
        pending: list[Any] = []

        def start(tensor: Any) -> Callable[[], Any]:
            self.sizes.append(int(tensor.numel()))
            self.before_end += not self.is_over
            own, number = tensor.clone(), len(pending)
            pending.append(own)
            for other in others:
                send(other, own)

            def wait() -> Any:
                self.waited_before_end = self.waited_before_end or not self.is_over
                while len(arrived) <= number:  # messages come in the order in which they were sent
                    mine = pending[len(arrived)]
                    arrived.append(mine + sum(receive(other) for other in others))
                return arrived[number].clone()

            return wait

        return start


def _gradients(world: int) -> list[list[Any]]:
    import torch

    generator = torch.Generator().manual_seed(world)
    return [
        [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
        for _ in range(world)
    ]


def _run(one_rank: Callable[..., Any], world: int) -> tuple[list[Any], list[_Seen]]:
    import torch

    seen = [_Seen() for _ in range(world)]

    def run(_: Any, rank: int, world: int, send: Any, receive: Any) -> Any:
        return one_rank(rank, seen[rank], seen[rank].all_reduce(rank, world, send, receive))

    results, _ = run_ranks(run, [torch.zeros(1)] * world)
    return results, seen


def check_sync(function: Callable[..., Any], *, flat: bool = False) -> CodeVerdict:
    """Whether a function turns each rank's gradients into the means over all ranks.

    Args:
        function: `sync(gradients, world, all_reduce)` returning the list of mean gradients.
            `all_reduce(tensor)` starts and returns a function that waits and returns the sum.
        flat: all gradients must travel in one all-reduce; else each in one of its own.
    """

    def check(world: int) -> str:
        gradients = _gradients(world)

        def one_rank(rank: int, seen: _Seen, all_reduce: Any) -> Any:
            seen.is_over = True
            return function([one.clone() for one in gradients[rank]], world, all_reduce)

        results, seen = _run(one_rank, world)
        calls, wanted = len(seen[0].sizes), 1 if flat else len(SHAPES)
        if results[0] is None or not calls:
            return "write it first: nothing was sent, or nothing came back"
        if calls != wanted:
            return f"{calls} all-reduces for {len(SHAPES)} gradients, where {wanted} should be made"
        return _fault_of(results, gradients)

    how = "one all-reduce" if flat else "an all-reduce for each gradient"
    return judged(f"every rank has the mean gradients, with {how}", *for_ranks(check, 1, 2, 3))


def _fault_of(results: Sequence[Any], gradients: list[list[Any]]) -> str:
    """What is wrong with what the ranks hold at the end; empty when nothing is."""
    world = len(gradients)
    means = [sum(parts) / world for parts in zip(*gradients, strict=True)]
    for found in results:
        if found is None or len(found) != len(means):
            return f"return {len(means)} gradients, in the order of the parameters"
        for number, (got, mean) in enumerate(zip(found, means, strict=True)):
            if fault := _fault_of_one(number, got, gradients, mean):
                return fault
    return ""


def _fault_of_one(number: int, got: Any, gradients: list[list[Any]], mean: Any) -> str:
    world = len(gradients)
    if got is None or tuple(got.shape) != tuple(mean.shape):
        shape = None if got is None else tuple(got.shape)
        return f"gradient {number} must have the shape {tuple(mean.shape)}; it has {shape}"
    if (got - mean).norm() <= TOLERANCE:
        return ""
    if (got - mean * world).norm() <= TOLERANCE:
        return f"gradient {number} is the ranks' sum, not their mean"
    if any((got - own[number]).norm() <= TOLERANCE for own in gradients):
        return f"gradient {number} is one rank's own: did its bucket ever leave?"
    return f"gradient {number} is not the mean over the ranks"


def check_buckets(make: Callable[..., Any]) -> CodeVerdict:
    """Whether gradients are sent in buckets, as soon as a bucket is full.

    Args:
        make: `Buckets(world, all_reduce, most)`; `ready(number, gradient)` is called for each
            gradient as the backward pass makes it, last parameter first, and must send a bucket as
            soon as it holds `most` numbers; `finish()` sends the rest, waits, and returns a dict of
            the mean gradients by number.
    """

    def check(world: int) -> str:
        gradients = _gradients(world)

        def one_rank(rank: int, seen: _Seen, all_reduce: Any) -> Any:
            buckets = make(world, all_reduce, BUCKET)
            for number in reversed(range(len(SHAPES))):
                buckets.ready(number, gradients[rank][number].clone())
            seen.is_over = True
            found = buckets.finish()
            return None if not found else [found.get(number) for number in range(len(SHAPES))]

        results, seen = _run(one_rank, world)
        return _fault_of_buckets(seen[0]) or _fault_of(results, gradients)

    right = "the means are right, and full buckets left during the backward pass"
    return judged(right, *for_ranks(check, 1, 2, 3))


def _fault_of_buckets(seen: _Seen) -> str:
    """The first rule of buckets that was broken; empty when none was."""
    wanted = _bucket_sizes()
    rules = (
        (bool(seen.sizes), "write Buckets first: nothing was sent"),
        (
            not seen.waited_before_end,
            "ready waits for its all-reduce, so nothing is computed while it travels",
        ),
        (
            seen.before_end > 0,
            "nothing was sent before finish: a full bucket must leave at once, in ready",
        ),
        (
            len(seen.sizes) < len(SHAPES),
            "every gradient went alone: collect until a bucket holds `most` numbers",
        ),
        (
            sum(seen.sizes) >= sum(wanted),
            "not all gradients were sent: the last bucket may never fill, and must leave too",
        ),
        (
            seen.sizes == wanted,
            f"buckets of {seen.sizes} numbers left; with most={BUCKET} they must be {wanted}",
        ),
    )
    return next((words for is_kept, words in rules if not is_kept), "")


def _bucket_sizes() -> list[int]:
    """The numbers in each bucket, if one leaves as soon as it holds `BUCKET` of them."""
    found, held = [], 0
    for shape in reversed(SHAPES):
        held += math.prod(shape)
        if held >= BUCKET:
            found.append(held)
            held = 0
    return [*found, held] if held else found

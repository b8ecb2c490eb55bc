"""The exact check of a tensor-parallel pair of layers: split by columns, then by rows.

Ranks are threads whose messages are counted; the truth is autograd's, on the whole matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, all_reducer, for_ranks, judged, run_ranks

ROWS, WIDTH, INNER = 5, 4, 12
TOLERANCE = 1e-9


@dataclass(frozen=True)
class _Truth:
    """The pair on one rank: what goes in, and what comes out by autograd."""

    x: Any
    first: Any
    second: Any
    delta: Any
    output: Any
    gradients: tuple[Any, Any, Any]


def _truth() -> _Truth:
    import torch

    generator = torch.Generator().manual_seed(6)
    shapes = ((ROWS, WIDTH), (WIDTH, INNER), (INNER, WIDTH), (ROWS, WIDTH))
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    leaves = [one.clone().requires_grad_() for one in made[:3]]
    output = (leaves[0] @ leaves[1]).relu() @ leaves[2]
    output.backward(made[3])
    gradients = (leaves[0].grad, leaves[1].grad, leaves[2].grad)
    x, first, second, delta = made
    return _Truth(x, first, second, delta, output.detach(), gradients)


def check_pair(forward: Callable[..., Any], backward: Callable[..., Any]) -> CodeVerdict:
    """Whether each rank's part of two layers gives the whole output and the right gradients.

    Args:
        forward: `pair_forward(x, first, second, all_reduce)` returning the output and what
            `backward` needs; `first` is the rank's columns, `second` its rows, ReLU between them,
            and `all_reduce(tensor)` returns the sum over the ranks.
        backward: `pair_backward(delta, kept, first, second, all_reduce)` returning the gradients of
            x, first and second.
    """
    truth = _truth()
    right = "output and gradients are exact, with one all-reduce each way"
    return judged(right, *for_ranks(partial(_fault, forward, backward, truth), 2, 3))


def _fault(
    forward: Callable[..., Any], backward: Callable[..., Any], truth: _Truth, world: int
) -> str:
    import torch

    firsts, seconds = truth.first.tensor_split(world, 1), truth.second.tensor_split(world, 0)
    sent: list[list[tuple[int, ...]]] = [[] for _ in range(world)]

    def one_rank(_: Any, rank: int, world: int, send: Any, receive: Any) -> Any:
        add = all_reducer(rank, world, send, receive)

        def all_reduce(tensor: Any) -> Any:
            sent[rank].append(tuple(tensor.shape))
            return add(tensor)

        own = (firsts[rank].clone(), seconds[rank].clone())
        made = forward(truth.x.clone(), *own, all_reduce)
        if made is None:
            return None
        output, kept = made
        return output, backward(truth.delta.clone(), kept, *own, all_reduce)

    results, _ = run_ranks(one_rank, [torch.zeros(1)] * world)
    if any(one is None or one[1] is None for one in results):
        return "write pair_forward and pair_backward first"
    for rank, (output, gradients) in enumerate(results):
        if fault := _forward_fault(output, truth, firsts[rank], seconds[rank]):
            return fault
        if fault := _backward_fault(gradients, truth, firsts, seconds, rank):
            return fault
    return _sent_fault(sent[0])


def _is(found: Any, want: Any) -> bool:
    same_shape = tuple(getattr(found, "shape", ())) == tuple(want.shape)
    return same_shape and bool((found - want).norm() <= TOLERANCE)


def _forward_fault(output: Any, truth: _Truth, first: Any, second: Any) -> str:
    if _is(output, truth.output):
        return ""
    known = (
        (
            (truth.x @ first).relu() @ second,
            "the output is one rank's part: the parts must be added",
        ),
        (truth.x @ truth.first @ truth.second, "between the two layers there is a ReLU"),
        (
            (truth.x @ truth.first @ truth.second).relu(),
            "ReLU stands between the layers, before the parts are added",
        ),
    )
    why = (words for wrong, words in known if _is(output, wrong))
    return next(why, "the output is not relu(x @ W1) @ W2")


def _backward_fault(gradients: Any, truth: _Truth, firsts: Any, seconds: Any, rank: int) -> str:
    if not isinstance(gradients, list | tuple) or len(gradients) != 3:
        return "pair_backward returns three gradients: of x, of first and of second"
    world = len(firsts)
    of_x, of_first, of_second = truth.gradients
    wanted = (of_x, of_first.tensor_split(world, 1)[rank], of_second.tensor_split(world, 0)[rank])
    hidden = truth.x @ firsts[rank]
    back = truth.delta @ seconds[rank].T
    known = (
        ((back * (hidden > 0)) @ firsts[rank].T, "it is one rank's part: the parts must be added"),
        (back @ firsts[rank].T, "ReLU lets a gradient pass only where its result is above 0"),
    )
    for name, found, want in zip(("x", "first", "second"), gradients, wanted, strict=True):
        if not _is(found, want):
            why = (words for wrong, words in known if _is(found, wrong))
            return f"the gradient of {name} is wrong: " + next(why, "compare it with autograd's")
    return ""


def _sent_fault(sent: list[tuple[int, ...]]) -> str:
    """One all-reduce of the output forward and one of x's gradient backward, and no more."""
    if sent == [(ROWS, WIDTH)] * 2:
        return ""
    if any(ROWS in shape and shape[-1] > WIDTH for shape in sent):
        return (
            "the hidden layer is sent: it is four times as wide, and no rank needs another's part"
        )
    return (
        f"{len(sent)} all-reduces of {sent}; one each way is enough: the weights are the rank's own"
    )

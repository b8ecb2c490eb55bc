"""Exact checks of tensor parallelism: a product that is split, and a pair of layers.

A pair is split by columns, then by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from labkit.exercises.code_checks import (
    CodeVerdict,
    Exchanges,
    for_ranks,
    is_same,
    judged,
    mistake_in,
    random_tensors,
    run_exchanging,
    with_ranks,
)
from labkit.machine.profiling import watching

PRODUCT_ROWS = 7  # no size of its matrices
ROWS, WIDTH, INNER = 5, 4, 12


def check_split_matmul(function: Callable[..., Any], *, by: str) -> CodeVerdict:
    """Whether a split product equals the whole one.

    Args:
        function: `split_matmul(x, weights, ranks)` returning x @ weights from `ranks` partial
            products.
        by: "rows" or "columns", named in the verdict.
    """
    products: list[tuple[int, ...]] = []

    def note(called: Any, args: Any, _: Any, __: Any) -> None:
        if called._schema.name in ("aten::mm", "aten::addmm"):
            left, right = (tuple(one.shape) for one in args[-2:])
            # a @ b may be made as the transpose of b' @ a'
            products.append(right if left[0] == PRODUCT_ROWS else left[::-1])

    def check(ranks: int, inner: int, outer: int) -> str:
        x, weights = random_tensors(2, (PRODUCT_ROWS, inner), (inner, outer))
        products.clear()
        with watching(note):
            found = function(x, weights, ranks)
        if found is None:
            return f"write the split by {by} first: it returned nothing"
        if not is_same(found, x @ weights):
            return f"the result {tuple(getattr(found, 'shape', ()))} is not x @ w"
        part = (inner // ranks, outer) if by == "rows" else (inner, outer // ranks)
        if products != [part] * ranks:
            made = ", ".join(f"{a}×{b}" for a, b in products) or "nothing"
            return (
                f"they must each multiply by a part of the {by}, {part[0]}×{part[1]}; "
                f"yours multiplied {made}"
            )
        return ""

    sizes = ((2, 10, 6), (4, 8, 12), (5, 10, 10))
    right = f"split by {by}, the product is exact for 2, 4 and 5 ranks"
    return judged(right, *((with_ranks(size[0]), partial(check, *size)) for size in sizes))


def check_pair(forward: Callable[..., Any], backward: Callable[..., Any]) -> CodeVerdict:
    """Whether each rank's part of two layers gives the whole output and the right gradients.

    Args:
        forward: `pair_forward(x, first, second, all_reduce)` returning the output and what
            `backward` needs; `first` is the rank's columns, `second` its rows, ReLU between them,
            and `all_reduce(tensor)` returns the sum over the ranks.
        backward: `pair_backward(delta, kept, first, second, all_reduce)` returning the gradients of
            x, first and second.
    """
    shapes = ((ROWS, WIDTH), (WIDTH, INNER), (INNER, WIDTH), (ROWS, WIDTH))

    def check(world: int) -> str:
        x, first, second, delta = random_tensors(6, *shapes)
        parts = list(zip(first.tensor_split(world, 1), second.tensor_split(world, 0), strict=True))

        def one_rank(own: Exchanges) -> Any:
            part = [one.clone() for one in parts[own.rank]]
            made = forward(x.clone(), *part, own.all_reduce)
            return made and (made[0], backward(delta.clone(), made[1], *part, own.all_reduce))

        results, seen = run_exchanging(one_rank, world)
        if any(made is None or made[1] is None for made in results):
            return "write pair_forward and pair_backward first"
        for part, (output, gradients) in zip(parts, results, strict=True):
            fault = _forward_fault(output, x, (first, second), part)
            fault = fault or _backward_fault(gradients, x, delta, (first, second), part)
            if fault:
                return fault
        return _sent_fault(seen[0].shapes)

    right = "output and gradients are exact, with one all-reduce each way"
    return judged(right, *for_ranks(check, 2, 3))


def _forward_fault(output: Any, x: Any, whole: Any, part: Any) -> str:
    right = (x @ whole[0]).relu() @ whole[1]
    known = (
        ("the output is one rank's part: the parts must be added", (x @ part[0]).relu() @ part[1]),
        ("between the two layers there is a ReLU", x @ whole[0] @ whole[1]),
        (
            "ReLU stands between the layers, before the parts are added",
            (x @ whole[0] @ whole[1]).relu(),
        ),
    )
    otherwise = "the output is not relu(x @ W1) @ W2"
    return "" if is_same(output, right) else mistake_in(output, known, otherwise)


def _backward_fault(gradients: Any, x: Any, delta: Any, whole: Any, part: Any) -> str:
    if not isinstance(gradients, list | tuple) or len(gradients) != 3:
        return "pair_backward returns three gradients: of x, of first and of second"

    def right(first: Any, second: Any) -> tuple[Any, Any, Any]:
        hidden = (x @ first).relu()
        of_hidden = delta @ second.T * (hidden > 0)
        return of_hidden @ first.T, x.T @ of_hidden, hidden.T @ delta

    known = (
        ("it is one rank's part: the parts must be added", right(*part)[0]),
        (
            "ReLU lets a gradient pass only where its result is above 0",
            delta @ whole[1].T @ whole[0].T,
        ),
    )
    wanted = (right(*whole)[0], *right(*part)[1:])
    for name, found, want in zip(("x", "first", "second"), gradients, wanted, strict=True):
        if not is_same(found, want):
            why = mistake_in(found, known, "compare it with autograd's")
            return f"the gradient of {name} is wrong: {why}"
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

"""Exact checks of parallelism by hand: averages, all-reduces, buckets of gradients, split products.

An all-reduce of the student's own is given mailboxes. One that is given starts at once and returns
a function that waits for it; so it can be seen what was started before the backward pass was over,
and whether anybody waited too soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.exercises.code_checks import (
    CodeVerdict,
    Exchanges,
    Mail,
    for_ranks,
    is_same,
    mistake_in,
    random_tensors,
    run_exchanging,
    run_mailing,
    verdict_of,
    with_ranks,
)

SHAPES = ((4, 3), (3,), (5, 4), (6,), (2, 2, 2), (7,))
BUCKETS = (16, 15, 1, 1000)  # numbers: 15 is exactly what two gradients hold, 1000 more than all
PRODUCT_ROWS = 7  # no size of its matrices
ROWS, WIDTH, INNER = 5, 4, 12


def check_gradient_averaging(function: Callable[[Sequence[Any]], Any]) -> CodeVerdict:
    """Whether gradients of equal shares of a batch are combined into the whole batch's gradient.

    Args:
        function: takes the list of the ranks' gradients, returns the combined one.
    """

    def check(ranks: int) -> str:
        parts = random_tensors(*[(3, 3)] * ranks)
        total, combined = sum(parts), function(list(parts))
        mean: Any = total / ranks
        if is_same(combined, mean):
            return ""
        if getattr(combined, "shape", None) != mean.shape:
            return "return one tensor of the same shape as each gradient"
        known_mistakes = [("it is the sum, and the loss is a mean over samples", total)]
        known_mistakes += [("it is one rank's own, which saw only a part", part) for part in parts]
        off = float((combined - mean).norm() / mean.norm())
        explanation = mistake_in(combined, known_mistakes, "compare it with the mean")
        return f"the combined gradient is off by {off:.2g} (relative): {explanation}"

    right = "the combined gradient is that of the whole batch, for 2, 3 and 4 ranks"
    return verdict_of(right, *for_ranks(check, 2, 3, 4))


def check_all_reduce(function: Callable[..., Any], *, ring: bool = False) -> CodeVerdict:
    """Whether an all-reduce gives every rank the sum, for 1 to 5 ranks and any size.

    Args:
        function: `all_reduce(tensor, rank, world, send, receive)` returning the sum over all ranks.
        ring: also require that no rank sends more than a ring does, 2(n-1)/n of the bytes (and
            padding).
    """
    sizes = {1: 4, 2: 8, 3: 12, 4: 7, 5: 23}

    def check(world: int) -> str:
        inputs = random_tensors(*[sizes[world]] * world)
        total = sum(inputs)
        results, mails = run_mailing(function, inputs)
        for rank, result in enumerate(results):
            if not is_same(result, total):
                explanation = _mistake_in_sum(result, total, inputs[rank], world)
                return f"rank {rank} does not hold the sum{explanation and ': '}{explanation}"
        allowed = 2 * (world - 1) * -(-sizes[world] // world) * inputs[0].element_size()
        most_sent = max(mail.sent_bytes for mail in mails)
        if ring and most_sent > allowed:
            return f"one sends {most_sent} bytes; a ring sends {allowed}"
        return _fault_of_mails(mails, inputs[0].numel() * inputs[0].element_size())

    return verdict_of("every rank holds the sum, for 1 to 5 ranks", *for_ranks(check, *sizes))


def _fault_of_mails(mails: Sequence[Mail], tensor_bytes: int) -> str:
    """Describe numbers that a rank has and cannot have received; empty where there are none."""
    for rank, mail in enumerate(mails):
        if silent := set(range(len(mails))) - mail.origins:
            return f"rank {rank} holds the sum, but received nothing of rank {min(silent)}'s"
        if len(mails) > 1 and mail.sent_bytes < tensor_bytes:
            return f"rank {rank} sent {mail.sent_bytes} bytes of its tensor's {tensor_bytes}"
    return ""


def _mistake_in_sum(result: Any, total: Any, own_tensor: Any, world: int) -> str:
    """Describe what a rank holds in place of the sum; empty where it is no known mistake."""
    if result is None:
        return "it returned nothing"
    known_mistakes = (
        ("it still holds only its own tensor", own_tensor),
        ("it is the mean: an all-reduce only adds", total / world),
    )
    mistake = mistake_in(result, known_mistakes)
    if mistake or getattr(result, "shape", None) != total.shape:
        return mistake
    finished_count = int(total.isclose(result).sum())
    if not finished_count:
        return ""
    return f"{finished_count} of its {len(total)} numbers are finished, the others are not"


def _gradients(world: int) -> list[list[Any]]:
    return [random_tensors(*SHAPES) for _ in range(world)]


def check_sync(function: Callable[..., Any], *, flat: bool = False) -> CodeVerdict:
    """Whether a function turns each rank's gradients into the means over all ranks.

    Args:
        function: `sync(gradients, world, all_reduce)` returning the list of mean gradients.
            `all_reduce(tensor)` starts and returns a function that waits and returns the sum.
        flat: all gradients must travel in one all-reduce; else each in one of its own.
    """

    def check(world: int) -> str:
        gradients = _gradients(world)

        def one_rank(exchanges: Exchanges) -> Any:
            return function(
                [gradient.clone() for gradient in gradients[exchanges.rank]], world, exchanges.start
            )

        results, rank_exchanges = run_exchanging(one_rank, world)
        calls, expected_calls = len(rank_exchanges[0].shapes), 1 if flat else len(SHAPES)
        if results[0] is None or not calls:
            return "write it first: nothing was sent, or nothing came back"
        if calls != expected_calls:
            should_be = f"where {expected_calls} should be made"
            return f"{calls} all-reduces for {len(SHAPES)} gradients, {should_be}"
        return _fault_of(results, gradients)

    method = "one all-reduce" if flat else "an all-reduce for each gradient"
    return verdict_of(
        f"every rank has the mean gradients, with {method}", *for_ranks(check, 1, 2, 3)
    )


def _fault_of(results: Sequence[Any], gradients: list[list[Any]]) -> str:
    """The fault in the gradients that the ranks hold at the end; empty when there is none."""
    for means in results:
        if means is None or len(means) != len(SHAPES):
            return f"return {len(SHAPES)} gradients, in the order of the parameters"
        for number, parts in enumerate(zip(*gradients, strict=True)):
            mean, total = means[number], sum(parts)
            shape, right = getattr(mean, "shape", None), parts[0].shape
            if shape != right:
                has = shape and tuple(shape)
                return f"gradient {number} must have the shape {tuple(right)}; it has {has}"
            known_mistakes = [("the ranks' sum, not their mean", total)]
            known_mistakes += [
                ("one rank's own: did its bucket ever leave?", part) for part in parts
            ]
            if not is_same(mean, total / len(parts)):
                mistake = mistake_in(mean, known_mistakes, "not the mean over the ranks")
                return f"gradient {number} is {mistake}"
    return ""


def check_buckets(make: Callable[..., Any]) -> CodeVerdict:
    """Whether gradients are sent in buckets, as soon as a bucket is full.

    Args:
        make: `Buckets(world, all_reduce, most)`; `ready(number, gradient)` is called for each
            gradient as the backward pass makes it, last parameter first, and must send a bucket as
            soon as it holds `most` numbers; `finish()` sends the rest, waits, and returns a dict of
            the mean gradients by number.
    """

    def check(world: int, most: int) -> str:
        gradients = _gradients(world)

        def one_rank(exchanges: Exchanges) -> Any:
            buckets = make(world, exchanges.start, most)
            for number in reversed(range(len(SHAPES))):
                buckets.ready(number, gradients[exchanges.rank][number].clone())
            exchanges.is_over = True
            mean_by_number = buckets.finish()
            return (
                [mean_by_number.get(number) for number in range(len(SHAPES))]
                if mean_by_number
                else None
            )

        results, rank_exchanges = run_exchanging(one_rank, world)
        return _fault_of_buckets(rank_exchanges[0], most) or _fault_of(results, gradients)

    right = "the means are right, and full buckets left during the backward pass"
    cases = [case for most in BUCKETS for case in for_ranks(partial(check, most=most), 1, 2, 3)]
    return verdict_of(right, *cases)


def _fault_of_buckets(exchanges: Exchanges, most: int) -> str:
    """The first rule of buckets that was broken; empty when none was."""
    sizes, expected_sizes = [math.prod(shape) for shape in exchanges.shapes], _bucket_sizes(most)
    full_count = sum(size >= most for size in expected_sizes)
    rules = (
        (bool(sizes), "write Buckets first: nothing was sent"),
        (
            not exchanges.waited_before_end,
            "ready waits for its all-reduce, so nothing is computed while it travels",
        ),
        (
            exchanges.before_end > 0 or not full_count,
            "nothing was sent before finish: a full bucket must leave at once, in ready",
        ),
        (
            sizes == expected_sizes,
            f"buckets of {sizes} numbers left; with most={most} they must be {expected_sizes}",
        ),
        (
            exchanges.before_end == full_count,
            f"{exchanges.before_end} buckets left in ready; {full_count} were full before finish",
        ),
    )
    return next((rule for is_kept, rule in rules if not is_kept), "")


def _bucket_sizes(most: int) -> list[int]:
    """The numbers in each bucket, if one leaves as soon as it holds `most` of them."""
    sizes = [0]
    for shape in reversed(SHAPES):
        sizes[-1] += math.prod(shape)
        if sizes[-1] >= most:
            sizes.append(0)
    return [size for size in sizes if size]


def check_split_matmul(function: Callable[..., Any], *, by: str) -> CodeVerdict:
    """Whether a product is split among ranks, and put together again.

    Args:
        function: `split_matmul(x, weights, ranks)` returning the ranks' partial products, in order,
            and x @ weights made from them.
        by: "rows" or "columns", of the weights.
    """

    def check(ranks: int, inner: int, outer: int) -> str:
        x, weights = random_tensors((PRODUCT_ROWS, inner), (inner, outer))
        answer = function(x, weights, ranks)
        if answer is None or not isinstance(answer, list | tuple) or len(answer) != 2:
            return f"write the split by {by} first: it returns the ranks' products, and the whole"
        products, product = answer
        if product is None:
            return f"write the split by {by} first: it returned nothing"
        return _fault_of_products(products, x, weights, ranks, by) or _fault_of_sum(
            product, x @ weights, by
        )

    sizes = ((2, 10, 6), (4, 8, 12), (5, 10, 10))
    right = f"split by {by}, the product is exact for 2, 4 and 5 ranks"
    return verdict_of(right, *((with_ranks(size[0]), partial(check, *size)) for size in sizes))


def _products(x: Any, weights: Any, ranks: int, axis: str) -> list[Any]:
    """The ranks' products: by rows each has the shape of the whole, by columns its own columns."""
    if axis == "columns":
        return [x @ columns for columns in weights.tensor_split(ranks, 1)]
    parts = zip(x.tensor_split(ranks, 1), weights.tensor_split(ranks, 0), strict=True)
    return [columns_of_x @ rows for columns_of_x, rows in parts]


def _fault_of_products(products: Any, x: Any, weights: Any, ranks: int, axis: str) -> str:
    if not isinstance(products, list | tuple) or len(products) != ranks:
        count = len(products) if isinstance(products, list | tuple) else "no list of them"
        return f"it must return one product for each of {ranks} ranks; there are {count}"
    other = _products(x, weights, ranks, "rows" if axis == "columns" else "columns")
    for rank, (product, right) in enumerate(
        zip(products, _products(x, weights, ranks, axis), strict=True)
    ):
        if not is_same(product, right):
            known_mistakes = [
                ("it is the whole product, which no rank has to compute", x @ weights),
                (f"each must multiply by a part of the {axis} of weights", other[rank]),
            ]
            shapes = f"it is no product by a part of the {axis}, of shape {tuple(right.shape)}"
            return f"rank {rank}'s product is wrong: {mistake_in(product, known_mistakes, shapes)}"
    return ""


def _fault_of_sum(product: Any, right: Any, axis: str) -> str:
    if is_same(product, right):
        return ""
    joined = "added" if axis == "rows" else "put side by side"
    return f"the result {tuple(getattr(product, 'shape', ()))} is not x @ w: products are {joined}"


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
        x, first, second, delta = random_tensors(*shapes)
        parts = list(zip(first.tensor_split(world, 1), second.tensor_split(world, 0), strict=True))

        def one_rank(exchanges: Exchanges) -> Any:
            part = [weight.clone() for weight in parts[exchanges.rank]]
            output_and_kept = forward(x.clone(), *part, exchanges.all_reduce)
            if not output_and_kept:
                return output_and_kept
            output, kept_by_forward = output_and_kept[0], output_and_kept[1]
            return output, backward(delta.clone(), kept_by_forward, *part, exchanges.all_reduce)

        results, rank_exchanges = run_exchanging(one_rank, world)
        if any(result is None or result[1] is None for result in results):
            return "write pair_forward and pair_backward first"
        for part, (output, gradients) in zip(parts, results, strict=True):
            fault = _forward_fault(output, x, (first, second), part)
            fault = fault or _backward_fault(gradients, x, delta, (first, second), part)
            if fault:
                return fault
        return _fault_of_traffic(rank_exchanges[0].shapes)

    right = "output and gradients are exact, with one all-reduce each way"
    return verdict_of(right, *for_ranks(check, 2, 3))


def _forward_fault(output: Any, x: Any, whole_weights: Any, part: Any) -> str:
    right = (x @ whole_weights[0]).relu() @ whole_weights[1]
    known_mistakes = (
        ("the output is one rank's part: the parts must be added", (x @ part[0]).relu() @ part[1]),
        ("between the two layers there is a ReLU", x @ whole_weights[0] @ whole_weights[1]),
    )
    otherwise = "the output is not relu(x @ W1) @ W2"
    return "" if is_same(output, right) else mistake_in(output, known_mistakes, otherwise)


def _backward_fault(gradients: Any, x: Any, delta: Any, whole_weights: Any, part: Any) -> str:
    if not isinstance(gradients, list | tuple) or len(gradients) != 3:
        return "pair_backward returns three gradients: of x, of first and of second"

    def right(first: Any, second: Any) -> tuple[Any, Any, Any]:
        hidden = (x @ first).relu()
        of_hidden = delta @ second.T * (hidden > 0)
        return of_hidden @ first.T, x.T @ of_hidden, hidden.T @ delta

    known_mistakes = (
        ("it is one rank's part: the parts must be added", right(*part)[0]),
        (
            "ReLU lets a gradient pass only where its result is above 0",
            delta @ whole_weights[1].T @ whole_weights[0].T,
        ),
    )
    expected = (right(*whole_weights)[0], *right(*part)[1:])
    for name, gradient, right_gradient in zip(
        ("x", "first", "second"), gradients, expected, strict=True
    ):
        if not is_same(gradient, right_gradient):
            explanation = mistake_in(gradient, known_mistakes, "compare it with autograd's")
            return f"the gradient of {name} is wrong: {explanation}"
    return ""


def _fault_of_traffic(sent_shapes: list[tuple[int, ...]]) -> str:
    """Describe needless traffic; right is one all-reduce of the output and one of x's gradient."""
    if sent_shapes == [(ROWS, WIDTH)] * 2:
        return ""
    if any(ROWS in shape and shape[-1] > WIDTH for shape in sent_shapes):
        return (
            "the hidden layer is sent: it is four times as wide, and no rank needs another's part"
        )
    return (
        f"{len(sent_shapes)} all-reduces of {sent_shapes}; one each way is enough: "
        "the weights are the rank's own"
    )

"""Exact checks of attention that is split by heads: parts, results, gradients, traffic."""

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
    run_exchanging,
    verdict_of,
)

TOKENS, WIDTH, HEADS = 5, 8, 4
WORLDS = (2, 4, 1)
GRADIENTS = ("x", "qkv", "out")


def attention(x: Any, qkv: Any, out: Any, heads: int) -> Any:
    """The block with so many heads; the columns of qkv are q, k and v, each head by head."""
    tokens = len(x)
    q, k, v = (part.reshape(tokens, heads, -1).transpose(0, 1) for part in (x @ qkv).chunk(3, 1))
    weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(tokens, -1) @ out


def heads_of(qkv: Any, out: Any, rank: int, world: int) -> tuple[Any, Any]:
    """A rank's columns of qkv and rows of out."""
    import torch

    columns = [matrix.tensor_split(world, 1)[rank] for matrix in qkv.tensor_split(3, 1)]
    return torch.cat(columns, 1), out.tensor_split(world, 0)[rank]


class _BlockCase:
    """A block, what is right for it, and what each rank alone would compute."""

    def __init__(self, world: int) -> None:
        self.world = world
        shapes = ((TOKENS, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (TOKENS, WIDTH))
        self.x, qkv, self.out, self.delta = random_tensors(*shapes)
        self.qkv = qkv / WIDTH
        self.parts = [heads_of(self.qkv, self.out, rank, world) for rank in range(world)]
        self.result, self.gradients = self._forward_and_back(self.qkv, self.out, HEADS)

    def _forward_and_back(self, qkv: Any, out: Any, heads: int) -> tuple[Any, Sequence[Any]]:
        import torch

        leaves = [tensor.detach().clone().requires_grad_() for tensor in (self.x, qkv, out)]
        x, columns, rows = leaves
        result = attention(x, columns, rows, heads)
        return result.detach(), torch.autograd.grad(result, leaves, self.delta)

    def fault_of_parts(self, own_heads: Callable[..., Any]) -> str:
        """The fault in how the weights are divided; empty if each rank has its own heads'."""
        for rank, (columns, rows) in enumerate(self.parts):
            answer = own_heads(self.qkv.clone(), self.out.clone(), rank, self.world)
            if answer is None:
                return (
                    "write own_heads first: it returns this rank's columns of qkv and rows of out"
                )
            if not isinstance(answer, list | tuple) or len(answer) != 2:
                return "own_heads returns two matrices: columns of qkv, and rows of out"
            fault = self._fault_of_columns(answer[0], columns, rank)
            if fault or not is_same(answer[1], rows):
                columns_of_out = self.out.tensor_split(self.world, 1)[rank]
                known_mistakes = [
                    ("columns of out, where its heads' rows are needed", columns_of_out)
                ]
                otherwise = "not the rows of out that its heads' results are multiplied by"
                return (
                    f"rank {rank} has {fault or mistake_in(answer[1], known_mistakes, otherwise)}"
                )
        return ""

    def _fault_of_columns(self, answer: Any, right: Any, rank: int) -> str:
        if is_same(answer, right):
            return ""
        piece = self.qkv.tensor_split(self.world, 1)[rank]
        known_mistakes = [
            ("one piece of qkv, in which q, k and v are not of the same heads", piece)
        ]
        return mistake_in(
            answer, known_mistakes, "not its heads' columns of q, of k and of v, in this order"
        )

    def fault_of_step(self, rank: int, step: Sequence[Any]) -> str:
        """The fault in a rank's result and gradients; empty if they are right."""
        alone, gradients_alone = self._forward_and_back(*self.parts[rank], HEADS // self.world)
        result, *gradients = step
        if not is_same(result, self.result):
            known_mistakes = [("one rank's part: g adds up the ranks'", alone)]
            return f"the result is {mistake_in(result, known_mistakes, 'not that of all heads')}"
        own_gradients = heads_of(self.gradients[1], self.gradients[2], rank, self.world)
        if len(gradients) != len(GRADIENTS):
            return "attention_step returns four tensors: the result, and three gradients"
        for name, gradient, right, partial_sum in zip(
            GRADIENTS, gradients, (self.gradients[0], *own_gradients), gradients_alone, strict=True
        ):
            known_mistakes = [
                ("one rank's part: f adds up the ranks' on the way back", partial_sum),
                (
                    "as many times too large as there are ranks: g adds what each has",
                    self.world * right,
                ),
                ("too large twice over: both f and g add", self.world**2 * right),
            ]
            if not is_same(gradient, right):
                mistake = mistake_in(gradient, known_mistakes, "not that of the whole block")
                return f"the gradient of {name} is {mistake}"
        return ""


def check_attention(
    own_heads: Callable[..., Any], attention_step: Callable[..., Any]
) -> CodeVerdict:
    """Whether a block of attention is split over ranks by heads, with one all-reduce each way.

    Args:
        own_heads: `own_heads(qkv, out, rank, world)` returning the rank's columns of qkv and its
            rows of out.
        attention_step: `attention_step(x, qkv, out, delta, heads, all_reduce)` returning the result
            on one rank, and the gradients of x, qkv and out; qkv and out are the rank's own, as
            many heads as it has, and `all_reduce(tensor)` returns the sum over the ranks.
    """

    def check(world: int) -> str:
        case = _BlockCase(world)
        if fault := case.fault_of_parts(own_heads):
            return fault

        def one_rank(exchanges: Exchanges) -> Any:
            tensors = (case.x, *case.parts[exchanges.rank], case.delta)
            copies = [tensor.clone() for tensor in tensors]
            return attention_step(*copies, HEADS // world, exchanges.all_reduce)

        results, rank_exchanges = run_exchanging(one_rank, world)
        for rank, step in enumerate(results):
            if not isinstance(step, list | tuple) or not step:
                return "write conjugates, split_attention and attention_step, too"
            if fault := case.fault_of_step(rank, step):
                return fault
        return _fault_of_traffic(rank_exchanges[0].shapes)

    right = "result and gradients are those of the whole block, with one all-reduce each way"
    return verdict_of(right, *for_ranks(check, *WORLDS))


def _fault_of_traffic(sent_shapes: Sequence[tuple[int, ...]]) -> str:
    if list(sent_shapes) == [(TOKENS, WIDTH)] * 2:
        return ""
    shapes = ", ".join(map(str, sent_shapes)) or "nothing"
    return (
        f"{len(sent_shapes)} all-reduces in a step, of {shapes}: one of the result on the way "
        "there (g) and one of x's gradient on the way back (f) are enough"
    )

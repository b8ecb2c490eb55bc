"""What a split block is measured with: pairs that divide the rows, what is kept and sent."""

import pytest
from tests.needs import needs

from labkit.exercises import tensor_parallel
from labkit.exercises.attention_checks import attention, heads_of
from labkit.exercises.code_checks import run_exchanging
from labkit.exercises.tensor_parallel import KeptBytes, ring_bytes

needs("torch", "blocks are made of torch's tensors")

TOKENS, WIDTH, HEADS, WORLD = 6, 8, 4, 2


class RowExchanges:
    """Collectives of rows between ranks that are threads; every call is noted."""

    def __init__(self, exchanges):
        self._exchanges, self.calls = exchanges, []

    def all_gather(self, part):
        import torch

        self.calls.append("all-gather")
        parts = [self._exchanges.broadcast(part.detach(), rank) for rank in range(WORLD)]
        return torch.cat(parts)

    def reduce_scatter(self, tensor):
        self.calls.append("reduce-scatter")
        return self._exchanges.all_reduce(tensor.detach()).chunk(WORLD)[self._exchanges.rank]


def block_tensors():
    import torch

    luck = torch.Generator().manual_seed(0)
    shapes = ((TOKENS, WIDTH), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (TOKENS, WIDTH))
    return [torch.randn(shape, generator=luck, dtype=torch.float64) / 3 for shape in shapes]


def heads_result(product):
    """The own heads' results of a product with qkv, before they are multiplied by out."""
    import torch

    width = product.shape[1] // 3
    eyes = [torch.eye(size, dtype=product.dtype) for size in (3 * width, width)]
    return attention(product, *eyes, HEADS // WORLD)


@pytest.mark.parametrize("is_gathered_anew", [False, True])
def test_ranks_with_some_rows_compute_the_whole_block(is_gathered_anew):
    """Result, and the gradients of rows and weights; gathering anew costs one more all-gather."""
    import torch

    x, qkv, out, delta = block_tensors()
    leaves = [tensor.clone().requires_grad_() for tensor in (x, qkv, out)]
    result = attention(*leaves, HEADS)
    of_x, of_qkv, of_out = torch.autograd.grad(result, leaves, delta)

    def one_rank(exchanges):
        rows, rank = RowExchanges(exchanges), exchanges.rank
        gather, scatter = tensor_parallel.conjugates_by_rows(rows)
        own = [x.chunk(WORLD)[rank], *heads_of(qkv, out, rank, WORLD)]
        part, columns, out_rows = own = [tensor.clone().requires_grad_() for tensor in own]
        if is_gathered_anew:
            product = tensor_parallel.product_of_gathered(part, columns, rows)
        else:
            product = gather(part) @ columns
        own_result = scatter(heads_result(product) @ out_rows)
        gradients = torch.autograd.grad(own_result, own, delta.chunk(WORLD)[rank])
        return own_result, gradients, rows.calls

    results, _ = run_exchanging(one_rank, WORLD)
    for rank, (own_result, gradients, calls) in enumerate(results):
        expected = [of_x.chunk(WORLD)[rank], *heads_of(of_qkv, of_out, rank, WORLD)]
        assert torch.allclose(own_result, result.chunk(WORLD)[rank])
        assert all(map(torch.allclose, gradients, expected))
        assert calls.count("all-gather") == 2 + is_gathered_anew
        assert calls.count("reduce-scatter") == 2


def test_what_is_kept_counts_once_for_the_first_part_and_weights_do_not():
    """A product keeps its input and its weights; a mask has a byte a number."""
    import torch

    x, weights, mask = torch.randn(4, 8), torch.randn(8, 8), torch.ones(4, 8, dtype=torch.bool)
    x, weights = x.requires_grad_(), weights.requires_grad_()
    keeping = KeptBytes([weights])
    with keeping.by("products"):
        result = x @ weights + x @ weights
    with keeping.by("mask"):
        result = result * mask + x * 2
    assert keeping.bytes_by_part == {"products": 4 * 8 * 4, "mask": 4 * 8}
    result.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("calls", "sizes_sent"),
    [
        ({"all-reduce": 2}, 3.0),
        ({"all-gather": 2, "reduce-scatter": 2}, 3.0),
        ({"all-gather": 3, "reduce-scatter": 2}, 3.75),
        ({}, 0.0),
    ],
)
def test_a_ring_of_four_sends_three_quarters_for_half_an_all_reduce(calls, sizes_sent):
    """An all-reduce is a reduce-scatter and an all-gather."""
    assert ring_bytes(calls, 1.0, 4) == pytest.approx(sizes_sent)

"""What a block that is split over ranks is measured with: collectives, and what autograd keeps.

Rows are tokens. Tensor parallelism gives every rank all rows and some of the weights; sequence
parallelism also divides the rows, wherever a row is computed by itself. It runs in the child, and
wakes torch there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from labkit.exercises.sharding import Ring, peak_mib
from labkit.machine.profiling import MIB

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
FORWARD, BACKWARD = "forward", "backward"
KEPT_SHARE = 0.9  # of the numbers, which dropout lets through


class Collectives:
    """All-reduce, all-gather and reduce-scatter of a matrix's rows; every call is noted.

    Between several GPUs these are NCCL's. Everywhere else they are the rings of notebook 4c, in
    host memory, because torch's own reduce-scatter over gloo sends twice a ring's bytes.

    Args:
        in_host_memory: use the rings also between GPUs: only there can bytes be counted.

    Attributes:
        group: that torch's own modules may use.
        device: where the tensors must be.
        calls: of every call its pass, its kind, and how many numbers the whole tensor has.
    """

    def __init__(self, *, in_host_memory: bool = False) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._ring = Ring() if in_host_memory or dist.get_backend() != "nccl" else None
        self.group = self._ring.group if self._ring else dist.group.WORLD
        self.device = "cpu" if self._ring else "cuda"
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.calls: list[tuple[str, str, int]] = []
        self._direction = FORWARD

    def begin(self, direction: str) -> None:
        """A pass begins, "forward" or "backward"; a step's first one forgets the calls before."""
        if direction == FORWARD:
            self.calls.clear()
        self._direction = direction

    def all_reduce(self, tensor: Any) -> Any:
        """Return the sum of the ranks' tensors; what was given stays as it is."""
        self._note(ALL_REDUCE, tensor.numel())
        total = tensor.detach().reshape(-1).clone()
        if self._ring:
            self._ring.all_reduce(total)
        else:
            self._dist.all_reduce(total)
        return total.view(tensor.shape)

    def all_gather(self, part: Any) -> Any:
        """Return the ranks' rows as one matrix, in their order."""
        self._note(ALL_GATHER, part.numel() * self.world)
        rows = part.detach().clone().contiguous()
        if self._ring:
            return self._ring.all_gather(rows.view(-1)).view(-1, *rows.shape[1:])
        gathered = rows.new_empty(self.world * rows.shape[0], *rows.shape[1:])
        self._dist.all_gather_into_tensor(gathered, rows)
        return gathered

    def reduce_scatter(self, tensor: Any) -> Any:
        """Return this rank's rows of the ranks' sum; what was given stays as it is."""
        self._note(REDUCE_SCATTER, tensor.numel())
        contribution = tensor.detach().contiguous()
        shape = (contribution.shape[0] // self.world, *contribution.shape[1:])
        if self._ring:
            return self._ring.reduce_scatter(contribution.view(-1)).view(shape)
        part = contribution.new_empty(shape)
        self._dist.reduce_scatter_tensor(part, contribution)
        return part

    def barrier(self) -> None:
        """Wait until every rank is here, and has what was sent to it."""
        self._dist.barrier(group=self.group)

    def counts(self) -> dict[str, dict[str, int]]:
        """How many calls there were of each kind, by pass."""
        counts: dict[str, dict[str, int]] = {FORWARD: {}, BACKWARD: {}}
        for direction, kind, _ in self.calls:
            counts[direction][kind] = counts[direction].get(kind, 0) + 1
        return counts

    def _note(self, kind: str, numbers: int) -> None:
        self.calls.append((self._direction, kind, numbers))


def conjugates_by_rows(collectives: Collectives) -> tuple[Any, Any]:
    """The pair that takes the place of f and g where the rows are divided.

    Returns:
        A function that gathers the rows, and scatters their gradients' sums; and one that scatters
        the sums of the ranks' rows, and gathers their gradients (Korthikanti et al. 2022, section
        4.2.2).
    """
    import torch

    class GatherRows(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, part: Any) -> Any:
            return collectives.all_gather(part)

        @staticmethod
        def backward(ctx: Any, delta: Any) -> Any:
            return collectives.reduce_scatter(delta)

    class ScatterSums(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, partial_sum: Any) -> Any:
            return collectives.reduce_scatter(partial_sum)

        @staticmethod
        def backward(ctx: Any, delta: Any) -> Any:
            return collectives.all_gather(delta)

    return GatherRows.apply, ScatterSums.apply


def product_of_gathered(part: Any, weights: Any, collectives: Collectives) -> Any:
    """The gathered rows times the weights; they are not kept, but gathered anew to go back."""
    import torch

    class ProductOfGathered(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, part: Any, weights: Any) -> Any:
            ctx.save_for_backward(part, weights)
            return collectives.all_gather(part) @ weights

        @staticmethod
        def backward(ctx: Any, delta: Any) -> tuple[Any, Any]:
            part, weights = ctx.saved_tensors
            of_part = collectives.reduce_scatter(delta @ weights.T)
            return of_part, collectives.all_gather(part).T @ delta

    return ProductOfGathered.apply(part, weights)


class KeptBytes:
    """The bytes that autograd keeps for the backward pass, by the part of a block that keeps them.

    A tensor that two parts keep counts once, for the first; weights do not count.

    Args:
        weights: that are there anyway.

    Attributes:
        bytes_by_part: what was kept since the beginning.
    """

    def __init__(self, weights: Sequence[Any] = ()) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in weights}
        self.bytes_by_part: dict[str, int] = {}

    @contextlib.contextmanager
    def by(self, part: str) -> Iterator[None]:
        """Count what is kept meanwhile for this part."""
        import torch

        def keep(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                total = self.bytes_by_part.get(part, 0) + storage.nbytes()
                self.bytes_by_part[part] = total
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield


def step_peak_mib(step: Callable[[], Any], device: str) -> float:
    """The most MiB of tensors that a step holds at one moment, beside what was there before it."""
    if device == "cpu":
        return peak_mib(step)
    import torch

    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    step()
    return float(torch.cuda.max_memory_allocated() - before_bytes) / MIB


@contextlib.contextmanager
def counted_by_torch(counts: dict[str, int], is_counted: bool) -> Iterator[None]:
    """Count the collectives that torch's own modules call meanwhile, by kind, into `counts`."""
    if not is_counted:
        yield
        return
    from torch.distributed.tensor.debug import CommDebugMode

    kinds = {"all_reduce": ALL_REDUCE, "all_gather_into_tensor": ALL_GATHER}
    kinds["reduce_scatter_tensor"] = REDUCE_SCATTER
    with CommDebugMode() as watch:
        yield
    for operation, count in watch.get_comm_counts().items():
        name = str(operation).rpartition(".")[2]
        counts[kinds.get(name, name)] = count


def block_of_torch(
    weights: tuple[Any, Any], heads: int, mask: Any, group: Any, *, by_rows: bool
) -> Any:
    """The same block as a module, split by `torch.distributed.tensor.parallel`.

    Args:
        weights: the whole matrices for q, k and v, and of the result.
        heads: of the whole block.
        mask: of the dropout, for this rank's rows.
        group: of the ranks.
        by_rows: divide the rows, too.
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as styles

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = _linear(_head_by_head(weights[0], heads))
            self.out = _linear(weights[1])

        def forward(self, x: Any) -> Any:
            product = self.qkv(x)
            q, k, v = product.view(len(product), -1, 3, weights[1].shape[0] // heads).permute(
                2, 1, 0, 3
            )
            scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(dim=-1)
            return self.out((scores @ v).transpose(0, 1).reshape(len(product), -1))

    class NormedBlock(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(weights[1].shape[0], elementwise_affine=False)
            self.attention = Attention()

        def forward(self, x: Any) -> Any:
            return x + self.attention(self.norm(x)) * mask / KEPT_SHARE

    plan: dict[str, Any] = {"attention.qkv": styles.ColwiseParallel()}
    plan["attention.out"] = styles.RowwiseParallel(output_layouts=Shard(0) if by_rows else None)
    if by_rows:
        plan["norm"] = styles.SequenceParallel(sequence_dim=0)
        plan["attention"] = styles.PrepareModuleInput(
            input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),)
        )
    mesh = DeviceMesh.from_group(group, mask.device.type)
    return styles.parallelize_module(NormedBlock(), mesh, plan)


def _linear(matrix: Any) -> Any:
    """A linear layer with these weights, which torch keeps transposed."""
    import torch

    layer = torch.nn.Linear(*matrix.shape, bias=False, device=matrix.device, dtype=matrix.dtype)
    with torch.no_grad():
        layer.weight.copy_(matrix.T)
    return layer


def _head_by_head(qkv: Any, heads: int) -> Any:
    """The columns in the order of heads, q, k and v of each, so that a piece of them has heads."""
    columns = qkv.view(len(qkv), 3, heads, -1).transpose(1, 2)
    return columns.reshape(qkv.shape)


def ring_bytes(calls: Mapping[str, int], size_bytes: float, ranks: int) -> float:
    """What a rank sends for these calls, each as a ring of a tensor of this size.

    Source: (n-1)/n of it for an all-gather or a reduce-scatter, twice that for an all-reduce
    (Thakur et al. 2005, section 4).
    """
    passes = {ALL_REDUCE: 2, ALL_GATHER: 1, REDUCE_SCATTER: 1}
    return (
        sum(passes[kind] * count for kind, count in calls.items())
        * size_bytes
        * (ranks - 1)
        / ranks
    )

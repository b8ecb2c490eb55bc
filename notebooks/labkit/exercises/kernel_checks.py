"""Judges a softmax that goes through its rows in blocks: in torch on a CPU, or as a Triton kernel.

Both are judged on the same matrices: one block and several, a last block that is narrower, numbers
whose exponential overflows, and a largest number that comes first, last or in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from labkit.arguments import public
from labkit.exercises.code_checks import CodeVerdict, is_same, random_tensors, verdict_of

Softmax = Callable[[Any, int], Any]
CASES = (
    ("with three blocks", 2, 24, 8, 1.0, ""),
    ("with one block", 3, 8, 8, 1.0, ""),
    ("with a narrow last block", 3, 19, 8, 1.0, ""),
    ("with the largest number in the last block", 2, 32, 8, 3.0, "rising"),
    ("with the largest number in the first block", 2, 32, 8, 3.0, "falling"),
    ("with numbers of about 1000, the largest last", 3, 32, 8, 1000.0, "rising"),
    ("with numbers of about 1000, the largest first", 3, 32, 8, 1000.0, "falling"),
    ("with numbers far below zero", 2, 16, 8, 1.0, "low"),
)
"""In words; rows, columns, a block's columns, a factor of the numbers, and their order."""


class _Blocks:
    """A matrix that can be read and written by blocks of columns only, with a count of both."""

    def __init__(self, matrix: Any, width: int) -> None:
        self._parts = matrix.split(width, dim=1)
        self.results: dict[int, Any] = {}
        self.reads, self.writes = Counter[int](), Counter[int]()

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self._parts)

    def read(self, block: int) -> Any:
        """A copy of a block's numbers."""
        self.reads[self._numbered(block)] += 1
        return self._parts[block].clone()

    def write(self, block: int, part: Any) -> None:
        """Keep a block's results."""
        wanted_shape = self._parts[self._numbered(block)].shape
        if tuple(getattr(part, "shape", ())) != tuple(wanted_shape):
            raise ValueError(
                f"block {block} has the shape {tuple(wanted_shape)}, and what was written has "
                f"{tuple(getattr(part, 'shape', ()))}"
            )
        self.writes[block] += 1
        self.results[block] = part.clone()

    def _numbered(self, block: int) -> int:
        if block not in range(self.count):
            raise IndexError(f"there is no block {block}: they count from 0 to {self.count - 1}")
        return block


def _matrix(rows: int, columns: int, scale: float, order: str) -> Any:
    (matrix,) = random_tensors((rows, columns))
    matrix = matrix * scale
    if order in ("rising", "falling"):
        matrix = matrix.sort(dim=1, descending=order == "falling").values
    return matrix - 1000 if order == "low" else matrix


@public
def check_softmax(softmax_by_blocks: Callable[..., Any]) -> CodeVerdict:
    """Judge a function (read, write, blocks) that writes the softmax of every row.

    It may read each block twice and write it once.
    """

    def case(*matrix_of: Any) -> Callable[[], str]:
        return lambda: _fault_in_blocks(softmax_by_blocks, *matrix_of)

    return verdict_of(
        "every row's softmax, with two reads and one write of each number",
        *((label, case(*matrix_of)) for label, *matrix_of in CASES),
    )


def _fault_in_blocks(
    softmax_by_blocks: Callable[..., Any],
    rows: int,
    columns: int,
    width: int,
    scale: float,
    order: str,
) -> str:
    matrix = _matrix(rows, columns, scale, order)
    blocks = _Blocks(matrix, width)
    softmax_by_blocks(blocks.read, blocks.write, blocks.count)
    return _fault_of_traffic(blocks) or _fault_of_result(blocks, matrix, width)


def _fault_of_traffic(blocks: _Blocks) -> str:
    if not blocks.writes:
        return "write softmax_by_blocks first: nothing was written"
    if missing := sorted(set(range(blocks.count)) - blocks.writes.keys()):
        return f"block {missing[0]} was never written"
    if max(blocks.writes.values()) > 1:
        return "a block was written twice: a kernel writes its result once"
    if (most_reads := max(blocks.reads.values(), default=0)) > 2:
        return (
            f"a block was read {most_reads} times: find the largest number and the sum in one "
            "pass, and write in a second"
        )
    if blocks.count > 1 and blocks.reads.total() < 2 * blocks.count - 1:
        return (
            "every block was read only once: all of them were held, and a kernel's fast memory "
            "has room for one"
        )
    return ""


def _fault_of_result(blocks: _Blocks, matrix: Any, width: int) -> str:
    import torch

    result = torch.cat([blocks.results[block] for block in range(blocks.count)], dim=1)
    right = torch.softmax(matrix, dim=1)
    if is_same(result, right):
        return ""
    if not bool(torch.isfinite(result).all()):
        return "there are nan or inf: subtract the largest number before exp"
    if is_same(result, torch.cat([torch.softmax(p, 1) for p in matrix.split(width, 1)], dim=1)):
        return "every block sums to 1 on its own: the sum goes over the whole row"
    if is_same(result, torch.softmax(matrix.flatten(), 0).view_as(matrix)):
        return "all rows together sum to 1: every row has a largest number and a sum of its own"
    sums = ", ".join(f"{row:.4g}" for row in result.sum(dim=1)[:3].tolist())
    return (
        f"the rows sum to {sums}, or their parts are wrong: when a larger number comes, what was "
        "summed before must be multiplied by exp(old largest - new largest), and what is written "
        "subtracts the last one"
    )


def fault_of_kernel(softmax: Softmax, device: str) -> str:
    """The first fault of a softmax that gets whole matrices, in fp32; empty where there is none.

    Args:
        softmax: takes a matrix and a block's width.
        device: where the matrices are.
    """
    import torch

    for label, rows, columns, width, scale, order in CASES:
        matrix = _matrix(rows, columns, scale, order).float().to(device)
        result = softmax(matrix, width)
        if not bool(torch.isfinite(result).all()):
            return f"{label}: there are nan or inf, or a number was never written"
        difference = (result.double() - torch.softmax(matrix.double(), dim=1)).abs().max().item()
        if difference > 1e-5:
            return f"{label}: a number is off by {difference:.2g}"
    return ""

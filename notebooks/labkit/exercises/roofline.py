"""The roofline: what a device could reach at most, from counted FLOPs and bytes.

Counts are the algorithm's minimum ("model, not counter": on MIG the hardware counters are shared by
all slices). Pure functions, nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.arguments import public
from labkit.errors import WrongArgument

BYTES = {
    "float64": 8,
    "float32": 4,
    "tf32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "float8": 1,
}


@dataclass(frozen=True)
class Work:
    """One call's floating-point operations and the bytes it must at least move."""

    name: str
    flops: float
    moved_bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte: left of the ridge memory decides, right of it arithmetic."""
        return self.flops / self.moved_bytes


def _bytes_of(dtype: str) -> int:
    if dtype not in BYTES:
        raise WrongArgument(f"`{dtype}` is no format known here; there are {', '.join(BYTES)}.")
    return BYTES[dtype]


@public
def matmul(m: int, n: int, k: int, dtype: str = "float32") -> Work:
    """(m x k) times (k x n): 2mnk FLOP; each matrix once over the bus."""
    size = _bytes_of(dtype)
    return Work(f"matmul {m}x{k}x{n}", 2.0 * m * n * k, float(size * (m * k + k * n + m * n)))


@public
def matvec(m: int, k: int, dtype: str = "float32") -> Work:
    """(m x k) times a vector."""
    return Work(f"matvec {m}x{k}", 2.0 * m * k, float(_bytes_of(dtype) * (m * k + k + m)))


@public
def axpy(elements: int, dtype: str = "float32") -> Work:
    """The sum a*x + y: two reads, one write, two FLOP an element."""
    return Work(f"axpy {elements}", 2.0 * elements, 3.0 * _bytes_of(dtype) * elements)


@public
def dot(elements: int, dtype: str = "float32") -> Work:
    """The sum of x*y: two reads, two FLOP an element."""
    return Work(f"dot {elements}", 2.0 * elements, 2.0 * _bytes_of(dtype) * elements)


@public
def layer_norm(rows: int, width: int, dtype: str = "float32") -> Work:
    """Mean, variance, scale and shift: about 8 FLOP an element, one read and one write."""
    return Work(
        f"layer norm {rows}x{width}", 8.0 * rows * width, 2.0 * _bytes_of(dtype) * rows * width
    )

"""A matrix whose products somebody else makes, and can count.

Import only where torch is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Multiply = Callable[[Any, Any], Any]
PRODUCTS = frozenset({"matmul", "__matmul__", "mm"})


def counted(values: torch.Tensor, multiply: Multiply) -> Any:
    """A matrix that can be split, transposed and joined as any other.

    Args:
        values: its entries.
        multiply: is asked for each product `x @ part`, with x and the part.

    Returns:
        A tensor; `plain` is the same without this.
    """

    class CountedMatrix(torch.Tensor):  # type: ignore[misc]  # torch is untyped here
        @classmethod
        def __torch_function__(
            cls, called: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(called, "__name__", "")
            if name not in PRODUCTS or kwargs:
                return super().__torch_function__(called, types, args, kwargs or {})
            left, right = args
            if not isinstance(left, cls):
                return multiply(left, right.plain())
            # a @ b is the transpose of b' @ a'
            return multiply(_plain(right).mT, left.plain().mT).mT

        def plain(self) -> torch.Tensor:
            return self.as_subclass(torch.Tensor)

    return values.as_subclass(CountedMatrix)


def _plain(tensor: Any) -> Any:
    return tensor.as_subclass(torch.Tensor)

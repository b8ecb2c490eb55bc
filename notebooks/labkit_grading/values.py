"""Values as JSON, between the grader and a student's process: what is read can run nothing.

Only plain values, containers and tensors travel. Everything else stays where it was made and is
named by a number: a function of the grader, an object of the student's, or an object of the
grader's by the function that reads its attributes. Of a matrix whose products the grader counts,
the student's process gets the places of its entries and never the entries, so that there is no
other way to a product.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable
from typing import Any

FLOATS = ("float64", "float32", "float16", "bfloat16")
NAMED = ("function", "object", "attributes")
DTYPES = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")
Keep = Callable[[Any], dict[str, int]]
Find = Callable[[str, int], Any]


def encode(value: Any, keep: Keep) -> Any:
    """A value as JSON data.

    Args:
        value: anything.
        keep: takes what does not travel, and names it: {"function": 3}, {"object": 3} or
            {"attributes": 3}.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return _plain(value)
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(part, keep) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(part, keep)] for key, part in value.items()]}
    modules = {base.__module__.split(".")[0] for base in type(value).__mro__}
    if "torch" in modules and hasattr(value, "detach"):
        return _matrix(value, keep) if hasattr(value, "graders_multiply") else _tensor(value)
    if "numpy" in modules and hasattr(value, "tolist"):
        return encode(value.tolist(), keep)
    return keep(value)


def _plain(value: bool | float | str | None) -> bool | float | str | None:
    """The value itself; of a subclass (an enum's member, say) its plain value."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _matrix(value: Any, keep: Keep) -> dict[str, list[int]]:
    return {"matrix": [*value.shape, keep(value)["function"]]}


def _tensor(value: Any) -> dict[str, list[Any]]:
    import torch

    data = value.detach().to("cpu").contiguous()
    raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    dtype, text = str(data.dtype).removeprefix("torch."), base64.b64encode(raw).decode()
    return {"tensor": [dtype, list(data.shape), text]}


def decode(data: Any, find: Find) -> Any:
    """The value that `encode` wrote.

    Args:
        data: from JSON.
        find: the thing that a kind (of `NAMED`) and a number name.

    Raises:
        ValueError: nothing that `encode` writes looks like this.
    """
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("this is no value")
    ((kind, content),) = data.items()
    if kind in NAMED and isinstance(content, int):
        return find(kind, content)
    if not isinstance(content, list):
        raise ValueError(f"this is no {kind}")
    if kind == "tensor":
        return _to_tensor(*content)
    if kind == "matrix":
        rows, columns, multiply = content
        return _to_matrix(rows, columns, find("function", multiply))
    if kind == "dict":
        return {decode(key, find): decode(part, find) for key, part in content}
    parts = [decode(part, find) for part in content]
    return tuple(parts) if kind == "tuple" else parts


def _to_tensor(dtype: str, shape: list[int], raw: str) -> Any:
    import torch

    if dtype not in DTYPES or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("this is no tensor")
    kind = getattr(torch, dtype)
    content = base64.b64decode(raw, validate=True)
    if len(content) != math.prod(shape) * kind.itemsize:
        raise ValueError("this tensor's size does not fit its shape")
    if not content:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(content), dtype=kind).reshape(shape)


def _to_matrix(rows: int, columns: int, multiply: Callable[[Any, Any], Any]) -> Any:
    """The places of a matrix's entries, as numbers of the kind that the entries are."""
    import torch

    from labkit.exercises.counted import counted

    places = torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns)
    return counted(places, multiply)


class Kept:
    """The things of one side that the other side knows by number only."""

    def __init__(self, kind: str) -> None:
        self._kind, self._numbers = kind, itertools.count()
        self._things: dict[int, Any] = {}

    def keep(self, thing: Any) -> dict[str, int]:
        """Name a thing."""
        number = next(self._numbers)
        self._things[number] = thing
        return {self._kind: number}

    def __getitem__(self, number: int) -> Any:
        return self._things[number]

"""Every operation that torch runs, seen from below: what counts bytes or products hangs on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Note = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]


def watching(note: Note) -> Any:
    """A context in which this thread's operations are told; enter it only where torch is there.

    Args:
        note: is told each operation that ran, what it was given, and what it made.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
        def __torch_dispatch__(
            self, called: Any, _: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = called(*args, **(kwargs or {}))
            note(called, args, kwargs or {}, made)
            return made

    return Watching()

"""Working something out once for an object that never changes."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Frozen = TypeVar("Frozen")
P = ParamSpec("P")
T = TypeVar("T")


def once(work: Callable[Concatenate[Frozen, P], T]) -> Callable[Concatenate[Frozen, P], T]:
    """A pure function whose answers are kept with its first argument, and go when that goes.

    Args:
        work: of an object that never changes and has a ``__dict__``, and of hashable values.

    Returns:
        The same function.  Two threads that ask at the same time may both work it out.
    """

    @wraps(work)
    def answer(one: Frozen, /, *args: P.args, **named: P.kwargs) -> T:
        answers: dict[Any, Any] = one.__dict__.setdefault("_answers", {})
        key = (work, *args, *named.items())
        found: T
        try:
            found = answers[key]
        except KeyError:
            found = answers[key] = work(one, *args, **named)
        return found

    return answer

"""Refuses wrong arguments of public calls with a sentence, before anything is started."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from labkit.errors import WrongArgument

Given = ParamSpec("Given")
Found = TypeVar("Found")
IN_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    Callable: "a function",
    Sequence: "a list",
    Mapping: "a dictionary",
    type(None): "nothing",
}
MOST_SHOWN = 60


def public(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Make a call refuse, as a `WrongArgument`, what its signature does not take.

    Checked are the number and names of arguments, and the kind of those that are annotated with
    classes; what is in a list or dictionary is up to the function.
    """
    shape = inspect.signature(function)
    hints = typing.get_type_hints(function)

    @functools.wraps(function)
    def checked(*given: Given.args, **named: Given.kwargs) -> Found:
        try:
            bound = shape.bind(*given, **named)
        except TypeError as error:
            takes = ", ".join(str(one).split(":")[0] for one in shape.parameters.values())
            raise WrongArgument(f"{function.__name__}({takes}): {error}.") from error
        for name, value in bound.arguments.items():
            kind = shape.parameters[name].kind
            values = value if kind is inspect.Parameter.VAR_POSITIONAL else (value,)
            if kind is not inspect.Parameter.VAR_KEYWORD:
                for one in values:
                    _refuse(function.__name__, name, one, hints.get(name, Any))
        return function(*given, **named)

    return checked


def _refuse(call: str, name: str, value: Any, hint: Any) -> None:
    accepted = _accepted(hint)
    if accepted and not any(_is(value, one) for one in accepted):
        words = " or ".join(IN_WORDS.get(one) or f"a `{one.__name__}`" for one in accepted)
        shown = repr(value)[:MOST_SHOWN]
        raise WrongArgument(f"{call} takes {words} for `{name}`, not {shown}.")


def _accepted(hint: Any) -> tuple[Any, ...]:
    """The kinds a hint allows; empty where it is not checked here."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_accepted(one) for one in typing.get_args(hint)]
        return tuple(one for part in parts for one in part) if all(parts) else ()
    kind = origin or hint
    if isinstance(kind, type) and kind not in (object, Any):
        return (kind,)
    return ()


def _is(value: Any, kind: Any) -> bool:
    if kind is Callable:
        return callable(value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return isinstance(value, kind)

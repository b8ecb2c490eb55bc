"""Refuses wrong arguments of public calls with a sentence, before anything is started."""

from __future__ import annotations

import functools
import inspect
import math
import re
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
    range: "a range",
    Path: "a path",
    Callable: "a function",
    Sequence: "a list",
    Mapping: "a dictionary",
    type(None): "nothing",
}
COUNTS = frozenset(
    {"n", "ranks", "samples", "copies", "pairs", "times", "size", "sms", "sms_per_copy"}
    | {"batch", "width", "depth", "layers", "length", "rows", "micro_batches"}
)
AT_LEAST_ZERO = frozenset({"warm", "flops", "moved_bytes"})
NAMES_OF_FILES = frozenset({"key", "keys"})  # of experiments: their evidence lies in one
MOST_SHOWN = 60


def public(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Make a call refuse, as a `WrongArgument`, what its signature does not take.

    Checked are the number and names of arguments, the kind of those that are annotated with
    classes, and the range of numbers whose name says what they count; what is in a list or
    dictionary is up to the function.
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


def name_of(function: Any) -> str:
    """What a function is called; some have no name."""
    return str(getattr(function, "__name__", "work"))


def refuse_values(call: str, options_of: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse values that options cannot have.

    Args:
        call: as the student wrote it.
        options_of: whose keywords (or fields) the options are.
        given: the options, by name.
    """
    hints = typing.get_type_hints(options_of)
    for name, value in given.items():
        _refuse(call, name, value, hints[name])


def refuse_arguments(call: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments that the student's function does not have."""
    parameters = parameters_of(function)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in () if takes_any else given.keys() - parameters.keys():
        raise WrongArgument(
            f"`{name_of(function)}` has no argument `{name}`, and it is no option of {call} "
            f"either; `{name_of(function)}` takes {', '.join(parameters) or 'none'}."
        )


def options_of(run: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A call's options: the keywords of the function that carries it out."""
    parameters = inspect.signature(run).parameters.items()
    keywords = {name: one for name, one in parameters if one.kind is one.KEYWORD_ONLY}
    return {name: one for name, one in keywords.items() if name != "arguments"}


def split_options(
    call: str, run: Callable[..., Any], function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell a call's options from the arguments of the student's function; a `dtype` may be both.

    Args:
        call: as the student wrote it.
        run: carries it out; its keywords are the options.
        function: the student's.
        given: options and arguments, by name.

    Raises:
        WrongArgument: an option is missing or has a wrong value, the function has no such
            argument, or a name could mean either.
    """
    options, parameters = options_of(run), parameters_of(function)
    ours = {name: value for name, value in given.items() if name in options}
    arguments = {name: value for name, value in given.items() if name not in options}
    for name, one in options.items():
        if one.default is one.empty and name not in ours:
            raise WrongArgument(f"{call} also needs `{name}=`.")
    for name in ours.keys() & parameters.keys() - {"dtype"}:
        raise WrongArgument(
            f"`{name}` is both an option of {call} and an argument of `{name_of(function)}`: "
            "rename yours."
        )
    refuse_arguments(call, function, arguments)
    if "dtype" in ours and "dtype" in parameters:
        arguments["dtype"] = ours["dtype"]
    if type(ours.get("dtype")).__name__ == "dtype":  # torch's own, which is not imported here
        ours["dtype"] = str(ours["dtype"]).removeprefix("torch.")
    refuse_values(call, run, ours)
    return ours, arguments


def refuse_band(band: Any) -> None:
    """Refuse a band that no ratio can lie in."""
    is_pair = isinstance(band, tuple | list) and len(band) == 2
    if not is_pair or not all(_is_number(end) for end in band) or not band[0] <= band[1]:
        raise WrongArgument(
            f"`band` must be the lowest and highest ratio claimed, as (0.95, 1.05), not {band!r}."
        )


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """A function's parameters; of one that does not tell, any."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {"any": inspect.Parameter("any", inspect.Parameter.VAR_KEYWORD)}


def _refuse(call: str, name: str, value: Any, hint: Any) -> None:
    accepted = _accepted(hint)
    if not accepted:
        return
    words = " or ".join(IN_WORDS.get(one) or f"a `{one.__name__}`" for one in accepted)
    if any(_is(value, one) for one in accepted):
        bound = _bound(name, value)
        words = f"{words} {bound}" if bound else ""
    if words:
        raise WrongArgument(f"{call} takes {words} for `{name}`, not {value!r:.{MOST_SHOWN}}.")


def _bound(name: str, value: Any) -> str:
    """What a value of this name must be beyond its kind, in words; empty where it is."""
    if name in NAMES_OF_FILES and isinstance(value, str):
        return "" if re.fullmatch(r"[\w.-]+", value) else "of letters, digits, dots and dashes"
    if not _is_number(value):
        return ""
    if name in COUNTS and value < 1:
        return "of at least 1"
    if name in AT_LEAST_ZERO and value < 0:
        return "of at least 0"
    is_time = name == "seconds" or name.endswith("_s")
    return "above 0" if is_time and value <= 0 else ""


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
        return _is_number(value) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

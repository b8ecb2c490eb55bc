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

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
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


def public(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a call refuse, as a `WrongArgument`, what its signature does not take.

    Checked are the number and names of arguments, the kind of those that are annotated with
    classes, and the range of numbers whose name says what they count; what is in a list or
    dictionary is up to the function.
    """
    shape = inspect.signature(function)
    hints = typing.get_type_hints(function)

    @functools.wraps(function)
    def checked(*positional: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        try:
            bound = shape.bind(*positional, **keywords)
        except TypeError as error:
            takes = ", ".join(str(argument).split(":")[0] for argument in shape.parameters.values())
            raise WrongArgument(f"{function.__name__}({takes}): {error}.") from error
        for name, value in bound.arguments.items():
            kind = shape.parameters[name].kind
            values = value if kind is inspect.Parameter.VAR_POSITIONAL else (value,)
            if kind is not inspect.Parameter.VAR_KEYWORD:
                for argument in values:
                    _refuse_value(function.__name__, name, argument, hints.get(name, Any))
        return function(*positional, **keywords)

    return checked


def name_of(function: Any) -> str:
    """What a function is called; some have no name."""
    return str(getattr(function, "__name__", "work"))


def refuse_values(call: str, options_of: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse values that options cannot have.

    Args:
        call: as the student wrote it.
        options_of: whose keywords (or fields) the options are.
        options: by name.
    """
    hints = typing.get_type_hints(options_of)
    for name, value in options.items():
        _refuse_value(call, name, value, hints[name])


def refuse_arguments(call: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the student's function does not have."""
    parameters = parameters_of(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in () if takes_any else arguments.keys() - parameters.keys():
        raise WrongArgument(
            f"`{name_of(function)}` has no argument `{name}`, and it is no option of {call} "
            f"either; `{name_of(function)}` takes {', '.join(parameters) or 'none'}."
        )


def options_of(run: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A call's options: the keywords of the function that carries it out."""
    parameters = inspect.signature(run).parameters.items()
    keywords = {
        name: parameter
        for name, parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return {name: parameter for name, parameter in keywords.items() if name != "arguments"}


def split_options(
    call: str, run: Callable[..., Any], function: Callable[..., Any], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a call's options from the arguments of the student's function; a `dtype` may be both.

    Args:
        call: as the student wrote it.
        run: carries it out; its keywords are the options.
        function: the student's.
        keywords: options and arguments, by name.

    Raises:
        WrongArgument: an option is missing or has a wrong value, the function has no such
            argument, or a name could mean either.
    """
    options, parameters = options_of(run), parameters_of(function)
    call_options = {name: value for name, value in keywords.items() if name in options}
    arguments = {name: value for name, value in keywords.items() if name not in options}
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in call_options:
            raise WrongArgument(f"{call} also needs `{name}=`.")
    for name in call_options.keys() & parameters.keys() - {"dtype"}:
        raise WrongArgument(
            f"`{name}` is both an option of {call} and an argument of `{name_of(function)}`: "
            "rename yours."
        )
    refuse_arguments(call, function, arguments)
    if "dtype" in call_options and "dtype" in parameters:
        arguments["dtype"] = call_options["dtype"]
    # torch's own dtype, which is not imported here
    if type(call_options.get("dtype")).__name__ == "dtype":
        call_options["dtype"] = str(call_options["dtype"]).removeprefix("torch.")
    refuse_values(call, run, call_options)
    return call_options, arguments


def refuse_band(band: Any) -> None:
    """Refuse a band that no ratio can lie in."""
    is_pair = isinstance(band, tuple | list) and len(band) == 2
    if not is_pair or not all(_is_number(end) for end in band) or not band[0] <= band[1]:
        raise WrongArgument(
            f"`band` must be the lowest and highest ratio claimed, as (0.95, 1.05), not {band!r}."
        )


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """A function's parameters; any keyword where a function has no signature."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {"any": inspect.Parameter("any", inspect.Parameter.VAR_KEYWORD)}


def _refuse_value(call: str, name: str, value: Any, hint: Any) -> None:
    accepted = _accepted_kinds(hint)
    if not accepted:
        return
    expectation = " or ".join(IN_WORDS.get(kind) or f"a `{kind.__name__}`" for kind in accepted)
    if any(_is_of_kind(value, kind) for kind in accepted):
        bound = _unmet_bound(name, value)
        expectation = f"{expectation} {bound}" if bound else ""
    if expectation:
        raise WrongArgument(
            f"{call} takes {expectation} for `{name}`, not {value!r:.{MOST_SHOWN}}."
        )


def _unmet_bound(name: str, value: Any) -> str:
    """The bound that a value of this name breaks, as text; empty where it breaks none."""
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


def _accepted_kinds(hint: Any) -> tuple[Any, ...]:
    """The kinds a hint allows; empty where it is not checked here."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_accepted_kinds(argument) for argument in typing.get_args(hint)]
        return tuple(argument for part in parts for argument in part) if all(parts) else ()
    kind = origin or hint
    if isinstance(kind, type) and kind not in (object, Any):
        return (kind,)
    return ()


def _is_of_kind(value: Any, kind: Any) -> bool:
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

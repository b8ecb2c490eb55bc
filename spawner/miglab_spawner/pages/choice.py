"""What a student chose: read from a form, a query or an API call, without judging it.

Pure.  The pool decides what a user may have; this only decides what was asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miglab_api.base import COURSE_MAX, SHAPE_MAX
from miglab_api.offers import BORROW, CPU


class BadChoice(ValueError):
    """The options are not of the form the spawner reads; the message says which and why."""


@dataclass(frozen=True)
class SpawnChoice:
    """A shape and a course; an empty one means: the default."""

    shape: str = ""
    course: str = ""


def is_cpu(shape: str) -> bool:
    """Whether a shape needs no GPU, and so no pool."""
    return shape.strip().lower() == CPU


def is_borrow(shape: str) -> bool:
    """Whether a server holds no slice, and its measurements borrow one."""
    return shape.strip().lower() == BORROW


def needs_slice(shape: str) -> bool:
    """Whether a server of this shape holds a slice."""
    return not (is_cpu(shape) or is_borrow(shape))


def from_form(formdata: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Form or query data (lists of strings) to the options that JupyterHub stores.

    The shape may carry its course (``1g.5gb@course``): that is how one group of radio buttons
    offers the shapes of several courses.
    """
    shape, _, course = _first(formdata, "shape").partition("@")
    options = {"shape": shape, "course": course or _first(formdata, "course")}
    return {key: value for key, value in options.items() if value}


def parse(options: Mapping[str, Any]) -> SpawnChoice:
    """The choice in a server's options, which an API call may have filled with anything.

    Raises:
        BadChoice: shape or course is not a short text.
    """
    return SpawnChoice(
        shape=_text(options, "shape", SHAPE_MAX), course=_text(options, "course", COURSE_MAX)
    )


def forgotten(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without the choice: what the next start begins with after a hopeless refusal."""
    return {key: value for key, value in options.items() if key not in {"shape", "course"}}


def _first(formdata: Mapping[str, Sequence[str]], key: str) -> str:
    values = formdata.get(key) or [""]
    return values[0].strip()


def _text(options: Mapping[str, Any], key: str, longest: int) -> str:
    value = options.get(key) or ""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise BadChoice(f"“{key}” must be a text, not {type(value).__name__}.")
    value = value.strip()
    if len(value) > longest:
        raise BadChoice(f"“{key}” is longer than {longest} characters.")
    return value

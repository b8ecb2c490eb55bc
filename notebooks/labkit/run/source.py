"""Send a function of the notebook to a child, and say in words what came of it.

It goes by value, with everything of the notebook that it uses: a child cannot import a notebook, so
cloudpickle sends code, and with it values, classes and other functions; modules travel by name.
What cannot travel is said in a sentence, and so is what the function raised, memory that was full
among it.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import io
import linecache
import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from labkit.arguments import name_of
from labkit.errors import Unsendable

VALUE_LIMIT = 1 << 20  # bytes; bigger things belong inside the function, made where they are used
UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError, ValueError)
NOWHERE = "<dynamic-code>"
OF_MEMORY = (
    "out of memory",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "cudaErrorMemoryAllocation",
)
OWN: set[str] = set()  # in a child: the files and cells that the student's functions are from


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Notes which files the student's code is from, and which modules it needs."""

    def __init__(self, target: io.BytesIO, own: set[str]) -> None:
        super().__init__(target)
        self._own = own
        self.files: dict[str, str] = {}
        self.modules: set[str] = set()

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, types.ModuleType):
            self.modules.add(thing.__name__)
        elif isinstance(thing, type | types.FunctionType) and thing.__module__ not in self._own:
            self.modules.add(str(thing.__module__))
        elif isinstance(thing, types.FunctionType):
            file = thing.__code__.co_filename
            self.files[file] = "".join(linecache.getlines(file))
        elif isinstance(thing, types.CodeType):  # cloudpickle leaves out where it is from
            made, values = self.dispatch_table[types.CodeType](thing)
            return made, tuple(thing.co_filename if x == NOWHERE else x for x in values)
        return super().reducer_override(thing)


def pack(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function so that a child can rebuild it with `unpack`.

    Returns:
        JSON data: the pickled function, the text of the cells it is from, and the modules it needs.

    Raises:
        Unsendable: it uses something that cannot leave the notebook.
    """
    name, target = name_of(function), io.BytesIO()
    own = {"__main__", str(getattr(function, "__module__", "")), *_modules_used(function, set())}
    own = {one for one in own if not _is_library(one)}
    with _by_value(own):
        pickler = _Pickler(target, own)
        try:
            pickler.dump(function)
        except UNPICKLABLE as error:
            raise Unsendable(f"`{name}` cannot travel to a child process: {error}.") from error
    data = target.getvalue()
    if len(data) > VALUE_LIMIT:
        raise Unsendable(
            f"`{name}` and what it uses cannot travel to the child process that is timed: "
            f"it is {len(data) / 2**20:.0f} MiB. Make what is big inside `{name}`."
        )
    modules = sorted(pickler.modules)
    return {"data": base64.b64encode(data).decode(), "files": pickler.files, "modules": modules}


@contextlib.contextmanager
def _by_value(names: set[str]) -> Iterator[None]:
    """Send a student's own modules as a notebook is sent, whose name a child cannot import."""
    with contextlib.ExitStack() as sent:
        for name in names - {"__main__"}:
            if module := sys.modules.get(name):
                cloudpickle.register_pickle_by_value(module)
                sent.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _is_library(name: str) -> bool:
    """Whether every child can import it: a part of Python, of what is installed, or of labkit."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or file is None:
        return name in sys.builtin_module_names
    if name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    return any(Path(file).is_relative_to(one) for one in (sys.prefix, sys.base_prefix))


def _modules_used(function: Any, seen: set[Any]) -> Iterator[str]:
    """The modules of the functions and classes that a function uses, and they in turn.

    Raises:
        Unsendable: a value that they use is too big, or cannot be pickled; it is named.
    """
    if not isinstance(function, types.FunctionType) or function in seen:
        return
    seen.add(function)
    try:
        needed = inspect.getclosurevars(function)
    except ValueError:  # a name that is not bound yet
        return
    for name, value in {**needed.globals, **needed.nonlocals}.items():
        if isinstance(value, types.FunctionType | type):
            yield value.__module__
            if "<locals>" in value.__qualname__ or not _is_library(value.__module__):
                yield from _modules_used(value, seen)
        elif not isinstance(value, types.ModuleType):
            pack_value(value, name, name_of(function))


def pack_value(value: Any, name: str, wanted_by: str) -> str:
    """Pickle a value for the child.

    Raises:
        Unsendable: it is too big, or cannot be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(value)
    except UNPICKLABLE as error:
        raise Unsendable(_unsendable(name, value, wanted_by, str(error))) from error
    if len(data) > VALUE_LIMIT:
        raise Unsendable(_unsendable(name, value, wanted_by, f"it is {len(data) / 2**20:.0f} MiB"))
    return base64.b64encode(data).decode()


def _unsendable(name: str, value: Any, wanted_by: str, reason: str) -> str:
    return (
        f"`{wanted_by}` uses `{name}` ({type(value).__name__}), which cannot travel to the child "
        f"process that is timed: {reason}. "
        f"Make it inside `{wanted_by}`, or pass the numbers it is made from."
    )


def unpack_value(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301  written by this user's own notebook a moment ago


def unpack(packed: Mapping[str, Any]) -> Callable[..., Any]:
    """Rebuild a packed function in this process (the child)."""
    for file, text in packed["files"].items():
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        OWN.add(file)
    function: Callable[..., Any] = unpack_value(packed["data"])
    return function


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as JSON data, with the student's own line when one of theirs was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in OWN]
    place = {"function": own[-1].name, "line": own[-1].lineno, "text": own[-1].line} if own else {}
    return {
        "type": "error",
        "kind": type(error).__name__,
        "message": str(error),
        "trace": "".join(traceback.format_exception(error)),
        **place,
    }


def error_sentence(data: Mapping[str, Any], where: str = "in the child process") -> str:
    """Words for a `describe_error`: the student's line, what it raised, and where."""
    said = f"{data['kind']}: {data['message']}" if data["message"] else str(data["kind"])
    if "line" not in data:
        return f"{said} ({where})"
    place = f"line {data['line']} of the cell, in `{data['function']}`:   {data['text']}"
    return f"{place}\n{said} ({where})"


def is_out_of_memory(kind: str, message: str) -> bool:
    """Whether memory was full: torch's clean error, MIG's broken one, or the CPU's.

    On a MIG slice the allocator's own report fails, and what arrives is an internal assertion
    instead of an OutOfMemoryError (pytorch issues 112377, 122068, 197312).
    """
    return kind in ("OutOfMemoryError", "MemoryError") or any(sign in message for sign in OF_MEMORY)


def out_of_memory_sentence(error: Mapping[str, Any]) -> str:
    """What the student is told, their own line first."""
    place = f"line {error['line']} of the cell:   {error['text']}\n" if "line" in error else ""
    odd = " (torch reports this on a MIG slice as an internal assertion; it means the same)"
    odd = odd if "INTERNAL ASSERT" in error["message"] else ""
    return (
        f"{place}Out of memory{odd}. The work needs more than this device has free: "
        "make the batch or the model smaller, use a 16-bit type, or ask for a bigger slice. "
        "The process that ran out is gone, so its memory is free again."
    )

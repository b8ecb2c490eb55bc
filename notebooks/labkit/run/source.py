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

    def __init__(self, target: io.BytesIO, own_modules: set[str]) -> None:
        super().__init__(target)
        self._own = own_modules
        self.files: dict[str, str] = {}
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            self.modules.add(value.__name__)
        elif isinstance(value, type | types.FunctionType) and value.__module__ not in self._own:
            self.modules.add(str(value.__module__))
        elif isinstance(value, types.FunctionType):
            file = value.__code__.co_filename
            self.files[file] = "".join(linecache.getlines(file))
        elif isinstance(value, types.CodeType):  # cloudpickle leaves out where it is from
            rebuild, values = self.dispatch_table[types.CodeType](value)
            return rebuild, tuple(
                value.co_filename if field == NOWHERE else field for field in values
            )
        return super().reducer_override(value)


def pack(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function so that a child can rebuild it with `unpack`.

    Returns:
        JSON data: the pickled function, the text of the cells it is from, and the modules it needs.

    Raises:
        Unsendable: it uses something that cannot leave the notebook.
    """
    name, target = name_of(function), io.BytesIO()
    own_modules = {
        "__main__",
        str(getattr(function, "__module__", "")),
        *_modules_used(function, set()),
    }
    own_modules = {module for module in own_modules if not _is_library(module)}
    with _by_value(own_modules):
        pickler = _Pickler(target, own_modules)
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
    with contextlib.ExitStack() as registered:
        for name in names - {"__main__"}:
            if module := sys.modules.get(name):
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _is_library(name: str) -> bool:
    """Whether every child can import it: a part of Python, of what is installed, or of labkit."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or file is None:
        return name in sys.builtin_module_names
    if name.partition(".")[0] == __name__.partition(".")[0]:
        return True
    return any(Path(file).is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))


def _modules_used(function: Any, visited: set[Any]) -> Iterator[str]:
    """The modules of the functions and classes that a function uses, directly or through others.

    Raises:
        Unsendable: a value that they use is too big, or cannot be pickled; it is named.
    """
    if not isinstance(function, types.FunctionType) or function in visited:
        return
    visited.add(function)
    try:
        needed = inspect.getclosurevars(function)
    except ValueError:  # a name that is not bound yet
        return
    for name, value in {**needed.globals, **needed.nonlocals}.items():
        if isinstance(value, types.FunctionType | type):
            yield value.__module__
            if "<locals>" in value.__qualname__ or not _is_library(value.__module__):
                yield from _modules_used(value, visited)
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
    own_frames = [frame for frame in frames if frame.filename in OWN]
    place: dict[str, Any] = {}
    if own_frames:
        frame = own_frames[-1]
        place = {"function": frame.name, "line": frame.lineno, "text": frame.line}
    return {
        "type": "error",
        "kind": type(error).__name__,
        "message": str(error),
        "trace": "".join(traceback.format_exception(error)),
        **place,
    }


def error_sentence(data: Mapping[str, Any], process_name: str = "in the child process") -> str:
    """The text of a `describe_error`: the student's line, what it raised, and in which process."""
    error_text = f"{data['kind']}: {data['message']}" if data["message"] else str(data["kind"])
    if "line" not in data:
        return f"{error_text} ({process_name})"
    place = f"line {data['line']} of the cell, in `{data['function']}`:   {data['text']}"
    return f"{place}\n{error_text} ({process_name})"


def is_out_of_memory(kind: str, message: str) -> bool:
    """Whether memory was full: torch's clean error, MIG's broken one, or the CPU's.

    On a MIG slice the allocator's own report fails, and what arrives is an internal assertion
    instead of an OutOfMemoryError (pytorch issues 112377, 122068, 197312).
    """
    return kind in ("OutOfMemoryError", "MemoryError") or any(sign in message for sign in OF_MEMORY)


def out_of_memory_sentence(error: Mapping[str, Any]) -> str:
    """The message for the student when memory was full, with their own line first."""
    place = f"line {error['line']} of the cell:   {error['text']}\n" if "line" in error else ""
    odd = " (torch reports this on a MIG slice as an internal assertion; it means the same)"
    odd = odd if "INTERNAL ASSERT" in error["message"] else ""
    return (
        f"{place}Out of memory{odd}. The work needs more than this device has free: "
        "make the batch or the model smaller, use a 16-bit type, or ask for a bigger slice. "
        "The process that ran out is gone, so its memory is free again."
    )

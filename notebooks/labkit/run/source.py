"""Send a function of the notebook to a child: its source, and the globals it needs.

A child cannot import a notebook, and pickling a notebook's function only sends its name. So the
source travels, with the modules, plain values and other notebook functions it names. What cannot
travel is said in a sentence.
"""

from __future__ import annotations

import ast
import base64
import builtins
import importlib.util
import inspect
import linecache
import pickle
import symtable
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

from labkit.errors import Unsendable

VALUE_LIMIT = 1 << 20  # bytes; bigger things belong inside the function, made where they are used
MODULE = "student"
CHANGED: dict[str, Callable[[Any], Any]] = {}  # a twin's world: by name, what takes its place


def pack(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function so that a child can rebuild it with `unpack`.

    Args:
        function: a function written with `def`, in a cell or a module.

    Returns:
        JSON data: the entry's name and the pieces to build in order.

    Raises:
        Unsendable: no source, a lambda, or a global that cannot leave the notebook.
    """
    pieces: dict[str, dict[str, Any]] = {}
    _add_source(function, pieces)
    return {"entry": function.__name__, "pieces": list(pieces.values())}


def _add_source(thing: Any, pieces: dict[str, dict[str, Any]]) -> None:
    name, text, first = _source_of(thing)
    pieces[name] = {}  # marks it as under way, so that two functions may call each other
    known = _globals_of(thing)
    for needed in names_needed(text):
        if needed in known and needed not in pieces:
            _add(needed, known[needed], name, pieces)
    pieces[name] = pieces.pop(name) | {"kind": "source", "name": name, "text": text, "first": first}


def _add(name: str, value: Any, wanted_by: str, pieces: dict[str, dict[str, Any]]) -> None:
    if isinstance(value, types.ModuleType):
        pieces[name] = {"kind": "import", "name": name, "module": value.__name__}
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        _add_definition(name, value, pieces)
    else:
        pieces[name] = {"kind": "value", "name": name, "value": pack_value(value, name, wanted_by)}


def _add_definition(name: str, value: Any, pieces: dict[str, dict[str, Any]]) -> None:
    if _is_importable(value.__module__):
        pieces[name] = {
            "kind": "from",
            "name": name,
            "module": value.__module__,
            "path": value.__qualname__,
        }
        return
    _add_source(value, pieces)
    if value.__name__ != name:
        pieces[name] = {"kind": "alias", "name": name, "of": value.__name__}


def _is_importable(module: str) -> bool:
    if module in ("__main__", MODULE) or module is None:
        return False
    try:
        return module in sys.builtin_module_names or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _globals_of(thing: Any) -> Mapping[str, Any]:
    if isinstance(thing, type):
        return vars(sys.modules[thing.__module__])
    enclosed = inspect.getclosurevars(thing).nonlocals
    return {**thing.__globals__, **enclosed}


def _source_of(thing: Any) -> tuple[str, str, int]:
    """Name, dedented source and first line of a function or class."""
    name = getattr(thing, "__name__", repr(thing))
    if name == "<lambda>":
        raise Unsendable("A lambda cannot be sent to a child process: give it a name with `def`.")
    try:
        lines, first = (
            _class_lines(thing) if isinstance(thing, type) else inspect.getsourcelines(thing)
        )
    except (OSError, TypeError) as error:
        raise Unsendable(
            f"The source of `{name}` cannot be found ({error}); "
            "define it with `def` in a cell and run that cell."
        ) from error
    return name, textwrap.dedent("".join(lines)), max(1, first)


def _class_lines(thing: type) -> tuple[list[str], int]:
    """A notebook's class has no file of its own, but its methods know their cell."""
    method = next((item for item in vars(thing).values() if inspect.isfunction(item)), None)
    if method is None:
        raise OSError("a class without methods")
    lines = linecache.getlines(inspect.getfile(method))
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == thing.__name__:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            return lines[first - 1 : node.end_lineno], first
    raise OSError("its cell was run again")


def names_needed(text: str) -> list[str]:
    """Global names the source refers to anywhere, defaults and nested functions included."""
    found: dict[str, None] = {}

    def visit(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            outermost = table.get_type() == "module"
            if symbol.is_global() or (
                outermost and symbol.is_referenced() and not symbol.is_assigned()
            ):
                found[symbol.get_name()] = None
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(text, "cell", "exec"))
    return [name for name in found if not hasattr(builtins, name)]


def pack_value(value: Any, name: str, wanted_by: str) -> str:
    """Pickle a plain value for the child.

    Raises:
        Unsendable: it is too big, cannot be pickled, or is an object of a class made in the
            notebook.
    """
    try:
        data = pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise Unsendable(_unsendable(name, value, wanted_by, str(error))) from error
    if len(data) > VALUE_LIMIT:
        raise Unsendable(_unsendable(name, value, wanted_by, f"it is {len(data) / 2**20:.0f} MiB"))
    if b"__main__" in data:
        raise Unsendable(_unsendable(name, value, wanted_by, "its class lives in the notebook"))
    return base64.b64encode(data).decode()


def _unsendable(name: str, value: Any, wanted_by: str, reason: str) -> str:
    return (
        f"`{wanted_by}` uses `{name}` ({type(value).__name__}), which cannot travel to the child "
        f"process that is timed: {reason}. "
        f"Make it inside `{wanted_by}`, or pass the numbers it is made from."
    )


def unpack_value(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301  written by this user's own notebook a moment ago


def unpack(packed: Mapping[str, Any], space: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Rebuild a packed function in this process (the child), in a module called `student`."""
    module = sys.modules.setdefault(MODULE, types.ModuleType(MODULE))
    names = vars(module) if space is None else space
    for piece in packed["pieces"]:
        _build(piece, names)
    function: Callable[..., Any] = names[packed["entry"]]
    return function


def _build(piece: Mapping[str, Any], names: dict[str, Any]) -> None:
    kind, name = piece["kind"], piece["name"]
    if kind == "value":
        names[name] = unpack_value(piece["value"])
    elif kind == "alias":
        names[name] = names[piece["of"]]
    elif kind == "source":
        _run_source(piece, names)
    else:
        found: Any = importlib.import_module(piece["module"])
        for part in piece.get("path", "").split(".") if kind == "from" else ():
            found = getattr(found, part)
        names[name] = found
    if name in CHANGED:
        names[name] = CHANGED[name](names[name])


def _run_source(piece: Mapping[str, Any], names: dict[str, Any]) -> None:
    file = f"<cell with {piece['name']}>"
    text = "\n" * (piece["first"] - 1) + piece["text"]  # keeps the line numbers of the cell
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)  # noqa: S102  the student's own code, in the student's own container


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as JSON data, with the student's own line when one of theirs was running."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith("<cell with ")]
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

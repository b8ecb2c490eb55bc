"""What of a student's code reaches beyond its exercise, read from its text.

The sandbox guards the machine; this guards the verdict, which the sandbox cannot.  Check and
exercise run in one process, because the check calls the exercise with tensors, functions and
threads: code that gets at the check, at torch or at the open channel would write its own "right".
Such code is not run, and a person reads it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

MODULES = frozenset(
    {"torch", "math", "itertools", "functools", "collections", "statistics", "time"}
)
FORBIDDEN = frozenset(
    {
        "eval",
        "exec",
        "compile",
        "open",
        "globals",
        "locals",
        "vars",
        "getattr",
        "setattr",
        "delattr",
    }
    | {"os", "sys", "subprocess", "socket", "shutil", "importlib", "ctypes", "builtins", "gc"}
    | {"inspect", "pickle", "types", "threading", "multiprocessing", "breakpoint", "input"}
)
OWN_METHODS = frozenset({"__init__", "__call__", "__len__", "__iter__"})


def beyond(text: str) -> str:
    """The first name that is none of an exercise's business; empty where there is none."""
    return next((name for node in ast.walk(ast.parse(text)) for name in _names(node)), "")


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = getattr(node, "module", None)
        found = [module or ""] if isinstance(node, ast.ImportFrom) else [x.name for x in node.names]
        yield from (name for name in found if name.split(".")[0] not in MODULES)
        yield from (one.name for one in node.names if _is_forbidden(one.name))
    elif isinstance(node, ast.Attribute):
        is_changed = isinstance(node.ctx, ast.Store | ast.Del) and _root(node) in MODULES | {
            "labkit",
            "",
        }
        if is_changed or _is_forbidden(node.attr):
            yield node.attr
    elif isinstance(node, ast.Name) and _is_forbidden(node.id):
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "__" in node.value:
        yield node.value
    elif isinstance(node, ast.FunctionDef) and _is_forbidden(node.name):
        yield node.name


def _is_forbidden(name: str) -> bool:
    is_dunder = name.startswith("__") and name.endswith("__")
    return name in FORBIDDEN or (is_dunder and name not in OWN_METHODS)


def _root(node: ast.expr) -> str:
    """The name that an attribute hangs on; empty where it is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""

"""Whether the code a student wrote is exactly right, by the check in the notebook's source.

An exercise is a function or class of the source that holds a solution. From the student's notebook
only exercises (and what they alone define) are taken; checks and all the rest come from the source,
so that an edited check changes nothing. Both run in one process of a sandbox, because the check
calls the exercise with tensors, functions and threads. The sandbox guards the machine, and cannot
guard the verdict: code that gets at the check, at torch or at the open channel would write its own
"right". So code that reaches beyond its exercise is not run, and a person reads it.
"""

from __future__ import annotations

import ast
import builtins
import json
import subprocess
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit_grading import cells, sandbox
from labkit_grading.run_checks import ENDED
from make_notebooks import build_text

LIMIT_S = 120.0
SUFFIX = "_verdict"
RIGHT = "right"
MODULES = {"torch", "math", "itertools", "functools", "collections", "statistics", "time"}
FORBIDDEN = frozenset(
    {"eval", "exec", "compile", "open", "globals", "locals", "vars"}
    | {"getattr", "setattr", "delattr"}
    | {"os", "sys", "subprocess", "socket", "shutil", "importlib", "ctypes", "builtins", "gc"}
    | {"inspect", "pickle", "types", "threading", "multiprocessing", "breakpoint", "input"}
)
OWN_METHODS = frozenset({"__init__", "__call__", "__len__", "__iter__"})
BEYOND = "not run: it uses `{name}`, which reaches beyond the exercise: read it"


@dataclass(frozen=True)
class Marked:
    """One exercise: whether it is right, and what its check said."""

    verdict: str
    right: bool
    said: str


@dataclass(frozen=True)
class Key:
    """What the source of one notebook says about its exercises.

    Attributes:
        defined: every top-level statement by the names it defines.
        exercises: the names whose definition holds a solution.
        verdicts: the names that hold a check's answer.
    """

    defined: dict[str, str]
    exercises: frozenset[str]
    verdicts: tuple[str, ...]


def definitions(texts: Iterable[str]) -> dict[str, str]:
    """Top-level statements by the names they define.

    A later one wins, and a cell that is no Python defines nothing.
    """
    found: dict[str, str] = {}
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in tree.body:
            words = ast.get_source_segment(text, node) or ""
            decorators = getattr(node, "decorator_list", [])
            if decorators:
                words = "\n".join(text.splitlines()[decorators[0].lineno - 1 : node.end_lineno])
            found.update(dict.fromkeys(_names(node), words))
    return found


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(one.asname or one.name).split(".")[0] for one in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inside = [part for target in targets for part in ast.walk(target)]
        return [part.id for part in inside if isinstance(part, ast.Name)]
    return []


def answer_key(source: Path) -> Key:
    """Read a notebook's source."""
    text = source.read_text(encoding="utf-8")
    solved, whole = cells.solution_lines(text), build_text(text, solutions=True)
    exercises: set[str] = set()
    for node in ast.parse(whole).body:
        if solved.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
            exercises.update(_names(node))
    found = definitions([whole])
    return Key(found, frozenset(exercises), tuple(x for x in found if x.endswith(SUFFIX)))


def program(verdict: str, key: Key, own: dict[str, str]) -> tuple[str, str]:
    """What makes a verdict: all its statements in order, and the student's among them."""
    students = {k: v for k, v in own.items() if k in key.exercises or k not in key.defined}
    sources = {k: v for k, v in key.defined.items() if k not in key.exercises}
    order = _in_order([verdict], {**students, **sources})
    return "\n".join(order), "\n".join(one for one in order if one in students.values())


def _in_order(names: Iterable[str], defined: dict[str, str]) -> list[str]:
    """The statements that define these names and all they need, each after what it needs."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        words = defined.get(name)
        if words is None or name in order:
            return
        order[name] = ""
        for needed in _names_needed(words):
            add(needed)
        order.pop(name)
        order[name] = words

    for name in names:
        add(name)
    return list(dict.fromkeys(order.values()))


def _names_needed(text: str) -> list[str]:
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


def mark(notebook: str, key: Key, *, limit_s: float = LIMIT_S) -> list[Marked]:
    """Run the checks of one handed-in notebook.

    Args:
        notebook: the .ipynb's text.
        key: of its source.
        limit_s: for all checks of it.
    """
    own = definitions(cell.text for cell in cells.notebook_cells(notebook, "the notebook"))
    programs = {verdict: program(verdict, key, own) for verdict in key.verdicts}
    reach = {verdict: beyond(students) for verdict, (_, students) in programs.items()}
    run = {verdict: whole for verdict, (whole, _) in programs.items() if not reach[verdict]}
    said, is_late = _run(run, limit_s)
    missing = f"no answer within {limit_s:g} s" if is_late else ENDED
    said = {name: BEYOND.format(name=what) for name, what in reach.items() if what} | said
    found = {verdict: said.get(verdict, missing) for verdict in key.verdicts}
    return [Marked(verdict, words.startswith(RIGHT), words) for verdict, words in found.items()]


def beyond(text: str) -> str:
    """The first name that is none of an exercise's business; empty where there is none."""
    return next((name for node in ast.walk(ast.parse(text)) for name in _foreign_names(node)), "")


def _foreign_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = getattr(node, "module", None)
        found = [module or ""] if isinstance(node, ast.ImportFrom) else [x.name for x in node.names]
        yield from (name for name in found if name.split(".")[0] not in MODULES)
        yield from (one.name for one in node.names if _is_forbidden(one.name))
    elif isinstance(node, ast.Attribute):
        is_written = isinstance(node.ctx, ast.Store | ast.Del)
        is_changed = is_written and _root(node) in {*MODULES, "labkit", ""}
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


def _run(programs: dict[str, str], limit_s: float) -> tuple[dict[str, str], bool]:
    """What the checks said, and whether time was over before all had."""
    process = sandbox.start()
    try:
        told, _ = process.communicate(json.dumps(programs).encode(), limit_s)
        is_late = False
    except subprocess.TimeoutExpired:
        process.kill()
        told, is_late = process.communicate()[0], True
    lines = (json.loads(line) for line in told.splitlines() if line.endswith(b"]"))
    return {verdict: words for verdict, words in lines}, is_late


def keys_of(sources: Path) -> dict[str, Key]:
    """The answer keys of a folder of sources, by notebook.

    Raises:
        LabError: there is no source in it.
    """
    files = sorted(sources.glob("*.py"))
    if not files:
        raise LabError(f"There is no notebook source (.py) in {sources}: name it with --sources.")
    return {file.stem: answer_key(file) for file in files}

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
    """The result of one exercise: whether it is right, and the message of its check."""

    verdict: str
    right: bool
    message: str


@dataclass(frozen=True)
class Key:
    """The answer key of one notebook: its definitions, exercises and verdicts.

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
    source_of: dict[str, str] = {}
    for text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in tree.body:
            source = ast.get_source_segment(text, node) or ""
            decorators = getattr(node, "decorator_list", [])
            if decorators:
                source = "\n".join(text.splitlines()[decorators[0].lineno - 1 : node.end_lineno])
            source_of.update(dict.fromkeys(_defined_names(node), source))
    return source_of


def _defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inside = [part for target in targets for part in ast.walk(target)]
        return [part.id for part in inside if isinstance(part, ast.Name)]
    return []


def answer_key(source: Path) -> Key:
    """Read the answer key from a notebook's source."""
    text = source.read_text(encoding="utf-8")
    solved, solved_text = cells.solution_lines(text), build_text(text, solutions=True)
    exercises: set[str] = set()
    for node in ast.parse(solved_text).body:
        if solved.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
            exercises.update(_defined_names(node))
    source_of = definitions([solved_text])
    verdicts = tuple(name for name in source_of if name.endswith(SUFFIX))
    return Key(source_of, frozenset(exercises), verdicts)


def program(verdict: str, key: Key, submitted: dict[str, str]) -> tuple[str, str]:
    """The source of a verdict: all its statements in order, and the student's among them."""
    students = {k: v for k, v in submitted.items() if k in key.exercises or k not in key.defined}
    sources = {k: v for k, v in key.defined.items() if k not in key.exercises}
    order = _needed_statements([verdict], {**students, **sources})
    students_part = (statement for statement in order if statement in students.values())
    return "\n".join(order), "\n".join(students_part)


def _needed_statements(names: Iterable[str], defined: dict[str, str]) -> list[str]:
    """The statements that define these names and all they need, each after what it needs."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        source = defined.get(name)
        if source is None or name in order:
            return
        order[name] = ""
        for needed in _names_needed(source):
            add(needed)
        order.pop(name)
        order[name] = source

    for name in names:
        add(name)
    return list(dict.fromkeys(order.values()))


def _names_needed(text: str) -> list[str]:
    """The global names that a source refers to, also in defaults and nested functions."""
    global_names: dict[str, None] = {}

    def visit(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            outermost = table.get_type() == "module"
            if symbol.is_global() or (
                outermost and symbol.is_referenced() and not symbol.is_assigned()
            ):
                global_names[symbol.get_name()] = None
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(text, "cell", "exec"))
    return [name for name in global_names if not hasattr(builtins, name)]


def mark(notebook: str, key: Key, *, limit_s: float = LIMIT_S) -> list[Marked]:
    """Run the checks of one handed-in notebook.

    Args:
        notebook: the .ipynb's text.
        key: of its source.
        limit_s: for all checks of it.
    """
    submitted = definitions(cell.text for cell in cells.notebook_cells(notebook, "the notebook"))
    programs = {verdict: program(verdict, key, submitted) for verdict in key.verdicts}
    reach = {verdict: first_foreign_name(students) for verdict, (_, students) in programs.items()}
    runnable = {verdict: text for verdict, (text, _) in programs.items() if not reach[verdict]}
    answers, is_late = _run_programs(runnable, limit_s)
    missing = f"no answer within {limit_s:g} s" if is_late else ENDED
    refusals = {verdict: BEYOND.format(name=name) for verdict, name in reach.items() if name}
    results = ((verdict, (refusals | answers).get(verdict, missing)) for verdict in key.verdicts)
    return [Marked(verdict, text.startswith(RIGHT), text) for verdict, text in results]


def first_foreign_name(text: str) -> str:
    """The first name that an exercise must not use; empty where there is none."""
    return next((name for node in ast.walk(ast.parse(text)) for name in _foreign_names(node)), "")


def _foreign_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = getattr(node, "module", None)
        imported = [alias.name for alias in node.names]
        modules = [module or ""] if isinstance(node, ast.ImportFrom) else imported
        yield from (name for name in modules if name.split(".")[0] not in MODULES)
        yield from (name for name in imported if _is_forbidden(name))
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
    """The name at the root of an attribute chain; empty where there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _run_programs(programs: dict[str, str], limit_s: float) -> tuple[dict[str, str], bool]:
    """The answers of the checks, and whether the time was over before all had answered."""
    process = sandbox.start()
    try:
        output, _ = process.communicate(json.dumps(programs).encode(), limit_s)
        is_late = False
    except subprocess.TimeoutExpired:
        process.kill()
        output, is_late = process.communicate()[0], True
    lines = (json.loads(line) for line in output.splitlines() if line.endswith(b"]"))
    return {verdict: answer for verdict, answer in lines}, is_late


def keys_of(sources: Path) -> dict[str, Key]:
    """The answer keys of a folder of sources, by notebook.

    Raises:
        LabError: there is no source in it.
    """
    files = sorted(sources.glob("*.py"))
    if not files:
        raise LabError(f"There is no notebook source (.py) in {sources}: name it with --sources.")
    return {file.stem: answer_key(file) for file in files}

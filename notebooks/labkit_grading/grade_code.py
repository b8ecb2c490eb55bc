"""Whether the code a student wrote is exactly right, by the check in the notebook's source.

An exercise is a function or class of the source that holds a solution. From the student's notebook
only exercises (and what they alone define) are taken; checks and all the rest come from the
source, so that an edited check changes nothing. The student's code runs in a sandbox of its own;
the check runs here and sees only what that code returns, so that it can give wrong answers and
never a verdict.
"""

from __future__ import annotations

import ast
import linecache
import sys
import time
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.run.source import names_needed
from labkit_grading import cells, sandbox
from labkit_grading.remote import RemoteCode
from labkit_grading.sandbox import Start

LIMIT_S = 120.0
SUFFIX = "_verdict"
RIGHT = "right"


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
    solved, whole = cells.solution_lines(text), cells.with_solutions(text)
    exercises: set[str] = set()
    for node in ast.parse(whole).body:
        if solved.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
            exercises.update(_names(node))
    found = definitions([whole])
    return Key(found, frozenset(exercises), tuple(x for x in found if x.endswith(SUFFIX)))


@dataclass(frozen=True)
class Program:
    """What one verdict needs.

    Attributes:
        check: the source's statements, which run here.
        exercises: the names that `check` takes from the student.
        students: the student's statements, and those of the source that they need.
    """

    check: str
    exercises: tuple[str, ...]
    students: str


def program(verdict: str, key: Key, own: dict[str, str]) -> Program:
    """Divide what makes a verdict into the check and the student's part."""
    check = _in_order([verdict], {k: v for k, v in key.defined.items() if k not in key.exercises})
    wanted = {name for words in check for name in names_needed(words)}
    exercises = tuple(name for name in key.defined if name in key.exercises & wanted)
    students = {k: v for k, v in own.items() if k in key.exercises or k not in key.defined}
    others = {k: v for k, v in key.defined.items() if k not in key.exercises}
    return Program(
        "\n".join(check), exercises, "\n".join(_in_order(exercises, {**students, **others}))
    )


def _in_order(names: Iterable[str], defined: dict[str, str]) -> list[str]:
    """The statements that define these names and all they need, each after what it needs."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        words = defined.get(name)
        if words is None or name in order:
            return
        order[name] = ""
        for needed in names_needed(words):
            add(needed)
        order.pop(name)
        order[name] = words

    for name in names:
        add(name)
    return list(dict.fromkeys(order.values()))


def mark(
    notebook: str, key: Key, *, limit_s: float = LIMIT_S, start: Start = sandbox.start
) -> list[Marked]:
    """Run the checks of one handed-in notebook.

    Args:
        notebook: the .ipynb's text.
        key: of its source.
        limit_s: for all checks of it.
        start: starts the student's processes.
    """
    own = definitions(cell.text for cell in cells.notebook_cells(notebook, "the notebook"))
    ends = time.monotonic() + limit_s
    late = f"no answer within {limit_s:g} s"
    return [_mark_one(verdict, key, own, RemoteCode(ends, start), late) for verdict in key.verdicts]


def _mark_one(
    verdict: str, key: Key, own: dict[str, str], students: RemoteCode, late: str
) -> Marked:
    try:
        with students as code:
            said = _judge(verdict, program(verdict, key, own), code)
    except Exception as error:  # outermost frame: a stranger's code, and what it returns
        words = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        return Marked(verdict, False, late if students.is_late else _first_line(f"error: {words}"))
    if students.is_late:
        return Marked(verdict, False, late)
    return Marked(verdict, said.startswith(RIGHT), _first_line(said))


def _judge(verdict: str, one: Program, code: RemoteCode) -> str:
    """Run the source's check over the student's exercises; what it says."""
    file = f"<{verdict}>"
    linecache.cache[file] = (len(one.check), None, one.check.splitlines(keepends=True), file)
    module = sys.modules["labkit_check"] = types.ModuleType("labkit_check")
    space = vars(module)
    space.update(code.define(one.students, list(one.exercises)))
    exec(compile(one.check, file, "exec"), space)  # noqa: S102  the notebook's source is the teacher's
    return str(space[verdict])


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def keys_of(sources: Path) -> dict[str, Key]:
    """The answer keys of a folder of sources, by notebook.

    Raises:
        LabError: there is no source in it.
    """
    files = sorted(sources.glob("*.py"))
    if not files:
        raise LabError(f"There is no notebook source (.py) in {sources}: name it with --sources.")
    return {file.stem: answer_key(file) for file in files}

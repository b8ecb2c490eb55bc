"""Whether the code a student wrote is exactly right, by the check in the notebook's source.

An exercise is a function or class of the source that holds a solution. From the student's notebook
only exercises (and what they alone define) are taken; checks and all the rest come from the source,
so that an edited check changes nothing. The check runs here; the student's statements run in a
process of their own, a fresh one for each check, which is asked for values and told nothing else.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.exercises.code_checks import NoValue
from labkit_grading import cells
from labkit_grading.answering.wire import shortened
from labkit_grading.sandbox import Isolation
from labkit_grading.student_process import StudentProcess
from make_notebooks import build_text

SUFFIX = "_verdict"
RIGHT = "right"
COURSE = "labkit"  # where the right answers are: it stays on this side
MOST_CODE = 1 << 20  # characters of one notebook
MOST_SHOWN = 300  # characters of a message


@dataclass(frozen=True)
class ExerciseResult:
    """The result of one exercise: whether it is right, and the message of its check.

    Attributes:
        printed: the beginning of what the student's code printed: it is the student's word.
    """

    verdict: str
    right: bool
    message: str
    printed: str = ""


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
        lines = text.replace("\r\n", "\n").replace("\r", "\n").encode().split(b"\n")
        for node in tree.body:
            source_of.update(dict.fromkeys(_defined_names(node), _text_of(node, lines)))
    return source_of


def _text_of(node: ast.stmt, lines: list[bytes]) -> str:
    """A statement's own lines, with its decorators; takes as long as these lines are."""
    decorators = getattr(node, "decorator_list", [])
    first, last = (decorators[0] if decorators else node).lineno, node.end_lineno or node.lineno
    part = lines[first - 1 : last]
    part[-1] = part[-1][: node.end_col_offset]
    part[0] = part[0] if decorators else part[0][node.col_offset :]
    return b"\n".join(part).decode()


def _defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = (part for target in targets for part in ast.walk(target))
        return [
            part.id
            for part in names
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        ]
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


def needed_statements(names: Iterable[str], defined: dict[str, str]) -> list[str]:
    """The statements that define these names and all they need, each after what it needs."""
    ordered: dict[str, None] = {}
    visited: set[str] = set()
    path: list[tuple[str, Iterator[str]]] = [("", iter(names))]
    while path:
        statement, needed = path[-1]
        sources = (defined[name] for name in needed if name in defined)
        source = next((source for source in sources if source not in visited), None)
        if source is None:
            ordered[statement] = None
            path.pop()
        else:
            visited.add(source)
            path.append((source, iter(_names_needed(source))))
    return [statement for statement in ordered if statement]


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


@dataclass(frozen=True)
class Program:
    """What one check takes, divided between the two processes.

    Attributes:
        verdict: the name of the check's answer.
        check: the source's statements, run here; the exercises are not among them.
        exercises: the names that the check takes from the student's process.
        students: the statements of that process: the exercises, and what they need.
        course_names: what the course gives these, as values.
    """

    verdict: str
    check: str
    exercises: tuple[str, ...]
    students: str
    course_names: tuple[str, ...]


def program(verdict: str, key: Key, submitted: dict[str, str]) -> Program:
    """Divide what a check takes between this process and the student's."""
    sources = {name: text for name, text in key.defined.items() if name not in key.exercises}
    check = needed_statements([verdict], sources)
    used = {name for statement in check for name in _names_needed(statement)}
    exercises = tuple(sorted(used & key.exercises))
    from_course = {name for name, text in sources.items() if COURSE in _names_needed(text)}
    students = {k: v for k, v in submitted.items() if k in key.exercises or k not in key.defined}
    offered = {name: text for name, text in sources.items() if name not in from_course}
    # Torch is there if the notebook has it: importing it takes longer than a call may.
    statements = needed_statements([*exercises, "torch"], {**students, **offered})
    needed = {name for statement in statements for name in _names_needed(statement)}
    course_names = tuple(sorted(needed & from_course))
    return Program(verdict, "\n".join(check), exercises, "\n".join(statements), course_names)


def mark(notebook: str, key: Key, isolation: Isolation) -> list[ExerciseResult]:
    """Run the checks of one handed-in notebook.

    Args:
        notebook: the .ipynb's text.
        key: of its source.
        isolation: how the student's code runs.

    Raises:
        LabError: it is no notebook, or holds more code than anybody writes.
    """
    texts = [cell.text for cell in cells.notebook_cells(notebook, "the notebook")]
    if sum(map(len, texts)) > MOST_CODE:
        raise LabError(f"it holds more than {MOST_CODE >> 20} MiB of code")
    submitted = definitions(texts)
    programs = (program(verdict, key, submitted) for verdict in key.verdicts)
    return [mark_exercise(of_verdict, key, isolation) for of_verdict in programs]


def mark_exercise(of_verdict: Program, key: Key, isolation: Isolation) -> ExerciseResult:
    """Run one check over values from a fresh process of the student's."""
    with StudentProcess(isolation) as process:
        try:
            process.define(of_verdict.students, _values(of_verdict.course_names, key))
            names: dict[str, Any] = {name: process.look_up(name) for name in of_verdict.exercises}
            exec(of_verdict.check, names)  # noqa: S102  the course's own source
            answer = str(names[of_verdict.verdict])
        except NoValue as error:
            answer = f"error: {error}"
        except Exception as error:  # outermost frame around a student's values
            answer = f"error: {type(error).__name__}: {error}"
    answer = f"error: {process.fault}" if process.fault else answer
    right, message = answer.startswith(RIGHT), shortened(answer.replace("\n", " "), MOST_SHOWN)
    return ExerciseResult(of_verdict.verdict, right, message, process.printed)


def _values(names: Iterable[str], key: Key) -> dict[str, Any]:
    """What the course's source says that these names hold."""
    values: dict[str, Any] = {}
    exec("\n".join(needed_statements(names, key.defined)), values)  # noqa: S102  the same
    return {name: values[name] for name in names}


def keys_of(sources: Path) -> dict[str, Key]:
    """The answer keys of a folder of sources, by notebook.

    Raises:
        LabError: there is no source in it.
    """
    files = sorted(sources.glob("*.py"))
    if not files:
        raise LabError(f"There is no notebook source (.py) in {sources}: name it with --sources.")
    return {file.stem: answer_key(file) for file in files}

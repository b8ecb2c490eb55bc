"""Whether the code a student wrote is exactly right, by the check in the notebook's source.

An exercise is a function or class of the source that holds a solution. From the student's notebook
only exercises (and what they alone define) are taken; checks and all the rest come from the
source, so that an edited check changes nothing. It runs in a child with a time limit, in an empty
folder. That is no sandbox: grade where you would let the students run code.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabError
from labkit.run import cells
from labkit.run.child import child_env
from labkit.run.source import names_needed

LIMIT_S = 120.0
SUFFIX = "_verdict"
RUN = """
import json, linecache, sys, types
said = {}
for verdict, text in json.load(sys.stdin).items():
    file = f"<{verdict}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        sys.modules["student"] = types.ModuleType("student")
        space = vars(sys.modules["student"])
        exec(compile(text, file, "exec"), space)
        said[verdict] = str(space[verdict])
    except Exception as error:
        said[verdict] = f"{type(error).__name__}: {error}"
    print(json.dumps(said), flush=True, file=sys.__stderr__)
"""


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


def program(verdict: str, key: Key, own: dict[str, str]) -> str:
    """The statements that make one verdict, in an order in which they can run."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        is_own = name in key.exercises or name not in key.defined
        words = (own if is_own else key.defined).get(name)
        if words is None or name in order:
            return
        order[name] = ""
        for needed in names_needed(words):
            add(needed)
        order.pop(name)
        order[name] = words

    add(verdict)
    return "\n".join(dict.fromkeys(order.values()))


def mark(notebook: str, key: Key, *, limit_s: float = LIMIT_S) -> list[Marked]:
    """Run the checks of one handed-in notebook.

    Args:
        notebook: the .ipynb's text.
        key: of its source.
        limit_s: for all checks of it.
    """
    own = definitions(cell.text for cell in cells.notebook_cells(notebook, "the notebook"))
    programs, missing = {}, {}
    for verdict in key.verdicts:
        try:
            programs[verdict] = program(verdict, key, own)
        except SyntaxError as error:
            missing[verdict] = f"SyntaxError: {error}"
    said = {**_run(programs, limit_s), **missing}
    return [
        Marked(name, said[name].startswith("right"), said[name].splitlines()[0])
        for name in key.verdicts
    ]


def _run(programs: dict[str, str], limit_s: float) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="labkit-grade-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN],
            cwd=folder,
            env=child_env(os.environ, {"LAB_HEADLESS": "1"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, words = process.communicate(json.dumps(programs), timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            _, words = process.communicate()
    lines = [line for line in words.splitlines() if line.startswith("{")]
    said = json.loads(lines[-1]) if lines else {}
    unsaid = f"no answer within {limit_s:g} s"
    return {name: said.get(name) or unsaid for name in programs}


def keys_of(sources: Path) -> dict[str, Key]:
    """The answer keys of a folder of sources, by notebook.

    Raises:
        LabError: there is no source in it.
    """
    files = sorted(sources.glob("*.py"))
    if not files:
        raise LabError(
            f"There is no notebook source (.py) in {sources}: say --sources or --no-code."
        )
    return {file.stem: answer_key(file) for file in files}

"""A pytest plugin: collects the tests once, then forks for each mutant, which is in memory alone.

The fork takes the mutant's code into the functions that are loaded, and runs the tests that reach
its lines, the quickest of every file first.  Coverage says what each test reaches, threads
included.  What kills a mutant must pass once more without it; what does not is left out.
"""

import contextlib
import gc
import hashlib
import json
import math
import os
import resource
import shutil
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import coverage
import pytest
from tests.mutants.drawing import lines_to_reach

JOB = json.loads(Path(os.environ["MUTANTS_JOB"]).read_text())
failed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        failed.append(report.nodeid)


def allowed_s(usual_s: float) -> int:
    """How long a test may take before its mutant counts as killed: others use the machine."""
    return math.ceil(20 + 10 * usual_s)


def run_one(item: pytest.Item, following: pytest.Item | None) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def forked(work: Callable[[], str]) -> str:
    """What a fork says: what ``work`` returns, or how it ended otherwise."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        try:
            answer = work()
        except BaseException as problem:  # whatever a mutant raises
            answer = f"raised {problem!r}"[:200]
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        ended = f"ended by {signal.Signals(os.WTERMSIG(status)).name}" if status else ""
        return ended or pipe.read().decode()


def file_of(test: str) -> str:
    return test.partition("::")[0]


def attribution(items: list[pytest.Item]) -> dict:
    """What each test reaches and takes; only the tests of files that changed are run for it."""
    attribution_file = Path(JOB["attribution"])
    record = {"files": {}, "seconds": {}, "failing": [], "reached": {}}
    if attribution_file.exists():
        record = json.loads(attribution_file.read_text())
    names = {file_of(item.nodeid) for item in items}
    files = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in names}
    changed = {name for name in names if files[name] != record["files"].get(name)}
    record["failing"] = [test for test in record["failing"] if file_of(test) not in changed]
    record["files"] = files
    new = [item for item in items if file_of(item.nodeid) in changed]
    if new and (outcome := forked(partial(attribute, new, record, attribution_file))) != "done":
        raise pytest.UsageError(f"attribution: {outcome}")
    return json.loads(attribution_file.read_text())


def attribute(items: list[pytest.Item], record: dict, attribution_file: Path) -> str:
    watch = coverage.Coverage(data_file=None, include=JOB["files"], config_file=False)
    watch.start()
    for item, following in zip(items, [*items[1:], None], strict=True):
        watch.switch_context(item.nodeid)
        started_at = time.monotonic()
        run_one(item, following)
        record["seconds"][item.nodeid] = time.monotonic() - started_at
    watch.stop()
    data = watch.get_data()
    for file in data.measured_files():
        reached = record["reached"].setdefault(str(Path(file).relative_to(Path.cwd())), {})
        for line, tests in data.contexts_by_lineno(file).items():
            reached.setdefault(str(line), []).extend(tests)
    record["failing"] += failed
    attribution_file.write_text(json.dumps(record))
    return "done"


def tests_for(mutant: dict, record: dict, items: Collection[str]) -> list[str]:
    """The tests that reach a mutant, the quickest of each file first."""
    reached = record["reached"].get(mutant["file"], {})
    lines = lines_to_reach(Path(mutant["file"]).read_text(), mutant["first"], mutant["last"])
    tests = {test for line in lines for test in reached.get(str(line), [])}
    ranked: list[tuple[int, float, str]] = []
    count_by_file: Counter[str] = Counter()
    tests -= set(record["failing"])
    for test in sorted(tests.intersection(items), key=record["seconds"].__getitem__):
        count_by_file[file_of(test)] += 1
        ranked.append((count_by_file[file_of(test)], record["seconds"][test], test))
    return [test for _, _, test in sorted(ranked)]


def pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Each code object of a module with what the mutant has in its place."""
    yield old, new
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
    if len(inner[0]) == len(inner[1]):
        for old_part, new_part in zip(*inner, strict=True):
            yield from pairs(old_part, new_part)


def take(mutant: dict) -> None:
    """Give the functions that are loaded the mutant's code."""
    path = str(Path(mutant["file"]).resolve())
    with warnings.catch_warnings(action="ignore"):
        old = compile(Path(path).read_text(), path, "exec", dont_inherit=True)
        new = dict(pairs(old, compile(mutant["text"], path, "exec", dont_inherit=True)))
    replaced = 0
    for candidate in gc.get_objects():
        is_of_file = type(candidate) is FunctionType and candidate.__code__.co_filename == path
        if is_of_file and candidate.__code__ in new:
            candidate.__code__, replaced = new[candidate.__code__], replaced + 1
    if not replaced:
        raise RuntimeError(f"{path} is not loaded from here")


def tried(mutant: dict | None, tests: list[str], items: dict, seconds: dict) -> str:
    """The first of the tests that fails with the mutant, in a fork; or how the fork ended."""
    return forked(partial(first_failure, mutant, tests, items, seconds))


def first_failure(mutant: dict | None, tests: list[str], items: dict, seconds: dict) -> str:
    if mutant:
        take(mutant)
    for test, following in zip(tests, [*tests[1:], None], strict=True):
        Path(JOB["current"]).write_text(test)
        signal.alarm(allowed_s(seconds[test]))
        failed.clear()
        try:
            run_one(items[test], items.get(following))
        except BaseException:  # an exit that the mutant caused
            return f"failed {test}"
        if failed:
            return f"failed {test}"
    return "lived"


def judged(mutant: dict, record: dict, items: dict) -> dict:
    """What became of a mutant, with how many seconds it took and which test killed it."""
    started_at, seconds = time.monotonic(), record["seconds"]
    while True:
        tests = tests_for(mutant, record, items)
        outcome_text = tried(mutant, tests, items, seconds) if tests else "unreached"
        killer = outcome_text.removeprefix("failed ")
        if outcome_text.startswith("ended"):
            killer = Path(JOB["current"]).read_text()
        if outcome_text in ("lived", "unreached") or outcome_text.startswith("raised"):
            break
        if tried(None, [killer], items, seconds) == "lived":
            break
        record["failing"].append(killer)
    outcome = "killed" if outcome_text.startswith("failed") else outcome_text
    killed_by = {"by": killer} if killer != outcome_text else {}
    spent = {"tests": len(tests), "seconds": round(time.monotonic() - started_at, 1)}
    return {"key": mutant["key"], "room": mutant["room"], "outcome": outcome, **spent, **killed_by}


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of the tests: the mutants, one after the other."""
    if session.testsfailed:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    assert threading.active_count() == 1, "a fork would lose threads"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    record = attribution(session.items)
    items = {item.nodeid: item for item in session.items}
    for mutant in JOB["mutants"]:
        shutil.rmtree(".hypothesis", ignore_errors=True)
        with Path(JOB["results"]).open("a") as results:
            results.write(json.dumps(judged(mutant, record, items)) + "\n")
    return True

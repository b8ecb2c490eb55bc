"""For all tests: what is skipped, what must not be, which run side by side, logs of a failure.

``LAB_REQUIRE=docker,browser`` turns a skip of those tests into a failure: a test belongs to the
kind that its marker, or the folder it lies in, says.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest._code.code import ExceptionChainRepr
from hypothesis import HealthCheck, settings

from miglab_bench.harness.processes import log_ends, logs_below

HERE = Path(__file__).parent
CHROMIUM = Path("/usr/bin/chromium")
HUB5 = HERE.parent / ".venv" / "hub5" / "bin" / "python"
REQUIRED = frozenset(filter(None, os.environ.get("LAB_REQUIRE", "").split(",")))
PAGE = "Aria snapshot:"
ONE_BY_ONE = ("tests/docker/", "tests/browser/")
"""Never side by side: the first share an engine, whose containers' interfaces come and go, and
whenever one does, Chromium gives up what it was about to load (net::ERR_NETWORK_CHANGED)."""
FIRST = ("docker", "slurm", "browser", "hub", "notebooks", "long")
"""Tests that wait for labs and kernels, then what else is long; short ones fill what is left."""

# The machine may be busy with other tests: the clock says nothing.
WHOLE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("whole", WHOLE)
settings.register_profile("quick", WHOLE, max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    """`./lab test` looks at a quarter of the examples that hypothesis makes up for `--all`.

    A test that needs more or fewer than others says so in relation to the profile's number.
    """
    os.environ["PYTHONFAULTHANDLER"] = "1"  # whatever a test starts says where it crashed
    settings.load_profile("quick" if config.option.markexpr == "not long" else "whole")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background: what tests start would ignore the interrupt that ends it, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def kinds(node: pytest.Item | pytest.Collector) -> set[str]:
    """What a test needs: its markers and its folder."""
    inside = node.path.relative_to(HERE).parts[:1] if node.path.is_relative_to(HERE) else ()
    return {mark.name for mark in node.iter_markers()} | set(inside)


def unit_of(nodeid: str) -> str:
    """What a test stays together with in one worker: its file, or all that go one by one."""
    return "one by one" if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Which worker runs what, where there are several: whole units, in the order collected."""
    from xdist.scheduler import LoadFileScheduling  # not needed where there is one process

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = unit_of
    return scheduling


def turn(item: pytest.Item) -> int:
    """When a test's turn comes: first those that wait."""
    waits = [FIRST.index(kind) for kind in kinds(item).intersection(FIRST)]
    return min(waits, default=len(FIRST))


def name_apart(item: pytest.Item) -> None:
    """An id of its own: xdist runs each id once, and with pytest 9.2 schemathesis's are all one."""
    if not item.nodeid.endswith(item.name):
        item._id = item.id.with_params(item.name.partition("[")[2].removesuffix("]"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need what is not installed are skipped, and say what to install."""
    items.sort(key=turn)
    for item in items:
        name_apart(item)
    missing = {
        "browser": None if CHROMIUM.exists() else "no chromium: apt-get install chromium",
        "bubblewrap": None
        if shutil.which("bwrap")
        else "no bubblewrap: apt-get install bubblewrap",
        "hub5": None if HUB5.exists() else "no JupyterHub 5: ./lab install hub5",
    }
    for item in items:
        for kind in kinds(item).intersection(missing):
            if reason := missing[kind]:
                item.add_marker(pytest.mark.skip(reason=reason))


def fail_if_required(node: pytest.Item | pytest.Collector, report: pytest.CollectReport) -> None:
    """Turn a skip of something required into a failure that says why it was skipped."""
    required = REQUIRED & kinds(node)
    if report.outcome != "skipped" or not required or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"LAB_REQUIRE={','.join(sorted(required))}, but: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    """Judge each test's skip; beside a failure, show the ends of the logs of what runs."""
    report = yield
    fail_if_required(item, report)
    if report.failed:
        report.sections += log_ends()
        page_last(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Judge the skip of a whole module."""
    report = yield
    fail_if_required(collector, report)
    return report


def page_last(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Playwright's message ends with the whole page, which hides all else: it goes to the end."""
    if not isinstance(report.longrepr, ExceptionChainRepr):
        return
    for entry in report.longrepr.reprtraceback.reprentries:
        message_lines = [line.removeprefix("E").strip() for line in entry.lines]
        if PAGE in message_lines:
            first = message_lines.index(PAGE)
            report.sections.append(("page", "\n".join(entry.lines[first + 1 :])))
            del entry.lines[first:]


@pytest.fixture
def open_umask() -> Iterator[None]:
    """New files may be read by everybody, unless whoever makes them says otherwise."""
    umask_before = os.umask(0)
    yield
    os.umask(umask_before)


@pytest.fixture
def log_folder(tmp_path: Path) -> Iterator[Path]:
    """The test's folder; the logs that processes write below it are shown when it fails."""
    with logs_below(tmp_path):
        yield tmp_path

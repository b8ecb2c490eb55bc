"""`./lab test` over a small checkout: every file runs, and a failure is shown."""

from pathlib import Path

import pytest
from tests.conftest import page_last, unit_of

from miglab_bench import run_tests
from miglab_bench.harness.processes import log_ends, logs_below

GOOD, BAD = "def test_it():\n    pass\n", "def test_it():\n    raise AssertionError('in here')\n"
LONG = "import pytest\n@pytest.mark.long\ndef test_it():\n    pass\n"


@pytest.mark.parametrize(
    ("hub", "unit", "args", "status", "outcome"),
    [
        (BAD, GOOD, [], 1, "1 failed, 1 passed"),
        (GOOD, LONG, ["-W", "ignore"], 0, "1 passed, 1 deselected"),
    ],
)
def test_all_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    hub: str,
    unit: str,
    args: list[str],
    status: int,
    outcome: str,
) -> None:
    """In several processes or, with pytest's own words, in one; the long ones are left out."""
    monkeypatch.setattr(run_tests, "checkout", lambda: tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the others take seconds to load
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    for folder, text in (("hub", hub), ("unit", unit)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(text)
    assert run_tests.run_tests(args, everything=False) == status
    output = capfd.readouterr().out
    assert outcome in output and "--all" in output
    assert ("in here" in output) == bool(status)


def test_one_by_one() -> None:
    """Files are spread over the processes, but containers and Chromium never run side by side."""
    assert unit_of("tests/hub/test_a.py::test_it[b::c]") == "tests/hub/test_a.py"
    folders = ("docker", "docker/below", "browser")
    assert len({unit_of(f"tests/{folder}/test_a.py::test_it") for folder in folders}) == 1


def test_a_failure_shows_what_ran_before_the_page(tmp_path: Path) -> None:
    """The ends of the logs below the folders in use; a page that Playwright printed comes last."""
    (tmp_path / "pool.log").write_text("".join(f"line {number}\n" for number in range(100)))
    try:
        raise AssertionError(f"not visible\n\nAria snapshot:\n- {'b' * 9}")
    except AssertionError:
        error_text = pytest.ExceptionInfo.from_current().getrepr()
    report = pytest.TestReport("", ("", 0, ""), {}, "failed", error_text, "call")
    with logs_below(tmp_path):
        report.sections += log_ends()
    page_last(report)
    assert "not visible" in str(report.longrepr) and "b" * 9 not in str(report.longrepr)
    (log, lines), (page, tree) = report.sections
    assert (log, lines.splitlines()[-1]) == (
        "end of pool.log",
        "line 99",
    ) and "line 1\n" not in lines
    assert page == "page" and "b" * 9 in tree
    assert not log_ends()

"""Which tests of other software `.ci/run` leaves out, and that none of them guards people."""

import importlib.util
import json
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci/integrations.py"
GROUPS = tomllib.loads((ROOT / ".ci/integrations.toml").read_text())
TESTS = [test for group in GROUPS.values() for test in group["tests"]]
NOW = datetime.now(UTC)


@pytest.fixture
def integrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a repository of two files; the second commit changes one of them."""
    spec = importlib.util.spec_from_file_location("integrations", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    for text in ("before", "after"):
        (tmp_path / "touched").write_text(text)
        (tmp_path / "test_it.py").write_text("")
        git("add", ".")
        git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", text)
    return module


def git(*arguments: str) -> str:
    process = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return process.stdout.strip()


@pytest.mark.parametrize(
    ("commit", "age", "touches", "reason"),
    [
        ("HEAD", timedelta(days=6), "touched", None),
        ("HEAD~1", timedelta(0), "other", None),
        ("HEAD~1", timedelta(0), "touch*", "touched has changed since"),
        ("HEAD", timedelta(days=8), "touched", "more than 7 days ago"),
        ("0" * 40, timedelta(0), "other", "is not in this clone"),
        (None, timedelta(0), "other", "never recorded"),
    ],
)
def test_what_is_due(
    integrations: ModuleType, commit: str | None, age: timedelta, touches: str, reason: str | None
) -> None:
    """A record stands while it is young, its commit known, and nothing that it touches changed."""
    recorded_commit = commit and (git("rev-parse", commit) if commit.startswith("HEAD") else commit)
    record = recorded_commit and {
        "commit": recorded_commit,
        "date": (NOW - age).isoformat(),
        "result": "1 passed",
    }
    group = {"guards": "it", "tests": ["test_it.py::test_it"], "touches": [touches]}
    due_because = integrations.why_due(group, record)
    assert reason in due_because if reason else due_because is None


def test_what_is_left_out(integrations: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """pytest is told to leave out exactly the groups whose record stands; the reasons are said."""
    Path(".ci").mkdir()
    names = ("green", "new")
    Path(".ci/integrations.toml").write_text(
        "\n".join(
            f'[{name}]\nguards = "it"\ntests = ["test_{name}.py"]\ntouches = ["touched"]'
            for name in names
        )
    )
    record = {"commit": git("rev-parse", "HEAD"), "date": NOW.isoformat(), "result": "3 passed"}
    Path(".ci/integrations.json").write_text(json.dumps({"green": record}))
    assert integrations.deselect() == 0
    captured = capsys.readouterr()
    assert captured.out == "--deselect=test_green.py\n"
    assert "3 passed" in captured.err and "new (it): due, never recorded" in captured.err


def test_what_a_run_found_green_is_kept(integrations: ModuleType) -> None:
    """Of a whole run, by pytest's report, at the commit that is checked out."""
    Path(".ci").mkdir()
    Path(".ci/integrations.toml").write_text(
        "".join(
            f'[{name}]\nguards = "it"\ntests = ["tests/test_{name}.py"]\ntouches = []\n'
            for name in ("green", "red")
        )
    )
    Path(".ci/integrations.json").write_text("{}")
    Path(".ci/report.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.test_green" name="test_it[x]"/>'
        '<testcase classname="tests.test_red" name="test_it"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "groups")
    assert integrations.record(Path(".ci/report.xml")) == 0
    records = json.loads(Path(".ci/integrations.json").read_text())
    assert set(records) == {"green"}
    assert (records["green"]["commit"], records["green"]["result"]) == (
        git("rev-parse", "HEAD"),
        "1 passed",
    )


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ({"a.py::one[x]": "passed", "b.py::two": "passed"}, "2 passed"),
        ({"a.py::one[x]": "passed"}, None),
        ({"a.py::one": "passed", "b.py::two": "skipped"}, None),
        ({"a.py::one": "passed", "b.py::two": "failure"}, None),
    ],
)
def test_what_is_green(
    integrations: ModuleType, outcomes: dict[str, str], result: str | None
) -> None:
    """Each of the group's tests ran, and passed: a skip proves nothing."""
    assert integrations.green(["a.py", "b.py::two"], outcomes) == result


def test_what_guards_people_is_in_no_group() -> None:
    """A test that the page on security rests on always runs."""
    sections = tomllib.loads((ROOT / "docs/security_tests.toml").read_text(encoding="utf-8"))
    guarding = [test for tests in sections.values() for test in tests]
    assert guarding and not [name for name in guarding if name.startswith(tuple(TESTS))]


@pytest.mark.parametrize("test", TESTS)
def test_each_is_there(test: str) -> None:
    """A test that is renamed is renamed in its group."""
    file, _, function = test.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text() if function else (ROOT / file).exists()


@pytest.mark.parametrize("name", GROUPS)
def test_what_it_touches_is_there(name: str) -> None:
    """A file that is moved is moved in the group that touches it."""
    for pathspec in GROUPS[name]["touches"]:
        command = ["git", "ls-files", "--", pathspec]
        assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout, pathspec

#!/usr/bin/env python3
"""Which tests of .ci/integrations.toml are due: run in the project's root.

`deselect` prints the pytest options that leave out what is not due, and why on standard error.
`record REPORT` keeps the groups that a run found green, by pytest's JUnit file (`.ci/run` leaves
it in .ci/report.xml), in .ci/integrations.json, which is committed.
"""

import json
import shlex
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

GROUPS = Path(".ci/integrations.toml")
RECORDS = Path(".ci/integrations.json")
MOST_AGE = timedelta(days=7)


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What git answers here."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


def why_due(group: dict, record: dict | None) -> str | None:
    """Why the group's tests have to run, None where its record stands."""
    if record is None:
        return "never recorded"
    if datetime.now(UTC) - datetime.fromisoformat(record["date"]) > MOST_AGE:
        return f"recorded more than {MOST_AGE.days} days ago"
    commit = record["commit"]
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        return f"the recorded commit {commit[:9]} is not in this clone"
    paths = [test.partition("::")[0] for test in group["tests"]] + group["touches"]
    changed = git("diff", "--name-only", commit, "--", *paths)
    if changed.returncode:
        return changed.stderr.strip()
    first = changed.stdout.partition("\n")[0]
    return f"{first} has changed since {commit[:9]}" if first else None


def read() -> tuple[dict, dict, dict[str, str]]:
    """The groups, the records, and why each group that is due is due."""
    groups, records = tomllib.loads(GROUPS.read_text()), json.loads(RECORDS.read_text())
    reasons = {name: why_due(group, records.get(name)) for name, group in groups.items()}
    return groups, records, {name: reason for name, reason in reasons.items() if reason}


def deselect() -> int:
    """Print the options for pytest, and on standard error what becomes of each group."""
    groups, records, due = read()
    for name, group in groups.items():
        record = records.get(name, {})
        left_out = "left out, green on {date} at {commit:.9}: {result}"
        verdict = f"due, {due[name]}" if name in due else left_out.format(**record)
        print(f"integrations: {name} ({group['guards']}): {verdict}", file=sys.stderr)
    tests = [test for name in groups if name not in due for test in groups[name]["tests"]]
    print(shlex.join(f"--deselect={test}" for test in tests))
    return 0


def record(report: Path) -> int:
    """Keep the groups that a run of the commit that is checked out found green."""
    if git("status", "--porcelain", "--", ".", f":!{RECORDS}").stdout:
        print("integrations: commit your changes first: a record names a commit", file=sys.stderr)
        return 2
    groups, records, _ = read()
    results = outcomes(report)
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD").stdout.strip(),
    }
    for name, group in groups.items():
        if passed := green(group["tests"], results):
            print(f"integrations: {name}: {passed}", file=sys.stderr)
            records[name] = {**entry, "result": passed}
    RECORDS.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")
    return 0


def outcomes(report: Path) -> dict[str, str]:
    """What became of each test, by its id, as pytest's JUnit file says."""
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 -- pytest wrote it
    return {
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}": outcome(case)
        for case in cases
    }


def outcome(case: ElementTree.Element) -> str:
    """One test's, as the report has it."""
    return next((child.tag for child in case if child.tag in ("failure", "error")), "") or (
        "skipped" if case.find("skipped") is not None else "passed"
    )


def green(tests: list[str], results: dict[str, str]) -> str | None:
    """How many of the group's tests passed; None where one failed, was skipped or did not run."""
    outcomes = [
        [outcome for case, outcome in results.items() if case.startswith(test)] for test in tests
    ]
    ran = [outcome for cases in outcomes for outcome in cases]
    if all(outcomes) and set(ran) == {"passed"}:
        return f"{len(ran)} passed"
    return None


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["deselect"]:
            sys.exit(deselect())
        case ["record", report]:
            sys.exit(record(Path(report)))
        case _:
            sys.exit(__doc__)

"""Mutants: small faults put into the code one at a time; a test that fails kills one.

`python -m tests.mutants run named|random` goes on where it was ended, with `--lived` also over
those that lived; `--only KEY ...` runs some again.  `report named|random` counts what is in
named.json or random.json.  The tree is copied first, so that it can be worked on meanwhile.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.mutants.drawing import HERE, ROOMS, Mutant, drawn_mutants, files, named_mutants

KINDS = {"named": named_mutants, "random": drawn_mutants}
PACKAGES = (
    *("api", "spawner", "pool", "hub", "slurm", "bench", "tests/slurm/bench", "notebooks"),
    "images/student/jupyterlab", ".",
)  # fmt: skip
PYTEST = ("nice", "-n", "19", sys.executable, "-m", "pytest", "-q", "-s", "--timeout=0",
          "-p", "no:cacheprovider", "-p", "tests.mutants.runner", "-m", "not long")  # fmt: skip


def git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), capture_output=True, text=True, check=True).stdout


def tree() -> list[Path]:
    """What git knows or would add."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return sorted({Path(name) for name in listed if name and Path(name).is_file()})


def digest(paths: list[Path]) -> str:
    sha256 = hashlib.sha256()
    for path in paths:
        sha256.update(f"{path}\0".encode() + path.read_bytes())
    return sha256.hexdigest()[:12]


def run(kind: str, only: list[str], lived: bool) -> None:
    mutants = KINDS[kind]()
    code = digest([Path(file) for room in ROOMS["rooms"] for file in files(room)])
    record = read(kind)
    results = record["results"] if record.get("code") == code else {}
    chosen_mutants = [m for m in mutants if is_wanted(m, results.get(m.key), only, lived)]
    chosen_mutants.sort(key=lambda mutant: mutant.key in results)
    record = {
        "command": f"python -m tests.mutants run {kind}",
        "commit": git("rev-parse", "HEAD").strip(),
        "code": code,
        "mutants": len(mutants),
        "results": {m.key: results[m.key] for m in mutants if m.key in results},
    }
    tests = [str(path) for glob in ROOMS["tests"] for path in sorted(Path().glob(glob))]
    attribution = Path("build/mutants", f"{code}.json")
    attribution.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder, "tree")
        for path in tree():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / path)
        lines = Path(folder, "results")
        lines.touch()
        every = [str(copy / file) for room in ROOMS["rooms"] for file in files(room)]
        job = {
            "mutants": [asdict(mutant) for mutant in chosen_mutants],
            "results": str(lines),
            "files": every,
            "attribution": str(attribution.resolve()),
            "current": f"{folder}/current",
        }
        Path(folder, "job").write_text(json.dumps(job))
        path = os.pathsep.join(str(copy / package) for package in PACKAGES)
        environment = {**os.environ, "MUTANTS_JOB": f"{folder}/job", "PYTHONPATH": path}
        with subprocess.Popen(
            (*PYTEST, f"--basetemp={folder}/tests", *tests), cwd=copy, env=environment
        ) as pytest:
            try:
                while pytest.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        pytest.wait(10)
                    store(kind, record, lines)
            finally:
                pytest.terminate()
                store(kind, record, lines)
    report(kind)


def is_wanted(mutant: Mutant, result: dict | None, only: list[str], lived: bool) -> bool:
    if only:
        return mutant.key in only
    return result is None or (lived and not is_killed(result))


def is_killed(result: dict) -> bool:
    return result["outcome"].startswith(("killed", "ended"))


def read(kind: str) -> dict:
    path = HERE / f"{kind}.json"
    return json.loads(path.read_text()) if path.exists() else {"results": {}}


def store(kind: str, record: dict, lines: Path) -> None:
    """Write the results as far as they are, one a line."""
    for line in lines.read_text().splitlines():
        result = json.loads(line)
        record["results"][result.pop("key")] = result
    record["seconds"] = round(sum(result["seconds"] for result in record["results"].values()))
    head = json.dumps({key: value for key, value in record.items() if key != "results"}, indent=1)
    rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record["results"].items())
    (HERE / f"{kind}.json").write_text(f'{head[:-2]},\n "results": {{\n{rows}\n}}}}\n')


def report(kind: str) -> None:
    record = read(kind)
    for room in ROOMS["rooms"]:
        outcomes = [r for r in record["results"].values() if r["room"] == room]
        print(f"{room:8} {sum(map(is_killed, outcomes)):4} of {len(outcomes):4} killed")
    counts = Counter(result["outcome"] for result in record["results"].values())
    killed = sum(map(is_killed, record["results"].values()))
    count = len(record["results"])
    share = 100 * killed / max(1, count)
    print(f"{kind}: {count} of {record['mutants']} run, {killed} killed, {share:.1f} %")
    print(f"{record['seconds']} s at {record['commit'][:8]}: {dict(counts)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("do", choices=("run", "report"))
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--only", metavar="KEY", nargs="+", default=[])
    parser.add_argument("--lived", action="store_true")
    options = parser.parse_args()
    if options.do == "run":
        run(options.kind, options.only, options.lived)
    else:
        report(options.kind)


if __name__ == "__main__":
    main()

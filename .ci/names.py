#!/usr/bin/env python3
"""How many names say nothing: variables and arguments bound to a word such as `one` or `found`.

Run in the project's root: a line for each package.  `--check` fails if the share of such names is
above its limit in .ci/names.toml; packages that are not named there are only counted.  `--where
PATH` lists the names of the files below a path, `--words` prints the list.

A binding is a name to which an assignment, a loop, a `with`, a comprehension or an argument list
gives a value.  `self`, `cls` and `_` are not counted.
"""

import argparse
import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIMITS = Path(".ci/names.toml")
NOT_COUNTED = frozenset({"self", "cls", "_"})
# Pronouns, participles, question words and adverbs: they point at a thing instead of naming it.
WORDS = """
    one ones others another each whole rest most more mine ours own same
    it this that these those there here what who whom whose why how where which when
    found said says asked known told wanted made given taken done named left kept shown drawn gone
    seen placed held begun began fixed meant felt heard sent got went came brought chosen written
    read_ spoken do does by so word words thing things stuff
"""
VAGUE = frozenset(WORDS.split())


def bindings(source: str) -> Iterator[tuple[str, int]]:
    """Yield each bound name of a module, and its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name not in NOT_COUNTED:
            yield name, node.lineno


def is_vague(name: str) -> bool:
    """Return whether a name, without underscores at its ends, is a word of the list."""
    return name.strip("_") in VAGUE


def modules() -> list[Path]:
    """Return the Python files that git knows and that exist."""
    command = ["git", "ls-files", "-z", "*.py"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, listing.split("\0")) if path.is_file()]


def counts() -> tuple[Counter[str], Counter[str]]:
    """Return the number of bindings and of vague bindings, by top-level folder."""
    total: Counter[str] = Counter()
    vague: Counter[str] = Counter()
    for path in modules():
        for name, _ in bindings(path.read_text(encoding="utf-8")):
            total[path.parts[0]] += 1
            vague[path.parts[0]] += is_vague(name)
    return total, vague


def share_pct(vague: int, total: int) -> float:
    """Return the share of vague bindings in percent; 0 where nothing is bound."""
    return 100 * vague / total if total else 0.0


def excesses(limits_pct: dict[str, float]) -> list[str]:
    """Return, in words, the packages above their limit, and the limits without a package."""
    total, vague = counts()
    problems = [f"{LIMITS}: no package {name}" for name in limits_pct if name not in total]
    for package, limit_pct in limits_pct.items():
        share = share_pct(vague[package], total[package])
        if share > limit_pct:
            problems.append(
                f"{package}: {vague[package]} of {total[package]} names say nothing ({share:.2f} %,"
                f" limit {limit_pct} %): name what they hold; .ci/names.py --where {package}"
            )
    return problems


def places(folder: Path) -> list[str]:
    """Return each vague binding of the files below a folder, as ``file:line: name``."""
    return [
        f"{path}:{line}: {name}"
        for path in modules()
        if path.is_relative_to(folder)
        for name, line in bindings(path.read_text(encoding="utf-8"))
        if is_vague(name)
    ]


def main() -> int:
    """Count, list or check; exit status 1 if a package is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail above a limit")
    parser.add_argument("--where", metavar="PATH", type=Path, help="list the names below this path")
    parser.add_argument("--words", action="store_true", help="print the list of words")
    options = parser.parse_args()
    if options.words:
        print(*sorted(VAGUE))
    elif options.where is not None:
        print(*places(options.where), sep="\n")
    elif options.check:
        problems = excesses(tomllib.loads(LIMITS.read_text())["limit_pct"])
        print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
        return 1 if problems else 0
    else:
        total, vague = counts()
        for package in sorted(total):
            share = share_pct(vague[package], total[package])
            print(f"{package:10} {vague[package]:5} of {total[package]:6} {share:5.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())

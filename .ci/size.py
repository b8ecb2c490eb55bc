#!/usr/bin/env python3
"""How large the project is: run in its root.

`--json` gives one object.  `--check` holds the figures against .ci/size.toml: exit status 1 where
one is above its limit, or so far below it that the limit is to come down.

A code line is a line of Python that is neither blank, nor a comment alone, nor part of a docstring.
Notebooks' sources count as product; .js, .html, .css are counted apart; docs in words of Markdown.
"""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

LIMITS = Path(".ci/size.toml")
SLACK = 0.01  # a gain above this share of the limit is kept by lowering the limit
ROOMS = ("api", "spawner", "pool", "hub", "slurm", "notebooks", "images", "deploy", "bench")


def tracked() -> list[Path]:
    """Every file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name]


def code_lines(text: str) -> int:
    """How many lines of a module are code."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        has_body = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if has_body and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            skipped.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and number not in skipped and not line.strip().startswith("#")
    )


def measured() -> dict:
    """The figures of the working tree."""
    rooms = {room: {"code": 0, "lines": 0, "modules": 0} for room in (*ROOMS, "other", "tests")}
    web = words = 0
    for path in tracked():
        if not path.is_file():
            continue
        top = path.parts[0]
        if path.suffix == ".py":
            text = path.read_text()
            in_tests = "tests" in path.parts[:-1]
            room = rooms["tests" if in_tests else top if top in rooms else "other"]
            room["code"] += code_lines(text)
            room["lines"] += len(text.splitlines())
            room["modules"] += 1
        elif path.suffix in (".js", ".ts", ".html", ".css") and "tests" not in path.parts:
            web += len(path.read_text().splitlines())
        elif path.suffix == ".md" and top == "docs":
            words += len(path.read_text().split())
    product = [size for name, size in rooms.items() if name != "tests"]
    return {
        "product_code": sum(size["code"] for size in product),
        "product_lines": sum(size["lines"] for size in product),
        "product_modules": sum(size["modules"] for size in product),
        "tests_lines": rooms["tests"]["lines"],
        "web_lines": web,
        "docs_words": words,
        "rooms": {name: size for name, size in rooms.items() if size["modules"]},
    }


def complaints(figures: dict, limits: dict) -> list[str]:
    """What is wrong with the figures, a sentence each."""
    found = []
    for name, limit in limits.items():
        figure = figures[name]
        if figure > limit:
            todo = "make it smaller, or raise the limit there and say what that is worth"
            found.append(f"{name} is {figure:,}, above {limit:,} of {LIMITS}: {todo}")
        elif figure < limit * (1 - SLACK):
            found.append(f"{name} is {figure:,}: lower its {limit:,} in {LIMITS}, so that it stays")
    return found


def main() -> int:
    """Print the figures, or hold them against the limits."""
    figures = measured()
    if "--check" in sys.argv:
        found = complaints(figures, tomllib.loads(LIMITS.read_text())["limits"])
        print("\n".join(found), end="\n" if found else "", file=sys.stderr)
        return 1 if found else 0
    if "--json" in sys.argv:
        print(json.dumps(figures))
        return 0
    for name, size in figures["rooms"].items():
        row = f"{name:10} {size['code']:7,} code {size['lines']:7,} lines"
        print(f"{row} {size['modules']:4} modules")
    print(", ".join(f"{key} {value:,}" for key, value in figures.items() if key != "rooms"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

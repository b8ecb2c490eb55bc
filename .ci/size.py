#!/usr/bin/env python3
"""How large the project is: run in its root.

`--json` gives one object.  `--check` warns of each figure that is more than two percent away from
the one in .ci/size.toml, and never fails: whoever changed the size that much says in the commit
what it is worth, and writes the new figure down.

A code line is a line of Python that is neither blank, nor a comment alone, nor part of a docstring.
Notebooks' sources count as product; .js, .html, .css are counted apart; docs in words of Markdown.
"""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

RECORDED = Path(".ci/size.toml")
ROOM = 0.02  # share of the recorded figure by which the size may move without a warning
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
    web = doc_words = 0
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
            doc_words += len(path.read_text().split())
    product = [size for name, size in rooms.items() if name != "tests"]
    return {
        "product_code": sum(size["code"] for size in product),
        "product_lines": sum(size["lines"] for size in product),
        "product_modules": sum(size["modules"] for size in product),
        "tests_lines": rooms["tests"]["lines"],
        "web_lines": web,
        "docs_words": doc_words,
        "rooms": {name: size for name, size in rooms.items() if size["modules"]},
    }


def warnings(figures: dict, recorded: dict) -> list[str]:
    """One sentence for each figure that has moved out of its room."""
    return [
        f"{name} is {figures[name]:,}, recorded {size:,}: say in the commit what the difference"
        f" is worth, and record the new figure in {RECORDED}"
        for name, size in recorded.items()
        if abs(figures[name] - size) > ROOM * size
    ]


def main() -> None:
    """Print the figures, or warn of those that have moved."""
    figures = measured()
    if "--check" in sys.argv:
        for warning in warnings(figures, tomllib.loads(RECORDED.read_text())):
            print(f"warning: {warning}", file=sys.stderr)
    elif "--json" in sys.argv:
        print(json.dumps(figures))
    else:
        for name, size in figures["rooms"].items():
            row = f"{name:10} {size['code']:7,} code {size['lines']:7,} lines"
            print(f"{row} {size['modules']:4} modules")
        print(", ".join(f"{key} {value:,}" for key, value in figures.items() if key != "rooms"))


if __name__ == "__main__":
    main()

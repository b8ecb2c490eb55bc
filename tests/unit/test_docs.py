"""The docs against the checkout: the site builds, and what they name exists."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from miglab_hub import cli

CHECKOUT = Path(__file__).parents[2]
# The changelog tells of things as they were, the gallery is written by `labkit record`.
PAGES = sorted(
    page
    for page in [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md")]
    if page.name != "CHANGELOG.md" and "gallery" not in page.parts
)
FOLDERS = "|".join(
    ("api", "spawner", "pool", "hub", "bench", "notebooks", "images", "tests", "deploy", "docs")
)
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{FOLDERS})/[\w./-]+")
PACKAGES = (
    "api",
    "spawner",
    "pool",
    "hub",
    "bench",
    "notebooks/labkit",
    "notebooks/labkit_authoring",
    "notebooks/labkit_grading",
    "images",
)
MODULE = re.compile(r"(?<![\w./\"'])(?:[a-z_0-9]+/)*[a-z_0-9]+\.py\b")
COMMAND = re.compile(r"^(?:\$ )?(?:\./lab|miglab) ([\w -][^`|>;&]*)", re.MULTILINE)
SPHINX = (sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html")
PLACEHOLDER = re.compile(r"[A-Z…\[(*<]")


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links between pages, to headings, pictures and files lead somewhere."""
    built = subprocess.run(
        [*SPHINX, "-d", str(tmp_path / "doctrees"), str(CHECKOUT / "docs"), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "html/search.html").is_file()
    assert "Default: <code" in (tmp_path / "html/reference/commands.html").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_paths_that_are_named_exist(page: Path) -> None:
    """A path of the checkout between backticks is there."""
    paths = {code for code in CODE.findall(page.read_text()) if PATH.fullmatch(code)}
    roots = (CHECKOUT, CHECKOUT / "tests")  # docs/reference/tests.md names files below tests/
    assert not sorted(path for path in paths if not any((root / path).exists() for root in roots))


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_that_docstrings_name_exist(package: str) -> None:
    """A module is known by its file's name, with or without its folder."""
    modules = [str(path) for path in CHECKOUT.glob(f"{package.split('/')[0]}/**/*.py")]
    assert not [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in CHECKOUT.glob(f"{package}/**/*.py")
        for name in MODULE.findall("".join(docstrings(path)))
        if not any(module.endswith(f"/{name}") for module in modules)
    ]


def docstrings(path: Path) -> Iterator[str]:
    """Those of a module, its classes and its functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, documented):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("page", sorted(CHECKOUT.glob("*.md")), ids=lambda page: page.name)
def test_links_of_the_front_pages_lead_somewhere(page: Path) -> None:
    """Those beside docs/, which Sphinx does not read as they are."""
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not sorted(path for path in linked if not (CHECKOUT / path).exists())


LONGEST = 110  # words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_no_paragraph_is_a_wall(page: Path) -> None:
    """A sentence a line becomes a long paragraph unnoticed; items and rows are counted apart."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |\|))", prose)
    assert not [part for part in parts if len(part.split()) > LONGEST]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_commands_that_are_named_exist(page: Path) -> None:
    """`./lab …` and `miglab …` name commands and options that there are."""
    assert not [
        f"{line}: {problem}" for line in commands(page.read_text()) for problem in wrong(line)
    ]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command in code spans and in indented or fenced lines."""
    spans = CODE.findall(text)
    lines = [line.strip() for line in re.findall(r"^(?: {4}|```).*|^\./lab.*", text, re.MULTILINE)]
    for code in [*spans, *lines]:
        for command in COMMAND.findall(code.split(" #")[0]):
            yield command.split()


def wrong(arguments: list[str]) -> Iterator[str]:
    """What of a command line does not exist; a word that stands for another ends the search."""
    if arguments[0] in ("install", "dist"):  # the launcher's own
        return
    command: Any = typer.main.get_command(cli.app)
    for argument in arguments:
        if PLACEHOLDER.match(argument) or argument == "--":
            return
        if argument.startswith("--"):
            if argument.split("=")[0] not in options(command):
                yield f"no option {argument}"
        elif hasattr(command, "get_command"):
            below = command.get_command(None, argument.rstrip(",."))
            if below is None:
                yield f"no command {argument}"
                return
            command = below


def options(command: Any) -> set[str]:
    """The options of a command, with those that every command has."""
    own_options = {
        name for param in command.params for name in (*param.opts, *param.secondary_opts)
    }
    passed_on = {"--version", "--durations"} if command.name == "test" else set()
    return own_options | passed_on | {"--help", "--install-completion", "--show-completion"}

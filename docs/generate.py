"""The pages that are made from the code when the site is built; none of them is committed."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def security_tests() -> str:
    """The tests that show what the page on security says, by its sections."""
    sections = tomllib.loads((DOCS / "security_tests.toml").read_text())
    lines = ["# The tests behind the page on security", ""]
    lines += ["[The page](security.md) says what is defended; these tests show it.", ""]
    for section, tests in sections.items():
        lines += [f"## {section}", "", "| test | what it shows |", "|---|---|"]
        lines += [f"| `{test}` | {sentence(test)} |" for test in tests]
        lines.append("")
    return "\n".join(lines)


def sentence(test: str) -> str:
    """The first sentence of a test's docstring.

    Args:
        test: a test's id, such as ``tests/unit/test_docs.py::test_links``.

    Raises:
        LookupError: there is no such test.
    """
    file, *names = test.split("::")
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for name in names:
        (found,) = (node for node in body if getattr(node, "name", None) == name)
        assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        body = found.body
    text = ast.get_docstring(found) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


PAGES = {"explanation/security-tests.md": security_tests}


def write() -> None:
    """Write every generated page into docs/."""
    for page, make in PAGES.items():
        (DOCS / page).write_text(make() + "\n", encoding="utf-8")

"""How much of each notebook the student writes, and how long its core takes.

`python3 students_share.py [SOURCE…]`. Counted are lines of code, without comments and empty lines;
the student's are those between the solution marks. The minutes of a sitting: a minute for 100 words
of the core, two for a line that the student writes, six for a panel, and the machine's own.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit_grading import cells

SOURCES = Path(__file__).parent / "src"


def share(source: Path) -> tuple[int, int]:
    """The student's lines of code, and all of them."""
    return share_of(source.read_text(encoding="utf-8"))


def share_of(text: str) -> tuple[int, int]:
    """The same of a text."""
    solved = cells.solution_lines(text)
    lines, is_code = cells.with_solutions(text).splitlines(), False
    own = total = 0
    for number, line in enumerate(lines, 1):
        if line.startswith("# %%"):
            is_code = "[markdown]" not in line
        elif is_code and line.strip() and not line.strip().startswith("#"):
            total += 1
            own += number in solved
    return own, total


MACHINE_MIN = 1.0  # a notebook's core on one GPU or on two quiet cores, without a person


def core_of(text: str) -> str:
    """What stands before the summary; the rest is optional."""
    return re.split(r"^# #+ (?:Your s|S)ummary", text, maxsplit=1, flags=re.MULTILINE)[0]


def minutes(source: Path) -> float:
    """How long the core takes, by the formula above."""
    text = core_of(source.read_text(encoding="utf-8"))
    cells_of = text.split("# %%")
    words = sum(len(cell.split()) for cell in cells_of if cell.startswith(" [markdown]"))
    own, _ = share_of(text)
    panels = len(re.findall(r"labkit\.experiment\(", text))
    return words / 100 + 2 * own + 6 * panels + MACHINE_MIN


def main(files: Sequence[str]) -> None:
    """Print a row for each source."""
    for source in [Path(file) for file in files] or sorted(SOURCES.glob("[1-6]*_*.py")):
        own, total = share(source)
        said = f"{own:3} of {total:3} lines, {own / total:.0%}; {minutes(source):.0f} minutes"
        print(f"{source.stem:22} {said}")


if __name__ == "__main__":
    main(sys.argv[1:])

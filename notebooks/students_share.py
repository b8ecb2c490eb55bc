"""How much of each notebook's code the student writes: `python3 students_share.py [SOURCE…]`.

Counted are lines of code, without comments and empty lines; the student's are those between the
solution marks.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.run import cells

SOURCES = Path(__file__).parent / "src"


def share(source: Path) -> tuple[int, int]:
    """The student's lines of code, and all of them."""
    text = source.read_text(encoding="utf-8")
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


def main(files: Sequence[str]) -> None:
    """Print a row for each source."""
    for source in [Path(file) for file in files] or sorted(SOURCES.glob("[1-6]_*.py")):
        own, total = share(source)
        print(f"{source.stem:22} {own:3} of {total:3} lines, {own / total:.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])

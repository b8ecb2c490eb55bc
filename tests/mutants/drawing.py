"""Named and random mutants of the tree as it is."""

import ast
import random
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import FUNCTION, faults

HERE = Path(__file__).parent
ROOMS = tomllib.loads((HERE / "rooms.toml").read_text())


@dataclass(frozen=True)
class Mutant:
    """A file's new text; ``first`` and ``last`` are the lines of the old one that it changes."""

    key: str
    room: str
    file: str
    text: str
    first: int
    last: int


def files(room: str) -> list[str]:
    """The modules of a room, in an order that no machine changes."""
    return sorted({str(path) for glob in ROOMS["rooms"][room] for path in Path().glob(glob)})


def named_mutants() -> list[Mutant]:
    """Those of named.toml, each fitting its file exactly once, inside of a function."""
    mutants = []
    for room, entries in tomllib.loads((HERE / "named.toml").read_text()).items():
        for sentence, entry in entries.items():
            source = Path(entry["file"]).read_text()
            if room not in ROOMS["rooms"] or source.count(entry["old"]) != 1:
                raise SystemExit(f"{sentence!r}: {room} has no {entry['file']} with its old text")
            text = source.replace(entry["old"], entry["new"])
            first, last = changed(source, text)
            mutants.append(Mutant(sentence, room, entry["file"], text, first, last))
    return mutants


def changed(source: str, text: str) -> tuple[int, int]:
    """The first and last line of a source that another text has otherwise."""
    old, new = source.splitlines(), text.splitlines()
    first = next(n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b)
    back = next(n for n, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
    return first, max(first, len(old) - back)


def drawn_mutants() -> list[Mutant]:
    """As many of each room as of every other, in an order by chance: any part is a fair sample."""
    chance = random.Random(ROOMS["seed"])
    rooms, mutants = list(ROOMS["rooms"]), []
    for place, room in enumerate(rooms):
        share = (ROOMS["drawn"] + place) // len(rooms)
        every = [site for file in files(room) for site in sites(room, file)]
        mutants += chance.sample(every, min(share, len(every)))
    chance.shuffle(mutants)
    return mutants


def sites(room: str, file: str) -> list[Mutant]:
    """Every fault that the operators make in a file."""
    source = Path(file).read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants = []
    for node, new in faults(source):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = source.encode()[begin:end].decode()
        text = source.encode()[:begin].decode() + new + source.encode()[end:].decode()
        key = f"{file}:{node.lineno}:{node.col_offset} {' '.join(old.split())} -> {new}"
        mutants.append(Mutant(key, room, file, text, node.lineno, node.end_lineno))
    return mutants


def lines_to_reach(source: str, first: int, last: int) -> set[int]:
    """The lines of the statements that the changed lines lie in; of a block, those of its head."""
    reach: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not isinstance(node, (*FUNCTION, ast.ClassDef)):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno
            if node.lineno <= last and max(end, node.lineno) >= first:
                reach.update(range(node.lineno, max(end, node.lineno) + 1))
    return reach

"""Tables of records as CSV, in which a student's text is seen as text, whoever opens the file.

A spreadsheet runs no cell of it as a formula, a terminal obeys no control character, and no cell is
longer than a person reads.
"""

from __future__ import annotations

import csv
import os
import unicodedata
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

FORMULA = frozenset("=+-@|%")
JOINERS = "\u200c\u200d"  # of Persian and Indic letters, and of emoji
MOST_SHOWN = 8000  # characters of a cell, before what is escaped; a spreadsheet takes 32,767


def write_table(kind: type[Any], records: Iterable[Any], file: Path) -> None:
    """Write records of one dataclass, a column a field, into a file that its owner alone reads.

    Args:
        kind: the dataclass.
        records: of it.
        file: the CSV to write.
    """
    names = [part.name for part in fields(kind)]
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)  # one that was there keeps its own mode
    with os.fdopen(descriptor, "w", encoding="utf-8-sig", errors="replace", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows([_cell(getattr(record, name)) for name in names] for record in records)


def _cell(value: object) -> object:
    return text_cell(value) if isinstance(value, str) else value


def text_cell(text: str) -> str:
    """A text as a cell: its lines, with control characters escaped; shortened; no formula.

    The first visible character decides what is a formula, in its normal form: a spreadsheet may
    drop what stands before it, and take ``＝`` for ``=``.
    """
    lines = text[:MOST_SHOWN].splitlines()
    cell = "\n".join("".join(map(_visible, line.expandtabs(4))) for line in lines)
    if len(text) > MOST_SHOWN:
        cell += f"… ({len(text)} characters in all)"
    first_visible = next((sign for sign in text if unicodedata.category(sign)[0] not in "CZ"), "")
    is_formula = unicodedata.normalize("NFKC", first_visible)[:1] in FORMULA
    return f"'{cell}" if is_formula or text.startswith(("\t", "\r", "'")) else cell


def _visible(character: str) -> str:
    """A character as it is; escaped if it moves a cursor, turns text round or cannot be seen."""
    if unicodedata.category(character) == "Zs":
        return " "
    is_visible = character.isprintable() or character in JOINERS
    return character if is_visible else ascii(character)[1:-1]

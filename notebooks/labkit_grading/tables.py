"""Tables of records as CSV, readable by a spreadsheet, in which no student's text is a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_table(kind: type[Any], records: Iterable[Any], file: Path) -> None:
    """Write records of one dataclass, a column a field.

    Args:
        kind: the dataclass.
        records: of it.
        file: the CSV to write.
    """
    names = [part.name for part in fields(kind)]
    with file.open("w", encoding="utf-8-sig", errors="replace", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows([_harmless(getattr(each, name)) for name in names] for each in records)


def _harmless(cell: object) -> object:
    is_formula = isinstance(cell, str) and cell.startswith(FORMULA)
    return f"'{cell}" if is_formula else cell

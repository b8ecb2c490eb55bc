"""What a benchmark prints: JSON, or records as a table for people."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def table_of(records: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """A row for each record, a column for each of its fields; numbers stand on the right."""
    table = Table(title=title, box=box.SIMPLE, padding=0)
    for name, value in (records[0] if records else {}).items():
        width = max(len(word) for one in records for word in f"{one[name]} ".split(" "))
        table.add_column(
            name.replace("_", " "),
            justify="right" if isinstance(value, int | float) else "left",
            min_width=width,
        )
    for record in records:
        table.add_row(*(escape(str(value)) for value in record.values()))
    return table


def say(found: Mapping[str, Any], *shown: object, as_json: bool) -> None:
    """Print what was found as one JSON object, or what is shown of it, one below the other."""
    if as_json:
        print(json.dumps(found))
    else:
        Console().print(*shown, sep="\n")

"""Records as a table for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
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

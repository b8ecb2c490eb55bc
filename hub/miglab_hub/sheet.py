"""Tables for a spreadsheet: it takes them for UTF-8, and no text in them for a formula.  Pure."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence

BOM = "\ufeff"
FORMULA = frozenset("=+-@|%")


def sheet(columns: Sequence[str], rows: Iterable[Sequence[float | str]]) -> str:
    """Rows under their columns' names; text is made `harmless`, numbers stay numbers."""
    text = io.StringIO()
    text.write(BOM)
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([harmless(item) if isinstance(item, str) else item for item in row])
    return text.getvalue()


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula: one that could begin one gets an apostrophe.

    Looks at the first sign that is seen, in its plain form: a spreadsheet may drop what stands
    before it, and take ``＝`` for ``=``.  Line ends become spaces: a row stays a row.
    """
    text = " ".join(text.splitlines()) if text else text
    seen = (sign for sign in text if unicodedata.category(sign)[0] not in "CZ")
    first = unicodedata.normalize("NFKC", next(seen, ""))[:1]
    return f"'{text}" if first in FORMULA or text[:1] in ("\t", "'") else text

"""Who is in a course, by a CSV file such as a campus system or a spreadsheet writes it.  Pure.

A file that cannot be read in full is refused in full, each of its faults told with file and line:
nobody is left out unseen.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from miglab_hub.errors import SettingsError

NAME = re.compile(r"\w([\w.@ -]*[\w.-])?")
LONGEST_NAME = 255
MOST_FAULTS = 10
USER_COLUMNS = ("user", "username", "login", "user name")
ROLE_COLUMN = "role"
DELIMITERS = ",;\t"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
SAVE_AS = 'Save the file as "CSV UTF-8" (or use iconv -f LATIN1 -t UTF-8), then start again.'
Fault = tuple[int, str]


class RosterError(SettingsError):
    """A roster cannot be used: the message names file, line, what is wrong and what to do."""


class RosterRole(StrEnum):
    """What somebody is in the course."""

    STUDENT = "student"
    ASSISTANT = "assistant"
    INSTRUCTOR = "instructor"


@dataclass(frozen=True, slots=True)
class Roster:
    """The people of one course, in the file's order, and the columns that were left aside."""

    students: tuple[str, ...] = ()
    assistants: tuple[str, ...] = ()
    instructors: tuple[str, ...] = ()
    unread_columns: tuple[str, ...] = ()


def read_roster(file: Path) -> Roster:
    """Read a roster from its file.

    Raises:
        RosterError: it cannot be read, or something in it makes no sense.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise RosterError(f"{file}: cannot be read: {error.strerror}") from error
    return parse_roster(raw, str(file))


def parse_roster(raw: bytes, file: str) -> Roster:
    """Parse a roster from a file's bytes.

    The first line names the columns, one of them `USER_COLUMNS`; `ROLE_COLUMN` may be there, all
    others are left aside.  Columns are parted by comma, semicolon or tab.  Text is UTF-8, with or
    without the mark that Excel puts before it.  Empty lines count for nothing.

    Args:
        raw: the bytes.
        file: the name that faults are told with.

    Raises:
        RosterError: what makes no sense, line by line.
    """
    text = _decode(raw, file)
    rows = _rows(text, file)
    line, head = next(rows, (1, []))
    user, role = _columns(head, f"{file}, line {line}")
    people, faults = _people(rows, user, role)
    if faults:
        messages = [f"{file}, line {line}: {fault}" for line, fault in faults[:MOST_FAULTS]]
        further_faults = len(faults) - MOST_FAULTS
        raise RosterError(
            "\n".join(
                [*messages, *([f"{file}: and {further_faults} more"] if further_faults > 0 else [])]
            )
        )
    students, assistants, instructors = (
        tuple(name for name, place in people.items() if place is wanted_role)
        for wanted_role in RosterRole
    )
    unread_columns = tuple(name for at, name in enumerate(head) if name and at not in (user, role))
    return Roster(students, assistants, instructors, unread_columns)


def _decode(raw: bytes, file: str) -> str:
    if raw.startswith(UTF16):
        raise RosterError(f"{file}: is UTF-16 (Excel's “Unicode text”). {SAVE_AS}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        read = raw[error.start - 10 if error.start > 10 else 0 : error.start + 10]
        nearby_lines = read.decode("latin-1").splitlines()
        near = next((part for part in nearby_lines if not part.isascii()), "")
        raise RosterError(
            f"{file}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; in Latin-1, the "
            f"text there is {near.strip()!r}. {SAVE_AS}"
        ) from error


def _rows(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line that is not empty, with its number."""
    first = text.lstrip().split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise RosterError(f"{file}, line {line}: not CSV: {error}") from error
        if row is None:
            return
        if any(cell.strip() for cell in row):
            yield line, [cell.strip() for cell in row]


def _columns(head: Sequence[str], place: str) -> tuple[int, int | None]:
    names = [name.lower() for name in head]
    users = [at for at, name in enumerate(names) if name in USER_COLUMNS]
    if len(users) != 1 or names.count(ROLE_COLUMN) > 1:
        columns = ", ".join(head) or "nothing"
        raise RosterError(
            f"{place}: the first line must name the columns, with one `user` and at most one "
            f"`role`; it reads: {columns:.200}"
        )
    return users[0], names.index(ROLE_COLUMN) if ROLE_COLUMN in names else None


def _people(
    rows: Iterator[tuple[int, list[str]]], user: int, role: int | None
) -> tuple[dict[str, RosterRole], list[Fault]]:
    """Return the people with their roles, and the faults by line.

    To the hub ``Ada`` and ``ada`` are one user.
    """
    people: dict[str, RosterRole] = {}
    line_of: dict[str, int] = {}
    faults: list[Fault] = []
    for line, row in rows:
        name = _cell(row, user)
        role_name = _cell(row, role).lower() or RosterRole.STUDENT
        fault = _fault(name, role_name)
        if not fault and (first := line_of.get(name.lower())):
            fault = f"{name!r} is already on line {first}: delete one of the two lines"
        if fault:
            faults.append((line, fault))
            continue
        line_of[name.lower()] = line
        people[name] = RosterRole(role_name)
    return people, faults


def _cell(row: Sequence[str], at: int | None) -> str:
    return row[at] if at is not None and at < len(row) else ""


def _fault(name: str, role: str) -> str:
    if not name:
        return "this line has no user"
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        return f"{name[:60]!r} is not a user name; use letters, digits, . _ @ - and inner spaces"
    if role not in list(RosterRole):
        return f"{role[:60]!r} is not a role; use one of {', '.join(RosterRole)}"
    return ""

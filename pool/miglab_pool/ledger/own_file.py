"""Which file is this lab's ledger: a ledger's identity is written beside it when it is made.

A ledger that is lost, empty or somebody else's looks like one in which nobody holds anything, so a
lab starts only with the ledger whose identity it has noted.  A new ledger appears complete or not
at all: it is made under another name, and nothing that is found at its path is ever taken for one.
Must not import the ledger, nor anything that decides.
"""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from miglab_pool.ledger import tables
from miglab_pool.ledger.tables import (
    TO_BEGIN_OR_RESTORE,
    LedgerForeign,
    LedgerMissing,
    check_file,
)

BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a database


def identity_file(path: Path) -> Path:
    """Where the identity of a ledger is noted."""
    return path.with_suffix(".id")


def make_new(path: Path) -> None:
    """Make a ledger where there is none, and note its identity.

    A process that dies meanwhile leaves the unfinished file, and the next start begins over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(path)
    unfinished.unlink(missing_ok=True)
    engine = create_engine(URL.create("sqlite", database=str(unfinished)), poolclass=NullPool)
    with engine.begin() as connection:
        tables.upgrade(connection)
    engine.dispose()
    note_identity(path, identity_of(unfinished))
    _sync(unfinished)
    unfinished.replace(path)
    _sync(path.parent)


def identity_of(path: Path) -> str:
    """The identity that stands in a ledger; for one that `check_file` accepts."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        return str(connection.execute("SELECT ledger FROM identity").fetchone()[0])


def note_identity(path: Path, identity: str) -> None:
    """Note which ledger is this lab's from now on."""
    note = identity_file(path)
    draft = note.with_suffix(".id-new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(f"{identity}\n")
    _sync(draft)
    draft.replace(note)


def check_own(path: Path) -> int | None:
    """The version of this lab's ledger; None where a lab begins.  Changes nothing.

    Raises:
        LedgerMissing: the lab has had a ledger, which is not there.
        LedgerForeign: this one is not it.
        LedgerError: what `check_file` raises.
    """
    noted = _noted(path)
    version = check_file(path)
    if version is None:
        if path.is_symlink() or (noted is not None and not _unfinished(path).exists()):
            raise LedgerMissing(
                f"The ledger {path} is not there, and this lab has had one: is its disk mounted? "
                f"{TO_BEGIN_OR_RESTORE}"
            )
        return None
    if noted is None or identity_of(path) != noted:
        raise LedgerForeign(
            f"The ledger {path} is not the one that this lab has begun or restored: "
            f"{_differs(noted)}. {TO_BEGIN_OR_RESTORE} If you put this file there yourself and it "
            "is this lab's, say so: `miglab ledger accept`."
        )
    return version


def begin_anew(path: Path) -> Path | None:
    """Move a ledger aside, with all that belongs to it, so that the next start makes a new one.

    Returns:
        The folder where it lies now; None if there was nothing.
    """
    names = [path.name + ending for ending in ("", *BESIDE)]
    candidates = [path.with_name(name) for name in (*names, identity_file(path).name)]
    files = [file for file in candidates if file.exists() or file.is_symlink()]
    if not files:
        return None
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"before-begin-{moment}")
    aside.mkdir(mode=0o700)
    for file in files:  # the identity goes last: until then a start is refused
        file.replace(aside / file.name)
    _sync(path.parent)
    return aside


def accept(path: Path) -> str:
    """Note that the ledger there is this lab's; returns its identity.

    Raises:
        LedgerMissing: there is none.
        LedgerError: what `check_file` raises.
    """
    if check_file(path) is None:
        raise LedgerMissing(f"There is no ledger {path}. {TO_BEGIN_OR_RESTORE}")
    identity = identity_of(path)
    note_identity(path, identity)
    return identity


def _unfinished(path: Path) -> Path:
    return path.with_suffix(".unfinished")


def _noted(path: Path) -> str | None:
    note = identity_file(path)
    return note.read_text(encoding="ascii", errors="replace").strip() if note.exists() else None


def _differs(noted: str | None) -> str:
    return "it has another identity" if noted else "no identity is noted beside it"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

"""A copy of what the lab must not lose: the ledger, the hub's database, and the secrets.

Both databases are copied as they were at one moment, while the lab runs or not.  Homes are not
part of it, nor is lab.toml: they are the operator's to copy.
"""

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.file import LedgerError, inspect

MANIFEST = "manifest.json"
FORMAT = 1
BUSY_S = 20.0  # how long the lab's own writes may hold up the moment of the copy


@dataclass(frozen=True)
class Manifest:
    """What a backup says of itself.

    Attributes:
        format: of this archive.
        lab: the lab's name.
        made_at: the moment that both databases are copied from, ISO 8601.
        ledger_version: the ledger's schema; empty if there was no ledger.
        files: SHA-256 of each file, by its path below the state folder.
    """

    format: int
    lab: str
    made_at: str
    ledger_version: str
    files: dict[str, str]


def databases(settings: Settings) -> list[Path]:
    """The databases that belong together."""
    return [
        settings.ledger,
        settings.ledger_archive,
        settings.hub_database,
        *settings.further_databases,
    ]


def secret_files(settings: Settings) -> list[Path]:
    """The files without which sign-ins, servers and services would no longer be recognised."""
    return [
        settings.pool_secret,
        settings.service_token,
        settings.proxy_token,
        settings.passwords,
        settings.cookie_secret,
    ]


def plain_files(settings: Settings) -> list[Path]:
    """What is copied as it is."""
    return [*secret_files(settings), *settings.further_files]


def make_backup(settings: Settings, target: Path) -> Manifest:
    """Write a backup; the file appears whole or not at all, and only its owner may read it.

    Raises:
        StartError: there is nothing to copy, the target exists, or a database cannot be read.
    """
    if target.exists():
        raise StartError(f"{target} exists: name another file, or remove it first")
    if not target.parent.is_dir():
        raise StartError(f"{target.parent} is no folder: name a file in one that exists")
    there = [file for file in databases(settings) if file.exists()]
    if not there:
        raise StartError(f"nothing to copy: {settings.state} has no ledger and no hub database")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".miglab-backup-") as folder:
            made_at = _copy_databases(there, Path(folder))
            copies = {file.name: Path(folder, file.name) for file in there}
            for file in filter(Path.exists, plain_files(settings)):
                name = str(file.relative_to(settings.state))
                copies[name] = Path(folder, f"plain-{len(copies)}")
                shutil.copy(file, copies[name])
            manifest = Manifest(
                FORMAT, settings.lab_id, made_at, inspect(settings.ledger) or "", _sums(copies)
            )
            _pack(copies, manifest, Path(folder, "archive"))
            Path(folder, "archive").replace(target)
    except (OSError, sqlite3.Error, LedgerError) as error:
        raise StartError(f"no backup was made: {error}") from error
    return manifest


def name_of_backup(settings: Settings, what: str = "") -> str:
    """A name for a backup made now."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return "-".join(filter(None, (settings.lab_id, what, moment))) + ".tar"


def _copy_databases(files: Sequence[Path], folder: Path) -> str:
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(_open(file))) for file in files]
        with _no_writes(files):
            for source in sources:  # begins to read: what it sees stays as it is now
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            made_at = datetime.now(UTC).isoformat(timespec="seconds")
        for file, source in zip(files, sources, strict=True):
            with closing(sqlite3.connect(folder / file.name)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    return made_at


@contextmanager
def _no_writes(files: Sequence[Path]) -> Iterator[None]:
    """Hold up whoever writes to any of these, for a moment."""
    with ExitStack() as stack:
        for file in files:
            writer = stack.enter_context(closing(_open(file)))
            writer.execute("BEGIN IMMEDIATE")
            stack.callback(writer.rollback)
        yield


def _open(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=BUSY_S, isolation_level=None
    )


def _sums(files: dict[str, Path]) -> dict[str, str]:
    return {name: sha256(file) for name, file in files.items()}


def sha256(file: Path) -> str:
    """The checksum of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pack(files: dict[str, Path], manifest: Manifest, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            text = json.dumps(asdict(manifest), indent=1).encode()
            head = tarfile.TarInfo(MANIFEST)
            head.size, head.mode = len(text), 0o600
            archive.addfile(head, io.BytesIO(text))
            for name, file in files.items():
                archive.add(file, name)
        stream.flush()
        os.fsync(stream.fileno())

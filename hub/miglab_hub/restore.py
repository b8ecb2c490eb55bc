"""Puts a backup back in its place; what was there is moved aside, not deleted.

Only while the lab stands still.  Whatever has started since the backup stays as it is: the ledger
that comes back does not know it, so the pool leaves it alone and shows it.
"""

import json
import os
import shutil
import socket
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from miglab_hub.backup import FORMAT, MANIFEST, Manifest, databases, plain_files, sha256
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.file import LedgerError, inspect
from miglab_pool.state.lock import AlreadyRunning, LabLock, PoolLock

HUB_ANSWERS_S = 2.0
BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a database


@dataclass(frozen=True)
class Restored:
    """What was done.

    Attributes:
        manifest: of the backup.
        aside: where what was there lies now.
        leases: how many leases are live in the ledger that came back.
    """

    manifest: Manifest
    aside: Path
    leases: int


def restore_backup(settings: Settings, archive: Path, *, new_host: bool = False) -> Restored:
    """Put a backup in place.

    Args:
        settings: the lab's.
        archive: the backup.
        new_host: its containers are on no engine that will be asked: the ledger forgets which
            engine they were at, and takes the next one's word that they are gone.

    Raises:
        StartError: the lab runs, or the backup is not whole, another lab's, or too new.  Nothing
            was changed.
    """
    with standing_still(settings):
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        unpacked = settings.state / f"restoring-{moment}"
        unpacked.mkdir(mode=0o700)
        try:
            manifest = _unpack(archive, unpacked)
            _check(settings, manifest, unpacked, archive)
            leases = _live_leases(unpacked / settings.ledger.name)
            if new_host:
                _forget_engine(unpacked / settings.ledger.name)
            aside = settings.state / f"before-restore-{moment}"
            _exchange(settings, manifest, unpacked, aside)
        finally:
            shutil.rmtree(unpacked)
    return Restored(manifest, aside, leases)


@contextmanager
def standing_still(settings: Settings) -> Iterator[None]:
    """Hold the lab's and the pool's lock, and see that no hub answers; servers may run on.

    Raises:
        StartError: pool or hub runs.
    """
    settings.state.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        try:
            for lock in (LabLock(settings.lab_lock), PoolLock(settings.pool_lock)):
                locks.enter_context(lock)
        except AlreadyRunning as error:
            raise StartError(f"the lab runs: stop it first. {error}") from error
        _check_no_hub(settings)
        yield


def _check_no_hub(settings: Settings) -> None:
    where = (settings.hub_name, settings.hub_port)
    with suppress(OSError), socket.create_connection(where, HUB_ANSWERS_S):
        raise StartError(f"the hub runs: something answers at {where[0]}:{where[1]}; stop it first")


def _extract(packed: tarfile.TarFile, folder: Path) -> None:
    """Ordinary files below the folder, and nothing else.

    `extractall(filter="data")` is not there on Debian 12, whose Python is 3.11.2.
    """
    for member in packed:
        if member.isdir():
            continue
        target = (folder / member.name).resolve()
        content = packed.extractfile(member) if member.isfile() else None
        if content is None or not target.is_relative_to(folder.resolve()):
            raise ValueError(f"{member.name!r} is no file of a backup")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            shutil.copyfileobj(content, out)
        target.chmod(member.mode & 0o755)


def _unpack(archive: Path, folder: Path) -> Manifest:
    if not archive.is_file():
        raise StartError(f"there is no file {archive}: name one that `miglab backup` wrote")
    try:
        with tarfile.open(archive) as packed:
            _extract(packed, folder)
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except tarfile.ReadError as error:  # tells of every compression that it tried
        raise StartError(f"{archive} is not a backup of a lab: it is no whole tar file") from error
    except (OSError, tarfile.TarError, ValueError, TypeError) as error:
        raise StartError(f"{archive} is not a backup of a lab: {error}") from error
    for name, wanted in manifest.files.items():
        if not (folder / name).is_file() or sha256(folder / name) != wanted:
            raise StartError(f"{archive} is damaged: {name} is not what was copied")
    return manifest


def _check(settings: Settings, manifest: Manifest, folder: Path, archive: Path) -> None:
    if manifest.format != FORMAT:
        raise StartError(f"{archive} has format {manifest.format}; this miglab reads {FORMAT}")
    if manifest.lab != settings.lab_id:
        raise StartError(
            f'{archive} is of the lab "{manifest.lab}", and lab.name here is "{settings.lab_id}"'
        )
    files = (*databases(settings), *plain_files(settings))
    if unknown := manifest.files.keys() - {str(f.relative_to(settings.state)) for f in files}:
        raise StartError(f"{archive} has what is no part of a backup: {', '.join(unknown)}")
    try:
        inspect(folder / settings.ledger.name)
    except LedgerError as error:
        raise StartError(str(error)) from error


def _exchange(settings: Settings, manifest: Manifest, unpacked: Path, aside: Path) -> None:
    """Move the old aside, then the new in.  The proxy's token may lie on a volume of its own."""
    aside.mkdir(mode=0o700)
    for name in manifest.files:
        for old in (settings.state / f"{name}{end}" for end in ("", *BESIDE)):
            if old.exists():
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(old, aside / old.relative_to(settings.state))
    for name in manifest.files:
        new = settings.state / name
        new.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (unpacked / name).chmod(0o600)
        shutil.move(unpacked / name, new)
    _sync(settings.state)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget_engine(ledger: Path) -> None:
    """In a ledger that knows one: not in one from before that, nor where there is none (Slurm)."""
    if not ledger.exists():
        return
    with closing(sqlite3.connect(ledger)) as connection, connection:
        known = "SELECT 1 FROM sqlite_master WHERE name = 'identity'"
        if connection.execute(known).fetchone():
            connection.execute("UPDATE identity SET engine = ''")


def _live_leases(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    query = "SELECT count(*) FROM leases WHERE state NOT IN ('released', 'expired')"
    with closing(sqlite3.connect(ledger)) as connection:
        return int(connection.execute(query).fetchone()[0])

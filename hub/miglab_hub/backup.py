"""A copy of what the lab must not lose, ledger, hub database and secrets; and how it comes back.

Both databases are copied as they were at one moment, while the lab runs or not.  Homes are not
part of it, nor is lab.toml: they are the operator's to copy.

A backup is put back only while the lab stands still; what was there is moved aside, not deleted.
Whatever has started since the backup stays as it is: the ledger that comes back does not know it,
so the pool leaves it alone and shows it.
"""

import hashlib
import io
import json
import os
import shutil
import socket
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.own_file import BESIDE, accept
from miglab_pool.ledger.tables import LedgerError, LedgerTooOld, check_file
from miglab_pool.state.lock import AlreadyRunning, LabLock, LedgerLock, PoolLock

MANIFEST = "manifest.json"
FORMAT = 1
BUSY_S = 20.0  # how long the lab's own writes may hold up the moment of the copy
HUB_ANSWERS_S = 2.0
RESTORING = "restoring-"  # begins the name of the folder that a restore works in


@dataclass(frozen=True)
class Manifest:
    """The description that a backup carries.

    Attributes:
        format: of this archive.
        lab: the lab's name.
        made_at: the moment that both databases are copied from, ISO 8601.
        ledger_version: of the ledger's tables; None if there was no ledger.
        files: SHA-256 of each file, by its path below the state folder.
    """

    format: int
    lab: str
    made_at: str
    ledger_version: int | None
    files: dict[str, str]


def databases(settings: Settings) -> list[Path]:
    """Return the databases that must be copied at the same moment."""
    return [settings.ledger, settings.hub_database, *settings.further_databases]


def plain_files(settings: Settings) -> list[Path]:
    """Return the files to copy: secrets, passwords, the cookie's key and names of homes."""
    return [
        settings.pool_secret,
        settings.service_token,
        settings.proxy_token,
        settings.passwords,
        settings.cookie_secret,
        settings.home_names,
    ]


def make_backup(settings: Settings, target: Path) -> Manifest:
    """Write a backup; the file appears whole or not at all, and only its owner may read it.

    Raises:
        StartError: there is nothing to copy, the target exists, or a database cannot be read.
    """
    if target.exists():
        raise StartError(f"{target} exists: name another file, or remove it first")
    if not target.parent.is_dir():
        raise StartError(f"{target.parent} is no folder: name a file in one that exists")
    present = [file for file in databases(settings) if file.exists()]
    if not present:
        raise StartError(f"nothing to copy: {settings.state} has no ledger and no hub database")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".miglab-backup-") as folder:
            made_at = _copy_databases(present, Path(folder))
            copies = {file.name: Path(folder, file.name) for file in present}
            for file in filter(Path.exists, plain_files(settings)):
                name = str(file.relative_to(settings.state))
                copies[name] = Path(folder, f"plain-{len(copies)}")
                shutil.copy(file, copies[name])
            version = check_file(settings.ledger)
            sums = {name: _sha256(file) for name, file in copies.items()}
            manifest = Manifest(FORMAT, settings.lab_id, made_at, version, sums)
            _pack(copies, manifest, Path(folder, "archive"))
            Path(folder, "archive").replace(target)
    except (OSError, sqlite3.Error, LedgerError) as error:
        raise StartError(f"no backup was made: {error}") from error
    return manifest


def backup_name(settings: Settings, purpose: str = "") -> str:
    """Return a file name for a backup made now."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return "-".join(filter(None, (settings.lab_id, purpose, moment))) + ".tar"


def _copy_databases(files: Sequence[Path], folder: Path) -> str:
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(_open(file))) for file in files]
        with _writes_held_up(files):
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
def _writes_held_up(files: Sequence[Path]) -> Iterator[None]:
    """Lock the databases against writes for the time of the block."""
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


def _sha256(file: Path) -> str:
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


@dataclass(frozen=True)
class RestoreResult:
    """The result of a restore.

    Attributes:
        manifest: of the backup.
        aside: where what was there lies now.
        leases: how many leases are live in the ledger that came back.
    """

    manifest: Manifest
    aside: Path
    leases: int


def restore_backup(settings: Settings, archive: Path, *, new_host: bool = False) -> RestoreResult:
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
    with lab_at_rest(settings):
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        for folder in _unfinished_restores(settings):
            shutil.rmtree(folder)  # what that one has moved aside lies in its `before-restore`
        unpacked = settings.state / f"{RESTORING}{moment}"
        unpacked.mkdir(mode=0o700)
        try:
            manifest = _unpack(archive, unpacked)
            _check(settings, manifest, unpacked, archive)
            leases = _prepare_ledger(unpacked / settings.ledger.name, new_host=new_host)
            aside = settings.state / f"before-restore-{moment}"
            _move_into_place(settings, manifest, unpacked, aside)
            if settings.ledger.exists():
                accept(settings.ledger)
        finally:
            shutil.rmtree(unpacked)
    return RestoreResult(manifest, aside, leases)


def check_restore_ended(settings: Settings) -> None:
    """Refuse to start on what a restore has half put in place.

    Raises:
        StartError: a restore was interrupted.
    """
    if folders := _unfinished_restores(settings):
        raise StartError(
            f"a restore was interrupted, as {folders[0]} shows: some files may be the backup's and "
            "others not. Run `miglab restore FILE` again, which does all of it"
        )


def _unfinished_restores(settings: Settings) -> list[Path]:
    return sorted(settings.state.glob(f"{RESTORING}*"))


@contextmanager
def lab_at_rest(settings: Settings) -> Iterator[None]:
    """Hold the locks of lab and pool, and check that no hub answers; servers may run on.

    Raises:
        StartError: pool or hub runs.
    """
    settings.make_private_folder()
    with ExitStack() as locks:
        try:
            locks.enter_context(LabLock(settings.lab_lock))
            locks.enter_context(PoolLock(settings.pool_lock))
            if settings.ledger.exists():
                locks.enter_context(LedgerLock(settings.ledger))
        except AlreadyRunning as error:
            raise StartError(f"the lab runs: stop it first. {error}") from error
        hub_address = (settings.hub_name, settings.hub_port)
        with suppress(OSError), socket.create_connection(hub_address, HUB_ANSWERS_S):
            raise StartError(
                f"the hub runs: something answers at {settings.hub_name}:{settings.hub_port}; "
                "stop it first"
            )
        yield


def _extract(packed: tarfile.TarFile, folder: Path) -> None:
    """Extract regular files below the folder, and refuse everything else.

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
    for name, checksum in manifest.files.items():
        if not (folder / name).is_file() or _sha256(folder / name) != checksum:
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
        check_file(folder / settings.ledger.name)
    except LedgerTooOld as error:  # its own way on, to begin anew, is not meant for a restore
        raise StartError(
            f"{archive} is a backup by a miglab from before 0.1.0, the first release, and no "
            "release can read its ledger. Nothing was changed; choose a later backup"
        ) from error
    except LedgerError as error:
        raise StartError(str(error)) from error


def _move_into_place(settings: Settings, manifest: Manifest, unpacked: Path, aside: Path) -> None:
    """Move the old files aside and the new ones in, across volumes if need be."""
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
    descriptor = os.open(settings.state, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _prepare_ledger(ledger: Path, *, new_host: bool) -> int:
    """Return the number of live leases in the restored ledger; 0 without one (Slurm)."""
    if not ledger.exists():
        return 0
    query = "SELECT count(*) FROM leases WHERE state NOT IN ('released', 'expired')"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        if new_host:
            connection.execute("UPDATE identity SET engine = ''")
        return int(connection.execute(query).fetchone()[0])

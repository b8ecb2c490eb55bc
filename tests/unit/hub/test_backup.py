"""One copy of ledger, hub database and secrets, as of one moment; and back again."""

import hashlib
import json
import os
import shutil
import socket
import sqlite3
import tarfile
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miglab_hub import cli
from miglab_hub.backup import MANIFEST, make_backup, restore_backup
from miglab_hub.errors import StartError
from miglab_hub.service.__main__ import _keep_backup
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.tables import VERSION
from miglab_pool.state.lock import LabLock, PoolLock
from miglab_slurm.submissions import Stay, Submissions


def people(database: Path) -> list[str]:
    """Who is in a hub's database."""
    with closing(sqlite3.connect(database)) as hub:
        return [name for (name,) in hub.execute("SELECT name FROM users ORDER BY name")]


def test_all_of_it_comes_back(used: Settings, tmp_path: Path) -> None:
    """What changed since is gone from its place, lies aside, and the rest is as it was."""
    archive = tmp_path / "copy.tar"
    backup = make_backup(used, archive)
    assert archive.stat().st_mode & 0o777 == 0o600
    before = {
        name: (used.state / name).read_bytes() for name in backup.files if "sqlite" not in name
    }
    with closing(sqlite3.connect(used.hub_database)) as hub:
        hub.execute("UPDATE users SET name = 'cy' WHERE name = 'ada'")
        hub.commit()
        used.pool_secret.write_text("another")
        restored = restore_backup(used, archive)  # cy may still lie in a log beside the database
    assert people(used.hub_database) == ["ada", "bob"]
    assert {name: (used.state / name).read_bytes() for name in before} == before
    assert (restored.aside / "pool.secret").read_text() == "another"
    assert people(restored.aside / used.hub_database.name) == ["bob", "cy"]
    assert not list(used.state.glob("restoring-*"))
    Ledger(used.ledger).close()


@pytest.mark.usefixtures("open_umask")
def test_on_a_new_host_nobody_else_reads_what_is_restored(used: Settings, tmp_path: Path) -> None:
    """Before the lab has ever started there, and whatever the operator's umask is."""
    archive = tmp_path / "copy.tar"
    make_backup(used, archive)
    shutil.rmtree(used.state)
    restore_backup(used, archive)
    lab_files = {used.state, *used.state.rglob("*")}
    identity = used.ledger.with_suffix(".id")
    assert lab_files > {used.ledger, used.hub_database, used.pool_secret, identity}
    assert {path for path in lab_files if path.stat().st_mode & 0o077} == set()


def test_both_databases_are_of_one_moment(used: Settings, tmp_path: Path) -> None:
    """While each number is written to the ledger and then to the hub, no copy is ahead."""
    over = threading.Event()
    is_writing = threading.Event()
    for file in (used.ledger, used.hub_database):
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE ticks (n INTEGER)")

    def write() -> None:
        with (
            closing(sqlite3.connect(used.ledger, timeout=30)) as first,
            closing(sqlite3.connect(used.hub_database, timeout=30)) as then,
        ):
            for number in count():
                for database in (first, then):
                    database.execute("INSERT INTO ticks VALUES (?)", (number,))
                    database.commit()
                is_writing.set()
                if over.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    is_writing.wait()
    try:
        for place in range(5):
            make_backup(used, tmp_path / f"{place}.tar")
    finally:
        over.set()
        writer.join()
    for place in range(5):
        with tarfile.open(tmp_path / f"{place}.tar") as archive:
            archive.extractall(tmp_path / str(place), filter="data")
        ledger, hub = (
            ticks(tmp_path / str(place) / file.name) for file in (used.ledger, used.hub_database)
        )
        assert ledger - hub in (0, 1)


def ticks(file: Path) -> int:
    """How many numbers a copy has."""
    with closing(sqlite3.connect(file)) as copy:
        written_numbers: int = copy.execute("SELECT count(*) FROM ticks").fetchone()[0]
        return written_numbers


def test_nothing_is_restored_while_the_lab_runs(used: Settings, tmp_path: Path) -> None:
    """Neither beside a pool nor beside a hub."""
    archive = tmp_path / "copy.tar"
    make_backup(used, archive)
    for lock in (PoolLock(used.pool_lock), LabLock(used.lab_lock)):
        with lock, pytest.raises(StartError, match="the lab runs"):
            restore_backup(used, archive)
    with (
        socket.create_server(("127.0.0.1", used.hub_port)),
        pytest.raises(StartError, match="the hub runs"),
    ):
        restore_backup(used, archive)
    assert not list(used.state.glob("before-restore-*"))


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "of another lab", "with a stranger", "upwards"]
)
def test_what_is_not_a_whole_backup_changes_nothing(
    used: Settings, tmp_path: Path, damage: str
) -> None:
    """Each is refused before anything is moved."""
    archive = tmp_path / "copy.tar"
    make_backup(used, archive)
    spoil(archive, tmp_path / "spoilt", damage)
    with pytest.raises(StartError, match=r"not a backup|damaged|of the lab|no part of"):
        restore_backup(used, archive)
    assert people(used.hub_database) == ["ada", "bob"]
    assert not list(used.state.glob("before-restore-*"))


def test_what_is_no_file_or_no_backup_is_said_in_a_sentence(used: Settings, tmp_path: Path) -> None:
    """Neither tarfile's list of compressions nor an errno."""
    with pytest.raises(StartError, match=r"there is no file .*: name one"):
        restore_backup(used, tmp_path / "nowhere.tar")
    with pytest.raises(StartError, match=r"it is no whole tar file$"):
        restore_backup(used, used.file)
    with pytest.raises(StartError, match="is no folder"):
        make_backup(used, tmp_path / "nowhere" / "copy.tar")


def spoil(archive: Path, folder: Path, damage: str) -> None:
    """Make a backup one that cannot be used."""
    if damage == "cut":
        os.truncate(archive, 2000)
        return
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    manifest = json.loads((folder / MANIFEST).read_text())
    if damage == "changed":
        (folder / "pool.secret").write_text("another")
    elif damage == "of another lab":
        manifest["lab"] = "elsewhere"
    elif damage == "with a stranger":
        shutil.copy(folder / "pool.secret", folder / "authorized_keys")
        manifest["files"]["authorized_keys"] = manifest["files"]["pool.secret"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, "")
        if damage == "upwards":
            packed.add(folder / "pool.secret", "../pool.secret")


def test_before_an_upgrade_all_of_it_is_kept(
    used: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the ledger; and only where there is something to upgrade."""
    _keep_backup(used, VERSION)
    assert not used.backups.exists()
    with closing(sqlite3.connect(used.ledger)) as ledger:
        ledger.execute("UPDATE schema_version SET version = ?", (VERSION - 1,))
        ledger.commit()
    _keep_backup(used, VERSION - 1)
    (archive_kept,) = used.backups.iterdir()
    assert f"before-tables-{VERSION}" in archive_kept.name
    with tarfile.open(archive_kept) as archive:
        assert {"ledger.sqlite", "jupyterhub.sqlite", "pool.secret"} <= set(archive.getnames())


def test_a_backup_from_before_the_first_release_is_refused(used: Settings, tmp_path: Path) -> None:
    """The lab keeps the ledger that it has, and is not told to begin anew."""
    archive = tmp_path / "copy.tar"
    make_backup(used, archive)
    folder = tmp_path / "unpacked"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        ledger.execute("ALTER TABLE schema_version RENAME TO alembic_version")
    manifest = json.loads((folder / MANIFEST).read_text())
    content = (folder / "ledger.sqlite").read_bytes()
    manifest["files"]["ledger.sqlite"] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, "")
    with pytest.raises(StartError, match=r"before 0\.1\.0.*choose a later backup$"):
        restore_backup(used, archive)
    Ledger(used.ledger).close()
    assert not list(used.state.glob("before-restore-*"))


def test_the_commands_say_what_they_did(used: Settings, tmp_path: Path) -> None:
    """`miglab backup` and `miglab restore`."""
    config = ["--config", str(used.file)]
    archive = str(tmp_path / "copy.tar")
    backup = CliRunner().invoke(cli.app, ["backup", archive, *config])
    assert backup.exit_code == 0 and "jupyterhub.sqlite" in backup.output
    again = CliRunner().invoke(cli.app, ["backup", archive, *config])
    assert isinstance(again.exception, StartError) and "exists" in str(again.exception)
    restored = CliRunner().invoke(cli.app, ["restore", archive, *config])
    assert (
        restored.exit_code == 0
        and "left alone" in restored.output
        and "live leases" in restored.output
    )


def test_on_slurm_the_record_of_usage_is_kept_and_there_is_no_engine(
    used: Settings, tmp_path: Path
) -> None:
    """A Slurm lab has no ledger that could forget one."""
    used.ledger.unlink()
    stay = Stay(1, "ada", "", "ml", "1g.5gb", "gpu:1g.5gb:1", 1.0, 2.0)
    Submissions(used.slurm_jobs, used.lab_id).note_stay(stay)
    make_backup(used, tmp_path / "copy.tar")
    used.slurm_jobs.unlink()
    restore_backup(used, tmp_path / "copy.tar", new_host=True)
    assert Submissions(used.slurm_jobs, used.lab_id).stays() == [stay]


def test_on_a_new_host_the_engine_is_forgotten(used: Settings, tmp_path: Path) -> None:
    """Only where it is said: its containers are gone for good."""
    with closing(Ledger(used.ledger)) as ledger:
        ledger.keep_engine(1.0, "the first")
    make_backup(used, tmp_path / "copy.tar")
    restore_backup(used, tmp_path / "copy.tar")
    assert Ledger(used.ledger).engine == "the first"
    restore_backup(used, tmp_path / "copy.tar", new_host=True)
    assert Ledger(used.ledger).engine == ""

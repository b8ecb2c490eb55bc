"""A lab starts with its own ledger or not at all, and no second pool uses it by another path."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from miglab_hub import backup, cli
from miglab_hub.backup import make_backup, restore_backup
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import check_ledger
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.own_file import identity_file, identity_of
from miglab_pool.state.lock import LedgerLock


def empty_it(used: Settings) -> None:
    used.ledger.write_bytes(b"")


def lose_it(used: Settings) -> None:
    used.ledger.unlink()


def put_another_labs(used: Settings) -> None:
    Ledger(used.state / "other" / "ledger.sqlite").close()
    shutil.copy(used.state / "other" / "ledger.sqlite", used.ledger)


def link_to_another_labs(used: Settings) -> None:
    Ledger(used.state / "other" / "ledger.sqlite").close()
    used.ledger.unlink()
    identity_file(used.ledger).unlink()
    used.ledger.symlink_to(used.state / "other" / "ledger.sqlite")


def link_to_nowhere(used: Settings) -> None:
    used.ledger.unlink()
    identity_file(used.ledger).unlink()
    used.ledger.symlink_to("/not-mounted/ledger.sqlite")


def write_it_by_a_newer_miglab(used: Settings) -> None:
    with closing(sqlite3.connect(used.ledger)) as ledger, ledger:
        ledger.execute("UPDATE schema_version SET version = 9999")


def write_it_before_the_first_release(used: Settings) -> None:
    with closing(sqlite3.connect(used.ledger)) as ledger, ledger:
        ledger.execute("ALTER TABLE schema_version RENAME TO alembic_version")


WRONG: dict[str, tuple[Callable[[Settings], None], str]] = {
    "of 0 bytes": (empty_it, "is empty"),
    "missing": (lose_it, "is not there"),
    "another lab's": (put_another_labs, "another identity"),
    "a link to another lab's": (link_to_another_labs, "no identity is noted"),
    "a link to nowhere": (link_to_nowhere, "is not there"),
    "a newer miglab's": (write_it_by_a_newer_miglab, "newer miglab"),
    "from before 0.1.0": (write_it_before_the_first_release, "miglab ledger begin"),
}


def state_of(used: Settings) -> dict[str, bytes]:
    """The content of every file but locks, logs, and what SQLite keeps beside a database."""
    passing = (".lock", ".log", "-shm", "-wal")
    files = [file for file in used.state.rglob("*") if not file.name.endswith(passing)]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_this_labs_ledger_starts_nothing(used: Settings, name: str) -> None:
    """The start is refused with words on what to do, and changes nothing."""
    spoil, message = WRONG[name]
    spoil(used)
    before = state_of(used)
    with pytest.raises(StartError, match=message) as refusal:
        check_ledger(used)
    assert "Nothing was changed" in str(refusal.value)
    assert state_of(used) == before


def test_the_service_starts_on_no_other_ledger_either(used: Settings) -> None:
    """Where pool and hub are started apart from the launcher, the pool looks by itself."""
    empty_it(used)
    before = state_of(used)
    service = subprocess.run(
        [sys.executable, "-m", "miglab_hub.service", "--config", str(used.file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert service.returncode == 2 and "is empty" in service.stderr
    assert state_of(used).items() >= before.items()


def test_an_interrupted_restore_starts_nothing(
    used: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the files may be the backup's; the same command run again puts all in place."""
    archive = tmp_path / "copy.tar"
    make_backup(used, archive)
    child = os.fork()
    if not child:  # dies between two files, as by a power cut
        monkeypatch.setattr(backup.shutil, "move", die_after(3))
        restore_backup(used, archive)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with pytest.raises(StartError, match=r"interrupted.*miglab restore FILE"):
        check_ledger(used)
    restore_backup(used, archive)
    check_ledger(used)


def die_after(moves: int) -> Callable[[Path, Path], None]:
    count = iter(range(moves))
    move = shutil.move

    def move_or_die(source: Path, target: Path) -> None:
        if next(count, None) is None:
            os._exit(9)
        move(source, target)

    return move_or_die


def test_a_lab_begins_anew_by_a_named_act_alone(used: Settings) -> None:
    """`miglab ledger begin` moves all of the old one aside, and the next start makes a new one."""
    before = identity_of(used.ledger)
    empty_it(used)
    result = CliRunner().invoke(cli.app, ["ledger", "begin", "--config", str(used.file)])
    assert result.exit_code == 0 and "next start makes a new ledger" in result.output
    (aside,) = used.state.glob("before-begin-*")
    assert {file.name for file in aside.iterdir()} >= {"ledger.sqlite", "ledger.id"}
    check_ledger(used)
    Ledger(used.ledger).close()
    check_ledger(used)
    assert identity_of(used.ledger) != before


def test_a_ledger_that_was_put_there_by_hand_is_accepted_by_a_named_act(used: Settings) -> None:
    """`miglab ledger accept` takes a ledger's word for it once, and none that is no ledger."""
    put_another_labs(used)
    accept = ["ledger", "accept", "--config", str(used.file)]
    assert CliRunner().invoke(cli.app, accept).exit_code == 0
    check_ledger(used)
    empty_it(used)
    refused = CliRunner().invoke(cli.app, accept)
    assert isinstance(refused.exception, StartError) and "is empty" in str(refused.exception)


def test_a_restored_ledger_is_this_labs(used: Settings, tmp_path: Path) -> None:
    """A restore is a named act: what it puts in place needs no second one."""
    archive = tmp_path / "copy.tar"
    make_backup(used, archive)
    lose_it(used)
    identity_file(used.ledger).unlink()
    restore_backup(used, archive)
    check_ledger(used)


SECOND = """
import sys
from pathlib import Path
from miglab_pool.state.lock import AlreadyRunning, LedgerLock
try:
    LedgerLock(Path(sys.argv[1]))
except AlreadyRunning as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_one_ledger_by_two_paths_serves_one_pool(
    used: Settings, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """The lock is on the file: a second process meets it by a link too, and SQLite is not hurt."""
    other = tmp_path / "other.sqlite"
    link(used.ledger, other)

    def second() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", SECOND, str(other)]
        return subprocess.run(command, capture_output=True, text=True)

    with LedgerLock(used.ledger), closing(Ledger(used.ledger)) as ledger:
        refused = second()
        assert refused.returncode == 1
        assert "hard or symbolic link" in refused.stderr
        with ledger.write(1.0, durable=True) as tx:
            tx.pause("still mine", "pool", None)
    assert second().returncode == 0

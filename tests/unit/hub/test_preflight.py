"""What stops `./lab up` before anything is started: each is one message that says what to do."""

import os
import sqlite3
from pathlib import Path

import pytest

from miglab_bench.harness.ports import free_ports
from miglab_hub.errors import StartError
from miglab_hub.launch import preflight
from miglab_hub.launch.preflight import check_ledger, prepare
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.ledger.ledger import Ledger

DOMAINS = 'lab.subdomain_host = "https://lab.test"\n'
DOCKER = 'accept_risk.students_can_act_as_staff = true\nservers.spawner = "docker"\n'
LAB = '[courses.everyone]\nshapes = ["1g.5gb"]\n'


def settings_with(folder: Path, text: str = "") -> Settings:
    file = folder / "lab.toml"
    file.write_text(text + LAB)
    return load(file, {})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = settings_with(tmp_path)
    settings.ledger.parent.mkdir(parents=True)
    return settings


def test_two_labs_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one lab is told, port and network, is not the next one's: nothing is left behind."""
    monkeypatch.setattr(preflight, "students_bridge", lambda _settings: "127.0.0.2")
    (tmp_path / "lab.toml").write_text(DOCKER + LAB)
    before, port = dict(os.environ), free_ports()
    settings = prepare(tmp_path / "lab.toml", port)
    assert (settings.lab.port, settings.bridge) == (port, "127.0.0.2")
    assert dict(os.environ) == before


def test_a_sound_ledger_and_none_at_all_are_fine(settings: Settings) -> None:
    """The first start finds no ledger, and later ones find a good one."""
    check_ledger(settings)
    assert not settings.ledger.exists()
    Ledger(settings.ledger).close()
    check_ledger(settings)


def test_a_damaged_ledger(settings: Settings) -> None:
    """A file that is no ledger is named."""
    settings.ledger.write_bytes(b"this is no ledger" * 100)
    with pytest.raises(StartError, match="cannot be read as a ledger"):
        check_ledger(settings)


def test_a_ledger_of_a_newer_miglab(settings: Settings) -> None:
    """What a newer miglab wrote is named with its version."""
    Ledger(settings.ledger).close()
    with sqlite3.connect(settings.ledger) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StartError, match="9999"):
        check_ledger(settings)


def test_a_locked_ledger(settings: Settings) -> None:
    """A ledger that another program writes to is named, with what to end."""
    Ledger(settings.ledger).close()
    other = sqlite3.connect(settings.ledger, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StartError, match="locked by another program"):
        check_ledger(settings)
    other.close()

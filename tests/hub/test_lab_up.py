"""`./lab up` as a process: it says ready, carries a student, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.students import served, signed_in

from miglab_bench.harness.processes import free_ports
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub.cli import main
from miglab_hub.launch import up as launch
from miglab_hub.service.gpus import make_simulated
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_PORT, load
from miglab_pool.state.lock import PoolLock

COURSE = '[courses.everyone]\nshapes = ["1g.5gb", "cpu"]\n'
UP_S = 120


def lab_toml(folder: Path, text: str = "") -> Path:
    file = folder / "lab.toml"
    file.write_text(text + COURSE, encoding="utf-8")
    return file


Refusal = Callable[..., str]
VISION = '[courses.vision]\ntitle = "Computer vision"\nshapes = ["1g.5gb"]\nroster = "vision.csv"\n'


def apply_a_roster(lab: TemporaryLab) -> None:
    """Who is added is offered the course without a restart; who was removed is not."""
    (lab.settings.folder / "vision.csv").write_text("user\ndora\n")
    command = [sys.executable, "-m", "miglab_hub.cli", "roster", "apply"]
    file = ["--config", str(lab.settings.file)]
    process = subprocess.run([*command, *file], capture_output=True, text=True, timeout=UP_S)
    assert process.stdout == "vision: 1 added: dora; 1 removed: bob\n", process.stderr
    again = subprocess.run([*command, *file], capture_output=True, text=True, timeout=UP_S)
    assert again.stdout == "every group is as its roster says\n", again.stderr
    for name, is_in in (("dora", True), ("bob", False)):
        student = signed_in(lab, name)
        assert ("Computer vision" in student.page(f"/hub/spawn/{name}")) is is_in
        student.close()


def modes_in(lab: TemporaryLab, student: Student) -> None:
    """All that the lab has written is its own, but the notebooks, and the GPUs' locks, which labs
    of several users share; a student's files are as anywhere."""
    settings = lab.settings
    folders = {settings.notebooks, *settings.homes.iterdir()}
    lab_files = {
        path
        for path in settings.state.rglob("*")
        if folders.isdisjoint((path, *path.parents)) or path.parent == settings.homes
    }
    assert lab_files > {settings.ledger, settings.hub_database, *settings.logs.iterdir()}
    readable = {
        path
        for path in (settings.state, *lab_files)
        if path.lstat().st_mode & 0o077 and not path.match("gpus/miglab-GPU-*.lock")
    }
    assert readable == set()
    student.run_cell("open('mine', 'w').close()")
    (own_file,) = settings.homes.glob("*/mine")
    assert own_file.stat().st_mode & 0o777 == 0o644


def test_a_lab_from_ready_to_its_end(log_folder: Path) -> None:
    """A student gets a slice, a killed pool is started again, SIGTERM ends every process."""
    with temporary_lab(docker=False, more=VISION, files={"vision.csv": "user\nbob\n"}) as lab:
        apply_a_roster(lab)
        student = served(lab, "ada", "1g.5gb")
        modes_in(lab, student)
        before = lab.leases()["ada"].uuids
        lab.kill("pool")
        assert lab.leases()["ada"].uuids == before
        family = psutil.Process(lab.process.pid).children(recursive=True)
        assert lab.servers()
        student.close()
    assert [process for process in family if process.is_running()] == []
    assert lab.process.returncode == 0


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """What `./lab up` says when it does not start, in this process; status 2 and one message."""
    for name in (ENV_CONFIG, ENV_PORT, ENV_BRIDGE):  # set, so that they are restored
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(launch, "Siblings", None)  # what is not refused fails

    def run(file: Path, port: int | None = None) -> str:
        arguments = ["up", "--config", str(file), "--port", str(port or free_ports())]
        monkeypatch.setattr(sys, "argv", ["miglab", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert not (file.parent / ".lab" / "logs").exists(), "nothing is started"
        return capsys.readouterr().err

    return run


def test_a_port_in_use_is_one_message(tmp_path: Path, refusal: Refusal) -> None:
    """A taken port ends the start, says which, and starts nothing."""
    port = free_ports()
    with socket.create_server(("127.0.0.1", port + 3)):
        assert f"port {port + 3}" in refusal(lab_toml(tmp_path), port)


NO_DOCKER = """
servers.spawner = "docker"
accept_risk.students_can_act_as_staff = true
"""


def test_no_docker_is_one_message(tmp_path: Path) -> None:
    """As a process, too: exit status 2 and no traceback."""
    nowhere = f"unix://{tmp_path}/none.sock"
    command = [sys.executable, "-m", "miglab_hub.cli", "up", "--port", str(free_ports())]
    ended = subprocess.run(
        [*command, "--config", str(lab_toml(tmp_path, NO_DOCKER))],
        env={**os.environ, "DOCKER_HOST": nowhere},
        capture_output=True,
        text=True,
        timeout=UP_S,
    )
    assert ended.returncode == 2
    assert "no Docker engine answers" in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / ".lab" / "logs").exists()


def test_bad_settings_are_one_message(tmp_path: Path, refusal: Refusal) -> None:
    """Whatever test_settings finds wrong, nothing is started."""
    assert "unknown key pool.queue" in refusal(lab_toml(tmp_path, "[pool]\nqueue = 1\n"))


@pytest.mark.parametrize("name", ["ledger.sqlite", "passwords", "gpus/state.json"])
def test_a_damaged_file_is_one_message(tmp_path: Path, refusal: Refusal, name: str) -> None:
    """A file of the lab that makes no sense stops the start, and stays as it is."""
    damaged = tmp_path / ".lab" / name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"this is no such file" * 100)
    assert name in refusal(lab_toml(tmp_path))
    assert damaged.read_bytes() == b"this is no such file" * 100


def test_a_second_lab_is_one_message(tmp_path: Path, refusal: Refusal) -> None:
    """On the state folder of a running lab no part of a second one is started."""
    with PoolLock(tmp_path / ".lab" / "pool.lock"):
        message = refusal(lab_toml(tmp_path))
    assert "already holds" in message and message.count("\n") == 1


def test_ctrl_c_while_starting_ends_everything(tmp_path: Path) -> None:
    """An interrupt before the lab is ready leaves no process either."""
    arguments = ["up", "--config", str(lab_toml(tmp_path)), "--port", str(free_ports())]
    process = subprocess.Popen(
        [sys.executable, "-m", "miglab_hub.cli", *arguments], stderr=subprocess.DEVNULL
    )
    family: list[psutil.Process] = []

    def has_started() -> bool:
        family[:] = psutil.Process(process.pid).children(recursive=True)
        return len(family) >= 3

    wait_for(has_started, "the three parts")
    process.send_signal(signal.SIGINT)
    assert process.wait(UP_S) == 0
    assert [process for process in family if process.is_running()] == []


def test_other_simulated_gpus_than_the_lab_has_are_refused(
    tmp_path: Path, refusal: Refusal
) -> None:
    """A lab that was begun with one model is not silently run with another."""
    settings = load(lab_toml(tmp_path), {})
    settings.state.mkdir()
    make_simulated(settings)
    assert "begin anew" in refusal(lab_toml(tmp_path, '[gpus]\nsimulate = ["A30"]\n'))

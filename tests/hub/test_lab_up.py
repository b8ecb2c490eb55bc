"""`./lab up` as a process: it says ready, carries a student, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import free_ports, temporary_lab
from miglab_hub.service.gpus import make_simulated
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_PORT, load
from miglab_pool.state.lock import PoolLock

COURSE = '[courses.everyone]\nshapes = ["1g.5gb", "cpu"]\n'
UP_S = 120


def lab_toml(folder: Path, text: str = "") -> Path:
    file = folder / "lab.toml"
    file.write_text(text + COURSE, encoding="utf-8")
    return file


def up(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""
    command = [sys.executable, "-m", "miglab_hub.cli", "up", "--config", str(file), *words]
    ours = {ENV_CONFIG, ENV_PORT, ENV_BRIDGE}
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(command, capture_output=True, text=True, timeout=UP_S, env=environ)


def test_a_student_works_and_the_end_leaves_no_process(log_folder: Path) -> None:
    """From ready over login and a server with a slice to SIGTERM, which ends every process."""
    with temporary_lab(docker=False) as lab:
        student = Student(lab.settings.public_url, "ada", lab.password)
        student.sign_in()
        student.ask("1g.5gb")
        student.wait_until_ready()
        family = psutil.Process(lab.process.pid).children(recursive=True)
        assert lab.servers()
        student.close()
    assert [process for process in family if process.is_running()] == []
    assert lab.process.returncode == 0


def test_a_part_that_dies_is_started_again(log_folder: Path) -> None:
    """After a SIGKILL to the pool another one answers, with the same ledger."""
    with temporary_lab(docker=False) as lab:
        before = lab.snapshot().gpus
        lab.kill("pool")
        assert [gpu.uuid for gpu in lab.snapshot().gpus] == [gpu.uuid for gpu in before]


def test_a_port_in_use_is_one_message(tmp_path: Path) -> None:
    """A taken port ends the start with exit status 2, says which, and starts nothing."""
    port = free_ports()
    with socket.create_server(("127.0.0.1", port + 3)):
        ended = up(lab_toml(tmp_path), "--port", str(port))
    assert ended.returncode == 2
    assert f"port {port + 3}" in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / ".lab").exists()


BAD = {
    "unknown key": ("[pool]\nqueue = 1\n", "unknown key pool.queue"),
    "no such shape": ('[courses.ml]\nshapes = ["1g.6gb"]\n', "courses.ml.shapes"),
    "limits of no such shape": ('[limits."9g.1gb"]\ncpus = 1\n', 'limits."9g.1gb"'),
    "no such model": ('[gpus]\nmodel = "B300"\n', "B300"),
    "no such authenticator": (
        'authentication.class = "oauthen.Nobody"\nlab.students_can_act_as_staff = true\n',
        "authentication.class",
    ),
    "no Docker": (
        'students = {spawner = "docker", docker_url = "unix:///nonexistent/docker.sock"}\n'
        "lab.students_can_act_as_staff = true\n",
        "no Docker engine answers",
    ),
}


@pytest.mark.parametrize("text, words", BAD.values(), ids=BAD.keys())
def test_what_cannot_start_is_one_message(tmp_path: Path, text: str, words: str) -> None:
    """Each mistake is one clear message and exit status 2, never a traceback."""
    ended = up(lab_toml(tmp_path, text), "--port", str(free_ports()))
    assert ended.returncode == 2, ended.stderr
    assert words in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / ".lab" / "logs").exists()


@pytest.mark.parametrize("name", ["ledger.sqlite", "passwords", "gpus/state.json"])
def test_a_damaged_file_is_one_message(tmp_path: Path, name: str) -> None:
    """A file of the lab that makes no sense stops the start with status 2, and stays as it is."""
    damaged = tmp_path / ".lab" / name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"this is no such file" * 100)
    ended = up(lab_toml(tmp_path), "--port", str(free_ports()))
    assert ended.returncode == 2
    assert name in ended.stderr and "Traceback" not in ended.stderr
    assert damaged.read_bytes() == b"this is no such file" * 100
    assert not (tmp_path / ".lab" / "logs").exists()


def test_a_second_lab_is_one_message(tmp_path: Path) -> None:
    """On the state folder of a running lab no part of a second one is started."""
    with PoolLock(tmp_path / ".lab" / "pool.lock"):
        ended = up(lab_toml(tmp_path), "--port", str(free_ports()))
    assert ended.returncode == 2
    assert "already holds" in ended.stderr and ended.stderr.count("\n") == 1
    assert not (tmp_path / ".lab" / "logs").exists()


def test_ctrl_c_while_starting_ends_everything(tmp_path: Path) -> None:
    """An interrupt before the lab is ready leaves no process either."""
    words = ["up", "--config", str(lab_toml(tmp_path)), "--port", str(free_ports())]
    process = subprocess.Popen(
        [sys.executable, "-m", "miglab_hub.cli", *words], stderr=subprocess.DEVNULL
    )
    family: list[psutil.Process] = []

    def has_started() -> bool:
        family[:] = psutil.Process(process.pid).children(recursive=True)
        return len(family) >= 3

    wait_for(has_started, "the three parts")
    process.send_signal(signal.SIGINT)
    assert process.wait(UP_S) == 0
    assert [each for each in family if each.is_running()] == []


def test_other_simulated_gpus_than_the_lab_has_are_refused(tmp_path: Path) -> None:
    """A lab that was begun with one model is not silently run with another."""
    settings = load(lab_toml(tmp_path), {})
    settings.state.mkdir()
    make_simulated(settings)
    ended = up(lab_toml(tmp_path, '[gpus]\nmodel = "A30"\n'), "--port", str(free_ports()))
    assert ended.returncode == 2 and "begin anew" in ended.stderr

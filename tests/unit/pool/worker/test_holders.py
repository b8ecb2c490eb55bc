"""Holders: only a confirmed absence is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import requests
from docker.errors import NotFound

from miglab_api import holders as processes
from miglab_api.holders import (
    BadHolder,
    Liveness,
    boot_id,
    check_holder,
    kill_processes_of,
    process_holder,
    processes_of,
)
from miglab_pool.worker.holders import HostHolders, LabelledContainer

ID = "ab" * 32
HOLDER = f"container:{ID}"


class Engine:
    """An engine that answers what the test says."""

    def __init__(self, error: Exception | None = None, listed: Any = ()) -> None:
        self.error = error
        self.listed = listed
        self.calls: list[tuple[str, str, object]] = []
        self.filters: Any = None
        self.id = "the first"

    def _answers(self) -> None:
        if self.error:
            raise self.error

    def inspect_container(self, number: str) -> dict[str, str]:
        self._answers()
        return {"Id": number}

    def info(self) -> dict[str, str]:
        return {"ID": self.id}

    def containers(self, *, all: bool, filters: Any) -> Any:
        self._answers()
        assert all
        self.filters = filters
        return list(self.listed)

    def stop(self, number: str, timeout: int) -> None:
        self._answers()
        self.calls.append(("stop", number, timeout))

    def remove_container(self, number: str, *, force: bool) -> None:
        self._answers()
        self.calls.append(("remove", number, force))
        self.error = docker.errors.NotFound("no such container")


def holders(engine: Engine) -> HostHolders:
    return HostHolders("unix:///nowhere.sock", "lab1", client=engine)


@pytest.mark.parametrize(
    "error",
    [
        docker.errors.APIError("server error"),
        docker.errors.DockerException("no engine"),
        requests.ConnectionError("refused"),
        requests.ReadTimeout("slow"),
        OSError("broken pipe"),
    ],
)
def test_engine_error_is_unknown(error: Exception) -> None:
    """Whatever the engine answers but 404 is unknown: nothing is gone, missing, or removed."""
    engine = Engine(error)
    assert holders(engine).probe(HOLDER) is Liveness.UNKNOWN
    assert holders(engine).probably_gone([HOLDER]) == set()
    assert holders(engine).labelled_containers() is None


def test_unreachable_engine_is_unknown() -> None:
    """An engine that cannot be reached at all is unknown, also when it never answered.

    By TCP: docker-py leaves a Unix socket that it could not connect to the garbage collector,
    whose complaint then hits whichever test runs by then.
    """
    real = HostHolders("tcp://127.0.0.1:1", "lab1")
    assert real.probe(HOLDER) is Liveness.UNKNOWN
    assert real.labelled_containers() is None


def test_labelled_is_this_lab() -> None:
    """Only this lab's containers with a readable lease count."""
    engine = Engine(
        listed=[
            {"Id": ID, "Labels": {"miglab.lease": "7"}},
            {"Id": "x", "Labels": {"miglab.lease": "seven"}},
        ]
    )
    assert holders(engine).labelled_containers() == [LabelledContainer(HOLDER, 7)]
    assert "miglab.lab=lab1" in engine.filters["label"]


def test_a_container_is_stopped_before_it_is_removed() -> None:
    """As `docker stop`, so that JupyterLab can save; else only what does not run is removed."""
    engine = Engine()
    assert holders(engine).remove(HOLDER, force=False)
    assert engine.calls == [("remove", ID, False)]
    engine = Engine()
    assert holders(engine).end(HOLDER)
    assert engine.calls == [("stop", ID, 10), ("remove", ID, True)]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "container:",
        "container:ab",
        f"container:{ID[:-1]}G",
        "process:",
        "process:1,2",
        "process:-1,2,b",
        "process:1,2,",
        "process:１,2,b,c",
        "container:" + "a" * 1000,
        "pod:1",
        "container:" + "é" * 64,
        "process:1",
    ],
)
def test_unreadable_names(name: str) -> None:
    """A name that is none is refused, not guessed at."""
    with pytest.raises(BadHolder):
        check_holder(name)


def test_process_lives_and_ends() -> None:
    """A process is alive, gone as a zombie, and gone when it is reaped."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = process_holder(child.pid)
    assert HostHolders().probe(holder) is Liveness.ALIVE
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert HostHolders().probe(holder) is Liveness.GONE
    child.communicate()
    assert HostHolders().probably_gone([holder]) == {holder}


def test_reused_pid_is_gone() -> None:
    """The same pid with another start time, or of another boot, is another process."""
    pid, started, boot = process_holder(os.getpid()).removeprefix("process:").split(",")
    assert HostHolders().probe(f"process:{pid},{int(started) - 1},{boot}") is Liveness.GONE
    assert HostHolders().probe(f"process:{pid},{started},another-boot") is Liveness.GONE


def test_hidden_process_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that /proc hides but that can be signalled is unknown, not gone."""
    holder = process_holder(os.getpid())
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(boot_id())
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert HostHolders().probe(holder) is Liveness.UNKNOWN


def test_odd_process_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose name holds brackets and blanks does not confuse the reading."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b\n")
    (tmp_path / "7").mkdir()
    fields = ["S", *(str(n) for n in range(4, 22)), "999", "0"]
    (tmp_path / "7/stat").write_text("7 (a) Z (b) " + " ".join(fields))
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert process_holder(7) == "process:7,999,b"


def test_kinds() -> None:
    """Processes and containers are asked after together; without an engine these are unknown."""
    missing_process, missing_container = "process:1,2,b", f"container:{'cd' * 32}"
    both = holders(Engine(listed=[{"Id": ID}]))
    assert both.probe(HOLDER) is both.probe(process_holder(os.getpid())) is Liveness.ALIVE
    assert both.probably_gone([HOLDER, missing_process, missing_container]) == {
        missing_process,
        missing_container,
    }, "what is not listed"
    local = HostHolders()
    assert local.probe(HOLDER) is Liveness.UNKNOWN
    assert (
        local.probably_gone([HOLDER, missing_process]),
        local.labelled_containers(),
        local.engine(),
    ) == (
        {missing_process},
        [],
        "",
    )
    assert not local.remove(HOLDER, force=True)
    assert not local.end(HOLDER)


def test_another_engine_does_not_know() -> None:
    """Its 404, or the 404 of one that does not say who it is, frees nothing."""
    engine = Engine(docker.errors.NotFound("no such container"))
    host_holders = holders(engine)
    host_holders.expect("the first")
    assert host_holders.probe(HOLDER) is Liveness.GONE
    engine.id = "another"
    assert host_holders.probe(HOLDER) is Liveness.UNKNOWN
    assert not host_holders.remove(HOLDER, force=True)
    engine.id = ""
    assert host_holders.probe(HOLDER) is Liveness.UNKNOWN


@pytest.mark.parametrize("ignores", [False, True])
def test_a_process_is_asked_and_then_killed(ignores: bool) -> None:
    """SIGTERM first; whoever ignores it is killed the next time."""
    code = "import signal, sys; "
    code += "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if ignores else ""
    code += "print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        holder, holders = process_holder(process.pid), HostHolders()
        holders.end(holder)
        if ignores:
            assert holders.probe(holder) is Liveness.ALIVE
            holders.end(holder)
        process.wait(60)
        assert holders.probe(holder) is Liveness.GONE


def test_another_process_with_that_pid_is_left_alone() -> None:
    """A pid that was given again is another process."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        pid, started, boot = process_holder(process.pid).split(",")
        assert HostHolders().end(f"{pid},{int(started) - 1},{boot}")
        assert process.poll() is None


OTHER = "cd" * 32
WAITS = "read line"
HAS_A_CHILD = "sleep 600 & echo $!; wait; read line"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``/proc`` of the test's own."""
    monkeypatch.setattr(processes, "PROC", tmp_path)
    return tmp_path


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell that calls itself so."""
    started = []

    def start_named(name: str, code: str = WAITS) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [name, "-c", code, "-id", ID],
            executable="/bin/sh",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_named
    for process in started:
        process.kill()
        process.communicate()


def count_as(proc: Path, pid: int, container: str) -> None:
    """The process is the container's, and otherwise what it really is."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(f"0::/docker/{container}\n")
    for name in ("stat", "cmdline"):
        (proc / str(pid) / name).symlink_to(f"/proc/{pid}/{name}")


@pytest.mark.parametrize(
    ("cgroup", "state", "is_its"),
    [
        (f"0::/docker/{ID}\n", "S", True),
        (f"0::/system.slice/docker-{ID}.scope\n", "S", True),
        (f"0::/../{ID}\n", "S", True),  # seen from another container
        (f"12:pids:/docker/{ID}\n1:name=systemd:/docker/{ID}\n", "S", True),
        (f"0::/docker/{ID}\n", "Z", False),
        (f"0::/docker/{OTHER}\n", "S", False),
        ("0::/user.slice\n", "S", False),
        ("", "S", False),
    ],
)
def test_a_process_is_known_by_its_cgroup(
    cgroup: str, state: str, is_its: bool, proc: Path
) -> None:
    """Whoever draws the groups; not one that has ended."""
    for name in ("77", "78", "self"):  # 78 ended while it was looked at
        (proc / name).mkdir()
    (proc / "77/cgroup").write_text(cgroup)
    (proc / "77/stat").write_text(f"77 (a) b) {state} 1")
    assert processes_of(HOLDER) == ([77] if is_its else [])


@pytest.mark.parametrize("name", ["container:", "container:ab", "process:1,2,b", ""])
def test_no_name_stands_for_all(name: str) -> None:
    """An empty id would be part of every process's cgroup."""
    with pytest.raises(BadHolder):
        kill_processes_of(name)


def test_what_runs_of_a_container_that_the_engine_has_not_is_killed(
    start: Start, proc: Path
) -> None:
    """Before that the container is not gone; another's process is left alone."""
    its, other_process = start("cat"), start("cat")
    count_as(proc, its.pid, ID)
    count_as(proc, other_process.pid, OTHER)
    holders = HostHolders("unix:///none", "lab1", client=Engine(NotFound(ID)))
    assert holders.probe(HOLDER) is Liveness.FORGOTTEN
    assert holders.end(HOLDER)
    assert its.wait(60) < 0
    assert holders.probe(HOLDER) is Liveness.GONE
    assert other_process.poll() is None


@pytest.mark.parametrize(("name", "is_killed"), [("/usr/bin/containerd-shim", True), ("sh", False)])
def test_the_shim_that_waits_for_it_goes_too(
    name: str, is_killed: bool, start: Start, proc: Path
) -> None:
    """A parent that is no shim is left alone."""
    parent = start(name, HAS_A_CHILD)
    child = int(parent.stdout.readline())
    count_as(proc, child, ID)
    (proc / str(parent.pid)).mkdir()
    (proc / str(parent.pid) / "cmdline").symlink_to(f"/proc/{parent.pid}/cmdline")
    assert kill_processes_of(HOLDER)
    if is_killed:
        assert parent.wait(60) < 0
    else:
        assert parent.poll() is None


def test_what_may_not_be_killed_keeps_the_container_from_being_gone(
    start: Start, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lab need not be root."""

    def refused(*_: object) -> None:
        raise PermissionError

    its = start("cat")
    count_as(proc, its.pid, ID)
    monkeypatch.setattr(processes, "KILL_S", 0.0)
    monkeypatch.setattr(processes.signal, "pidfd_send_signal", refused)
    holders = HostHolders("unix:///none", "lab1", client=Engine(NotFound(ID)))
    assert not holders.remove(HOLDER, force=True)
    assert not holders.end(HOLDER)
    assert its.poll() is None

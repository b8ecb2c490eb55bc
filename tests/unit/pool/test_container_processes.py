"""What runs of a container, as the kernel tells it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.errors import NotFound

from miglab_api import holders as processes
from miglab_api.holders import BadHolder, Liveness, kill_processes_of, processes_of
from miglab_pool.worker.holders import HostHolders

from .test_holders import Engine

ID, OTHER = "ab" * 32, "cd" * 32
HOLDER = f"container:{ID}"
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

    def named(name: str, code: str = WAITS) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [name, "-c", code, "-id", ID],
            executable="/bin/sh",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield named
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
    its, another = start("cat"), start("cat")
    count_as(proc, its.pid, ID)
    count_as(proc, another.pid, OTHER)
    holders = HostHolders("unix:///none", "lab1", client=Engine(NotFound(ID)))
    assert holders.probe(HOLDER) is Liveness.FORGOTTEN
    assert holders.end(HOLDER)
    assert its.wait(60) < 0
    assert holders.probe(HOLDER) is Liveness.GONE
    assert another.poll() is None


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

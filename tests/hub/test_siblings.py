"""The launcher's processes, in a process of their own: whoever ends them ends all descendants."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

HEAD = """
import os, resource, signal, sys, time
from pathlib import Path
import psutil
from miglab_hub.launch import process_group as siblings
folder = Path(sys.argv[1])
SLEEPS = [sys.executable, "-c", "import signal, time; time.sleep(600)"]
"""
HALF_DEAD = """
import ctypes, signal, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
LAUNCHER = """
siblings.END_S = 0.2
command = [sys.executable, "-c", sys.argv[2]]
started = siblings.Siblings([siblings.Sibling("half-dead", command)], folder, print)
started.start()
child = psutil.Process(started.siblings[0].process.pid)
while child.status() != psutil.STATUS_ZOMBIE:
    time.sleep(0.01)
started.end()
print("left" if child.is_running() else "gone")
"""
FOREIGN = """
siblings.END_S, siblings.KILLS = 0.2, 4
names = ("of another user", "ours")
told = []
both = [siblings.Sibling(name, SLEEPS) for name in names]
started = siblings.Siblings(both, folder, told.append)
started.start()
foreign, ours = (psutil.Process(one.process.pid) for one in started.siblings)
send = psutil.Process.send_signal
def sent(process, number):
    if process.pid == foreign.pid:
        raise psutil.AccessDenied(process.pid)
    send(process, number)
psutil.Process.send_signal = sent
started.end()
print(f"still there: process {foreign.pid}" in told, foreign.is_running(), ours.is_running())
os.kill(foreign.pid, signal.SIGKILL)
"""
TELLER = """
one = siblings.Sibling("teller", [sys.executable, "-c", "print('of today')"])
told = siblings.Siblings([one], folder, print)
told.start()
one.process.wait()
print(told.tail(one))
"""


def launched(code: str, folder: Path, *arguments: str, status: int = 0) -> str:
    """What a launcher prints; its processes' logs lie in the folder."""
    command = [sys.executable, "-c", HEAD + code, str(folder), *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert process.returncode == status
    return process.stdout


def test_a_zombie_whose_threads_run_on_is_ended(tmp_path: Path) -> None:
    """A process without its first thread looks dead and is not: it is killed, then reaped."""
    printed = launched(LAUNCHER, tmp_path, HALF_DEAD)
    assert printed.split() == ["gone"]


def test_what_may_not_be_ended_is_named_and_keeps_no_other(tmp_path: Path) -> None:
    """A command that `sudo` runs: the lab's user may send it no signal."""
    printed = launched(FOREIGN, tmp_path)
    assert printed.split() == ["True", "True", "False"]


def test_the_end_of_a_log_is_of_the_last_start(tmp_path: Path) -> None:
    """What an earlier run wrote is not shown as the reason why this one ended."""
    (tmp_path / "teller.log").write_text("Traceback of yesterday\n", encoding="utf-8")
    printed = launched(TELLER, tmp_path)
    assert printed == "of today\n"


ROTATOR = """
siblings.LOG_BYTES = 1000
one = siblings.Sibling("talker", [sys.executable, "-uc", sys.argv[2]])
told = siblings.Siblings([one], folder, print)
told.start()
while not (folder / "talker.log.3").exists():
    told.watch()
told.end()
print(sorted(log.name for log in folder.iterdir()))
print(max(log.stat().st_size for log in folder.iterdir()) < 1_000_000)
"""
TALKER = "import time\nwhile True: print('x' * 99); time.sleep(0.01)"


def test_a_log_that_grows_is_put_aside(tmp_path: Path) -> None:
    """A process that logs without end fills no disk: so many old logs, each so long."""
    printed = launched(ROTATOR, tmp_path, TALKER)
    names, is_bounded = printed.splitlines()
    assert names == str(["talker.log", *(f"talker.log.{number}" for number in (1, 2, 3))])
    assert is_bounded == "True"


NO_ROOM = """
siblings.LOG_BYTES = 4500
one = siblings.Sibling("sleeper", SLEEPS)
log, clock = folder / "sleeper.log", iter(range(0, 9000, 100))
told = siblings.Siblings([one], folder, lambda line: print("said:", line), lambda: next(clock))
told.start()
log.write_text("x" * 5000)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
told.watch()
print([(found.name, found.stat().st_size) for found in folder.iterdir()])
one.process.kill()
one.process.wait()
log.unlink()
log.mkdir()  # no file can be opened here
told.watch()
print(one.process)
log.rmdir()
told.watch()
print(one.process.poll())
told.end()
"""


def test_a_disk_without_room_does_not_end_the_launcher(tmp_path: Path) -> None:
    """A log that cannot be copied is emptied; a process that cannot be started is tried again."""
    printed = launched(NO_ROOM, tmp_path)
    emptied, files, killed, failed, not_started, running = printed.splitlines()
    assert "sleeper's log could not be put aside and is emptied" in emptied
    assert files == "[('sleeper.log', 0)]"
    assert "stopped (signal SIGKILL)" in killed
    assert "did not start ([Errno 21]" in failed
    assert (not_started, running) == ("None", "None")


KILLED = """
one = siblings.Sibling("sleeper", SLEEPS)
siblings.Siblings([one], folder, print).start()
print(one.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_launcher_leaves_nobody(tmp_path: Path) -> None:
    """SIGKILL leaves the launcher no time to end its siblings: the kernel tells them to."""
    sibling_pid = int(launched(KILLED, tmp_path, status=-signal.SIGKILL))
    processes = []
    with suppress(psutil.NoSuchProcess):  # it may have ended already
        processes.append(psutil.Process(sibling_pid))
    _, running = psutil.wait_procs(processes, timeout=60)
    for process in running:
        process.kill()
    assert running == []

"""Processes that run side by side: started, watched, started again when they die, and ended.

Knows nothing of hubs and pools.  Whatever a sibling leaves behind (a student's server of a hub that
died) becomes a child of this process, so that `Siblings.end` misses none.  If this process is
killed and can end nobody, the kernel tells each sibling to end.
"""

import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # one that ran this long begins again with the first pause
END_S = 10.0  # from SIGTERM to SIGKILL
KILLS = 200  # what so many SIGKILLs, every 50 ms, have not ended is not ours to end
TAIL_BYTES = 4000
LOG_BYTES = 10_000_000  # then it is put aside
OLD_LOGS = 3

libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


@dataclass
class Sibling:
    """One program of the lab.

    Attributes:
        name: what people call it; its log is ``NAME.log``.
        command: program and arguments.
        env: added to this process's environment.
        log_from: where in its log the last start begins, bytes.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    log_from: int = 0


class Siblings:
    """The programs of a lab, started and ended together.

    Args:
        logs: the folder of their logs.
        say: told in a sentence what happens to them.
        now: seconds, never going back.
    """

    def __init__(
        self,
        siblings: Sequence[Sibling],
        logs: Path,
        say: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.siblings = tuple(siblings)
        self._logs = logs
        self._say = say
        self._now = now
        adopt_orphans()

    def start(self) -> None:
        """Start every program that is not running."""
        for sibling in self.siblings:
            self._start(sibling)

    def ended_siblings(self) -> Sibling | None:
        """Return a program that has ended; None while all run."""
        for sibling in self.siblings:
            if sibling.process is not None and sibling.process.poll() is not None:
                return sibling
        return None

    def watch(self) -> None:
        """Restart ended programs after a doubling pause, and reap orphans."""
        for sibling in self.siblings:
            if sibling.process is not None and sibling.process.poll() is not None:
                self._schedule(sibling, f"stopped ({_is_ending(sibling.process.returncode)})")
            if sibling.process is None and self._now() >= sibling.due_at:
                try:
                    self._start(sibling)
                except OSError as error:  # a full disk has no room for its log: later
                    self._schedule(sibling, f"did not start ({error})")
            self._rotate(sibling)
        reap_children({s.process.pid for s in self.siblings if s.process is not None})

    def end(self) -> None:
        """End all programs and their descendants.

        None is left when it returns, but what the lab's user may not end, which it says.
        """
        family = psutil.Process().children(recursive=True)
        for process in family:
            _signal(process, signal.SIGTERM)
        deadline = self._now() + END_S
        while self._now() < deadline and self._remaining():
            time.sleep(0.05)
        for _ in range(KILLS):
            remaining = self._remaining()
            if not remaining:
                return
            for process in remaining:
                _signal(process, signal.SIGKILL)
            time.sleep(0.05)
        self._say(f"still there: process {', '.join(str(process.pid) for process in remaining)}")

    def tail(self, sibling: Sibling) -> str:
        """Return the end of a sibling's log since its last start."""
        log_bytes = self._log(sibling).read_bytes()[sibling.log_from :]
        return "\n".join(log_bytes[-TAIL_BYTES:].decode(errors="replace").splitlines()[-15:])

    def _start(self, sibling: Sibling) -> None:
        with self._log(sibling).open("ab") as log:
            sibling.log_from = log.tell()
            sibling.process = subprocess.Popen(
                sibling.command,
                env={**os.environ, **sibling.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this process alone
                preexec_fn=partial(_end_with_parent, os.getpid()),
            )
        sibling.started_at = self._now()

    def _rotate(self, sibling: Sibling) -> None:
        """Copy a long log aside and truncate it, since its writers append.

        Lines that are written between the copy and the cut are lost.  So is the whole log where the
        disk has no room for the copy: an empty log makes room, and the lab goes on.
        """
        log = self._log(sibling)
        if not log.exists() or log.stat().st_size < LOG_BYTES:
            return
        old_logs = [log.with_name(f"{log.name}.{number}") for number in range(1, OLD_LOGS + 1)]
        for newer, older in reversed(list(itertools.pairwise(old_logs))):
            if newer.exists():
                newer.replace(older)
        try:
            shutil.copyfile(log, old_logs[0])
        except OSError as error:
            old_logs[0].unlink(missing_ok=True)
            self._say(f"the {sibling.name}'s log could not be put aside and is emptied ({error})")
        os.truncate(log, 0)
        sibling.log_from = 0

    def _schedule(self, sibling: Sibling, outcome: str) -> None:
        if self._now() - sibling.started_at > STEADY_S:
            sibling.pause_s = FIRST_PAUSE_S
        self._say(
            f"the {sibling.name} {outcome} and starts again in "
            f"{sibling.pause_s:g} s; see {self._log(sibling)}"
        )
        sibling.process = None
        sibling.due_at = self._now() + sibling.pause_s
        sibling.pause_s = min(2 * sibling.pause_s, LONGEST_PAUSE_S)

    def _remaining(self) -> list[psutil.Process]:
        """Return the descendants that are not reaped yet.

        A zombie counts: its other threads may still run, and then it cannot be reaped.
        """
        for sibling in self.siblings:
            if sibling.process is not None:
                sibling.process.poll()
        reap_children({s.process.pid for s in self.siblings if s.process is not None})
        remaining: list[psutil.Process] = psutil.Process().children(recursive=True)
        return remaining

    def _log(self, sibling: Sibling) -> Path:
        return self._logs / f"{sibling.name}.log"


def adopt_orphans() -> None:
    """Make processes whose parent dies children of this one, not of PID 1."""
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _end_with_parent(parent: int) -> None:
    """Request SIGTERM for a new sibling when its parent ends, however that happens.

    The kernel watches the thread that started the sibling: it must be one that stays.
    """
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended in between
        os._exit(1)


def reap_children(owned_pids: set[int]) -> None:
    """Reap the adopted children that have ended; an owner reaps those in ``owned_pids``."""
    for child in psutil.Process().children():
        if child.pid in owned_pids:
            continue
        try:
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # of another user: a command of sudo's
        return


def _is_ending(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

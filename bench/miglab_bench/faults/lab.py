"""A pool service that is hurt and comes back: its process, its disk, its clock, its GPUs.

The state folder lies on a small tmpfs and the clock is libfaketime's, so that neither the machine's
disk nor its time is touched.  What ends by itself is started again, as systemd would.
"""

import os
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from miglab_bench.faults.service import WITHOUT_MENDS
from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import CheckFailed
from miglab_hub.lab_secrets import read
from miglab_hub.settings.lab_toml import load
from miglab_pool.gpu.simulated.machine import SimulatedMachine

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DISK_MIB = 64
START_S = 240.0  # beside other work at a low priority; it is no measurement
LOG_LINES = 20
TIMEOUT_S = 2.0  # of a student's request: one that hangs is made again
ANSWER_S = 60.0  # for what the checks ask, on a busy machine
GPUS = 2
TOML = """
[lab]
name = "{name}"
state_dir = "state"
port = {port}
students_can_act_as_staff = true
[gpus]
count = {gpus}
[pool]
reconcile_s = 2
holders_s = 1
attend_grace_s = 300
attach_s = 60
[students]
spawner = "{spawner}"
[courses.everyone]
shapes = ["1g.5gb", "2g.10gb", "3g.20gb"]
default = "1g.5gb"
"""


class FaultLab:
    """See the module.

    Args:
        docker: students' servers are containers, else processes.
        without_mends: for a test of the harness, see service.py.
    """

    def __init__(self, *, docker: bool, without_mends: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="miglab-faults-"))
        self.has_own_disk = self._mount()
        self.file = self.folder / "lab.toml"
        self.name = f"miglab-faults-{secrets.token_hex(4)}"
        spawner = "docker" if docker else "local"
        text = TOML.format(name=self.name, port=free_ports(), gpus=GPUS, spawner=spawner)
        self.file.write_text(text)
        self.settings = load(self.file, {})
        self._clock = self.folder / "clock"
        self.offset_s = 0
        self.set_clock(0)
        self._switch = [WITHOUT_MENDS] if without_mends else []
        self._http = httpx.Client(trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None
        self.keep_running()
        self.machine = SimulatedMachine(self.settings.state / "gpus")
        self.gpus = [gpu.uuid for gpu in self.machine.state().gpus]

    # -- the process ---------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Start the service if it does not run, and wait until it answers."""
        if self.process is not None and self.process.poll() is None:
            return
        env = {**os.environ, "FAKETIME_NO_CACHE": "1", "NO_FAKE_STAT": "1"}
        if FAKETIME.exists():
            env |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock)}
            env |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
            # For glibc before 2.24; with a newer one each wait for Python's lock would spin.
            env |= {"FAKETIME_FORCE_MONOTONIC_FIX": "0"}
        command = [sys.executable, "-m", "miglab_bench.faults.service", *self._switch]
        with (self.folder / "pool.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.file)], env=env, stdout=log, stderr=log
            )
        self.wait(self.answers, START_S, "the pool service to answer")

    def send(self, number: signal.Signals) -> None:
        """Signal the service; nothing if it ended by itself."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, number: signal.Signals) -> None:
        """End the service and wait for that."""
        self.send(number)
        assert self.process is not None
        self.process.wait(START_S)

    def answers(self) -> bool:
        """Whether the service answers."""
        return self.ask("GET", "/health") is not None

    def wait(self, is_so: Any, bound_s: float, what: str) -> float:
        """Wait until something is so; returns how long it took, seconds.

        Raises:
            CheckFailed: it is not so within the bound.
        """
        began = time.monotonic()
        while not is_so():
            if time.monotonic() > began + bound_s:
                raise CheckFailed(f"waited {bound_s:g} s for {what}; its log ends:\n{self._log()}")
            time.sleep(0.05)
        return time.monotonic() - began

    def _log(self) -> str:
        lines = (self.folder / "pool.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    # -- asking --------------------------------------------------------------------------------

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response | None:
        """The pool's answer, also a refusal; None if there is none to be had now."""
        return self._request(method, path, body, TIMEOUT_S)

    def _request(
        self, method: str, path: str, body: dict[str, Any], timeout_s: float
    ) -> httpx.Response | None:
        try:
            headers = {"Authorization": f"Bearer {read(self.settings.pool_secret)}"}
            url = f"{self.settings.pool_url}/api{path}"
            found = self._http.request(
                method, url, headers=headers, json=body or None, timeout=timeout_s
            )
        except (httpx.TransportError, OSError):
            return None
        return None if found.status_code >= 500 else found

    def get(self, path: str) -> Any:
        """What the pool says; None if it says nothing now."""
        found = self.ask("GET", path)
        return None if found is None or found.is_error else found.json()

    def told(self, path: str) -> Any:
        """What the pool says, waited for: to a check, silence is no answer.

        Raises:
            CheckFailed: it says nothing within `ANSWER_S`.
        """
        answer: httpx.Response | None = None

        def is_told() -> bool:
            nonlocal answer
            self.keep_running()
            answer = self._request("GET", path, {}, ANSWER_S)
            return answer is not None and answer.is_success

        self.wait(is_told, ANSWER_S, f"an answer to {path}")
        assert answer is not None
        return answer.json()

    # -- what is hurt --------------------------------------------------------------------------

    def set_clock(self, offset_s: float) -> None:
        """Set the service's wall clock by so much against the machine's."""
        fresh = self.folder / "clock.new"
        fresh.write_text(f"{offset_s:+.0f}\n")
        fresh.replace(self._clock)

    def fill_disk(self) -> None:
        """Leave no byte on the disk of the state folder."""
        with (self.settings.state / "filler").open("wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12, 1):
                with_room = True
                while with_room:
                    try:
                        filler.write(b"\0" * size)
                    except OSError:
                        with_room = False

    def free_disk(self) -> None:
        """Take the filler away."""
        (self.settings.state / "filler").unlink(missing_ok=True)

    def limit_files(self, more: int | None) -> None:
        """Let files grow by ``more`` bytes beyond the ledger's log; None: as they like.

        What crosses the limit is written in part, and fails.
        """
        if self.process is None or self.process.poll() is not None:
            return
        log = Path(f"{self.settings.ledger}-wal")
        size = log.stat().st_size if log.exists() else 0
        limit = resource.RLIM_INFINITY if more is None else size + more
        pair = (limit, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, pair)

    def back_up(self) -> None:
        """Keep a copy of the ledger as it is now."""
        source, target = sqlite3.connect(self.settings.ledger), sqlite3.connect(self.copy)
        with closing(source), closing(target):
            source.backup(target)

    def restore(self) -> None:
        """Put the copy in the ledger's place; the service does not run."""
        for left in self.settings.ledger.parent.glob(f"{self.settings.ledger.name}-*"):
            left.unlink()
        shutil.copy(self.copy, self.settings.ledger)

    @property
    def copy(self) -> Path:
        """Where the ledger's copy lies."""
        return self.folder / "copy.sqlite"

    def close(self) -> None:
        """End the service and remove everything."""
        self.send(signal.SIGCONT)
        self.end(signal.SIGKILL)
        self._http.close()
        if self.has_own_disk:
            subprocess.run(["umount", "--lazy", str(self.folder / "state")], check=True)
        shutil.rmtree(self.folder)

    def _mount(self) -> bool:
        state = self.folder / "state"
        state.mkdir()
        options = f"size={DISK_MIB}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(state)]
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0

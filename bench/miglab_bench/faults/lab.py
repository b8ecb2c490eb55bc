"""A lab that is hurt and comes back: its processes, its engine, its disk, its clock, its GPUs.

Proxy, hub and pool are real ones, and so are the students' containers where an engine can be had.
The state folder lies on a small tmpfs, the clock is libfaketime's, network and engine are the
harness's own: the machine's disk, time and engine are not touched.  What ends by itself is started
again, as systemd would.
"""

import os
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

from miglab_bench.faults import hub_config
from miglab_bench.faults.engine import IMAGE, OwnEngine
from miglab_bench.faults.hub_log import HubLog
from miglab_bench.faults.network import OwnNetwork
from miglab_bench.faults.nursery import ForkedPart, Nursery
from miglab_bench.faults.service import FAILING, WITHOUT
from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import CheckFailed
from miglab_hub import lab_secrets
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.up import siblings_of
from miglab_hub.settings.lab_toml import ENV_CONFIG, Settings
from miglab_pool.gpu.simulated.machine import SimulatedMachine

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DISK_MIB = 64
BOUND_S = 240.0  # for a very busy machine; it is no measurement
TIMEOUT_S = 2.0
POLL_S = 0.05
LOG_LINES = 20
GPUS = 2
PARTS = ("proxy", "pool", "hub")
LAST_MIGRATION = "miglab_pool.ledger.migrations.versions.0011_glossary"
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
{students}
[courses.everyone]
shapes = ["1g.5gb", "2g.10gb", "3g.20gb"]
default = "1g.5gb"
"""
DOCKER = """
spawner = "docker"
image = "{image}"
docker_url = "{url}"
network = "{name}"
"""
LOCAL = 'spawner = "local"\nnotebooks = "."\n'


class FaultLab:
    """See the module.

    Args:
        docker: students' servers are containers, else processes.
        without: a mend that is taken back, for a test of the harness; see service.py.
    """

    settings: Settings
    machine: SimulatedMachine
    hub_log: HubLog

    def __init__(self, *, docker: bool, without: str = "") -> None:
        self.offset_s = 0
        self.parts: dict[str, ForkedPart] = {}
        self.engine: OwnEngine | None = None
        self._switch = [WITHOUT, without] if without else []
        with ExitStack() as opened:
            self.folder = Path(tempfile.mkdtemp(prefix="miglab-faults-"))
            opened.callback(shutil.rmtree, self.folder)
            self.hub_log = HubLog(self.folder / "hub.log")
            self.has_own_disk = self._mount(opened)
            self.has_own_clock = FAKETIME.exists()
            if docker:
                opened.callback(OwnNetwork().close)
                self.engine = OwnEngine(self._folder("engine"))
                opened.callback(self.engine.close)
            file = self._write_settings()
            self._open_nursery(opened, file)  # it imports while the engine starts
            if self.engine is not None:
                self.engine.start_with_image()
            self.settings = prepare(file)
            opened.callback(self.free_disk)
            self.wait(self.answers, BOUND_S, "hub and pool to answer")
            gpus = self.settings.simulated_state
            assert gpus is not None
            self.machine = SimulatedMachine(gpus)
            if self.engine is not None:
                self.engine.hands_over(gpus)
            self._opened = opened.pop_all()
        self.gpus = [gpu.uuid for gpu in self.machine.state().gpus]

    def close(self) -> None:
        """End everything, and remove it."""
        self._opened.close()

    def _write_settings(self) -> Path:
        name = f"miglab-faults-{secrets.token_hex(4)}"
        url = self.engine.url if self.engine else ""
        students = DOCKER.format(image=IMAGE, url=url, name=name) if url else LOCAL
        file = self.folder / "lab.toml"
        text = TOML.format(name=name, port=free_ports(), gpus=GPUS, students=students)
        file.write_text(text)
        return file

    def _open_nursery(self, opened: ExitStack, file: Path) -> None:
        opened.enter_context(own_environment())
        os.environ[ENV_CONFIG] = str(file)
        self._clock = self.folder / "clock"
        self.set_clock(0)
        self._nursery = Nursery(self._faketime())
        opened.callback(self._nursery.close)
        self._http = httpx.Client(timeout=TIMEOUT_S, trust_env=False)
        opened.callback(self._http.close)

    def _faketime(self) -> dict[str, str]:
        if not self.has_own_clock:
            return {}
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # For glibc before 2.24; with a newer one each wait for Python's lock would spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def _folder(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir()
        return made

    def _mount(self, opened: ExitStack) -> bool:
        state, options = self._folder("state"), f"size={DISK_MIB}m,mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(state)]
        if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
            return False
        unmount = ["umount", "--lazy", str(state)]
        opened.callback(subprocess.run, unmount, check=True)
        return True

    # -- the processes -------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Start what does not run; `wait` goes on doing so, as systemd would."""
        for name in PARTS:
            if name not in self.parts or not self.parts[name].is_running():
                self._start(name)

    def _start(self, name: str) -> None:
        if name in self.parts:
            self.parts[name].close()
        log = self.folder / f"{name}.log"
        if name == "pool":
            arguments = [*self._switch, "--config", str(self.settings.file)]
            self.parts[name] = self._nursery.fork(log, pool=arguments)
        elif name == "hub":
            self.parts[name] = self._nursery.fork(log, hub=["-f", hub_config.__file__])
        else:
            proxy = next(one for one in siblings_of(self.settings) if one.name == name)
            command, env = list(proxy.command), dict(proxy.env)
            self.parts[name] = self._nursery.fork(log, command=command, env=env)

    def send(self, number: signal.Signals, *names: str) -> None:
        """Signal these; nothing to one that ended by itself."""
        for name in names:
            self.parts[name].send(number)

    def end(self, number: signal.Signals, *names: str) -> None:
        """End these and wait for that."""
        self.send(number, *names)
        running = [self.parts[name] for name in names]
        wait_until(
            lambda: not any(part.is_running() for part in running), BOUND_S, f"{names} to end"
        )

    def answers(self) -> bool:
        """Whether hub and pool answer through the proxy."""
        return all(
            self._is_well(f"{self.settings.bind_url}{path}")
            for path in ("hub/health", "services/pool/api/health")
        )

    def reaches(self, user: str) -> bool:
        """Whether the student's server answers through the proxy."""
        return self._is_well(f"{self.settings.bind_url}user/{user}/")

    def _is_well(self, url: str) -> bool:
        try:
            return self._http.get(url).is_success
        except httpx.TransportError:
            return False

    def wait(self, is_so: Callable[[], bool], bound_s: float, what: str) -> None:
        """Wait until something is so; whatever ends meanwhile is started again.

        Raises:
            CheckFailed: it is not so within the bound.
        """

        def is_so_now() -> bool:
            self.keep_running()
            return is_so()

        try:
            wait_until(is_so_now, bound_s, what)
        except CheckFailed as error:
            raise CheckFailed(f"{error}; the logs end:\n{self.log_ends()}") from None

    def log_ends(self) -> str:
        """The last lines of every process's log."""
        logs = [log.read_text(errors="replace") for log in sorted(self.folder.glob("*.log"))]
        return "\n".join("\n".join(log.splitlines()[-LOG_LINES:]) for log in logs)

    def keep_logs(self) -> Path:
        """Copy the logs to where they outlive the lab."""
        kept = Path(tempfile.mkdtemp(prefix="miglab-faults-logs-"))
        for log in (*self.folder.glob("*.log"), *self.folder.glob("engine/*.log")):
            shutil.copy(log, kept)
        return kept

    # -- asking the pool as its operator -------------------------------------------------------

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response | None:
        """The pool's answer, also a refusal; None if there is none to be had now."""
        try:
            headers = {"Authorization": f"Bearer {lab_secrets.read(self.settings.pool_secret)}"}
            url = f"{self.settings.pool_url}/api{path}"
            found = self._http.request(method, url, headers=headers, json=body or None)
        except (httpx.TransportError, OSError):
            return None
        return None if found.status_code >= 500 else found

    def get(self, path: str) -> Any:
        """What the pool says; None if it says nothing now."""
        found = self.ask("GET", path)
        return None if found is None or found.is_error else found.json()

    def must_ask(self, path: str) -> httpx.Response:
        """The pool's answer, also a refusal, as soon as there is one: silence is none.

        Raises:
            CheckFailed: it never answers.
        """
        said: list[httpx.Response] = []

        def has_answered() -> bool:
            answer = self.ask("GET", path)
            said.extend([] if answer is None else [answer])
            return answer is not None

        self.wait(has_answered, BOUND_S, f"an answer about {path}")
        return said[-1]

    def must_get(self, path: str) -> Any:
        """What the pool says.

        Raises:
            CheckFailed: it never answers, or refuses.
        """
        answer = self.must_ask(path)
        if answer.is_error:
            raise CheckFailed(f"GET {path} gave HTTP {answer.status_code}: {answer.text}")
        return answer.json()

    # -- what is hurt --------------------------------------------------------------------------

    def set_clock(self, offset_s: float) -> None:
        """Set the wall clock of hub and pool by so much against the machine's."""
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

    def fail_commit(self, statement: str) -> None:
        """Let the ledger's next commit of this statement fail, and what it reads after it."""
        (self.settings.state / FAILING).write_text(statement)

    def mend_disk(self) -> None:
        """Let every commit succeed."""
        (self.settings.state / FAILING).unlink(missing_ok=True)

    def limit_files(self, more: int | None) -> None:
        """Let the pool's files grow by ``more`` bytes beyond the ledger's log; None: as they like.

        What crosses the limit is written in part, and fails.
        """
        log = Path(f"{self.settings.ledger}-wal")
        size = log.stat().st_size if log.exists() else 0
        limit = resource.RLIM_INFINITY if more is None else size + more
        if self.parts["pool"].is_running():
            pair = (limit, resource.RLIM_INFINITY)
            resource.prlimit(self.parts["pool"].pid, resource.RLIMIT_FSIZE, pair)

    def back_up(self) -> None:
        """Keep a copy of the ledger as it is now."""
        source, target = sqlite3.connect(self.settings.ledger), sqlite3.connect(self.copy)
        with closing(source), closing(target):
            source.backup(target)

    def restore(self) -> None:
        """Put the copy in the ledger's place; the pool does not run."""
        _remove_log(self.settings.ledger)
        shutil.copy(self.copy, self.settings.ledger)

    def lose_hub_database(self) -> None:
        """The hub does not run, and begins anew."""
        self.hub_log.forget()
        _remove_log(self.settings.hub_database)
        self.settings.hub_database.unlink(missing_ok=True)

    def age_ledger(self) -> None:
        """Make the ledger what the version before `LAST_MIGRATION` left; the pool does not run."""
        last = import_module(LAST_MIGRATION)
        with closing(sqlite3.connect(self.settings.ledger)) as ledger, ledger:
            for index in ("messages_state", "transitions_target", "transitions_actions"):
                ledger.execute(f"DROP INDEX {index}")
            for table, columns in last.COLUMNS.items():
                for old, new in columns.items():
                    ledger.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
            for old, new in last.TABLES.items():
                ledger.execute(f"ALTER TABLE {new} RENAME TO {old}")
            ledger.execute("CREATE INDEX notes_state ON notes (state)")
            ledger.execute("CREATE INDEX transitions_thing ON transitions (what, thing)")
            ledger.execute("CREATE INDEX transitions_acts ON transitions (id) WHERE act != ''")
            ledger.execute("UPDATE transitions SET what = 'note' WHERE what = 'message'")
            ledger.execute("UPDATE alembic_version SET version_num = ?", (last.down_revision,))

    @property
    def copy(self) -> Path:
        """Where the ledger's copy lies."""
        return self.folder / "copy.sqlite"


def wait_until(is_so: Callable[[], bool], bound_s: float, what: str) -> None:
    """Wait until something is so.

    Raises:
        CheckFailed: it is not so within the bound.
    """
    ends_at = time.monotonic() + bound_s
    while not is_so():
        if time.monotonic() > ends_at:
            raise CheckFailed(f"waited {bound_s:g} s for {what}")
        time.sleep(POLL_S)


def _remove_log(database: Path) -> None:
    for left in database.parent.glob(f"{database.name}-*"):
        left.unlink()


@contextmanager
def own_environment() -> Any:
    """What is set in this process's environment meanwhile is not set afterwards."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)

"""A lab that is hurt and comes back: its processes, its engine, its disk, its clock, its GPUs.

Proxy, hub and pool are real ones, and so are the students' containers where an engine can be had.
Disk, clock, network and engine are the harness's own (machine.py, engine.py): the machine's are
not touched.  What ends by itself is started again, as systemd would.
"""

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

import httpx
from docker.errors import DockerException  # noqa: TID251 -- real containers
from requests import RequestException

from miglab_bench.faults import hub_config
from miglab_bench.faults.databases import LabDatabases
from miglab_bench.faults.engine import IMAGE, OwnEngine
from miglab_bench.faults.fork_server import ForkedPart, LabForkServer
from miglab_bench.faults.hub_log import HubLog
from miglab_bench.faults.machine import OwnClock, OwnDisk, OwnNetwork
from miglab_bench.faults.operator import BOUND_S, PoolOperator
from miglab_bench.faults.service import WITHOUT
from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import CheckFailed, wait_for
from miglab_bench.harness.temporary import simulated
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.up import siblings_of
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_DOCKER, Settings
from miglab_pool.gpu.simulated.machine import SimulatedMachine

TIMEOUT_S = 2.0
PAUSE_S = 0.05
LOG_LINES = 20
GPUS = 2
PARTS = ("proxy", "pool", "hub")
TOML = """
[lab]
name = "{name}"
state_dir = "state"
port = {port}
[accept_risk]
students_can_act_as_staff = true
[gpus]
simulate = {gpus}
[pool]
lease_s = 86400
[testing]
pool.reconcile_s = 2
pool.holders_s = 1
pool.attend_grace_s = 300
pool.attach_s = 60
servers.create_timeout_s = 60
[servers]
{servers}
[courses.everyone]
shapes = ["1g.5gb", "2g.10gb", "3g.20gb"]
default = "1g.5gb"
"""
DOCKER = """
spawner = "docker"
image = "{image}"
"""
LOCAL = 'spawner = "local"\nnotebooks = "."\n'


class FaultLab:
    """See the module.

    Args:
        docker: students' servers are containers, else processes.
        without: a mend that is taken back, for a test of the harness; see service.py.

    Attributes:
        pool: what an operator asks it.
        machine: the simulated GPUs.
    """

    settings: Settings
    machine: SimulatedMachine
    databases: LabDatabases
    pool: PoolOperator

    def __init__(self, *, docker: bool, without: str = "") -> None:
        self.parts: dict[str, ForkedPart] = {}
        self.engine: OwnEngine | None = None
        self._switch = [WITHOUT, without] if without else []
        with ExitStack() as opened:
            self.folder = Path(tempfile.mkdtemp(prefix="miglab-faults-"))
            opened.callback(shutil.rmtree, self.folder)
            self.hub_log = HubLog(self.folder / "hub.log")
            self.clock = OwnClock(self.folder)
            self.disk = OwnDisk(self._folder("state"))
            opened.callback(self.disk.close)
            if docker:
                opened.callback(OwnNetwork().close)
                self.engine = OwnEngine(self._folder("engine"))
                opened.callback(self.engine.close)
            self._http = opened.enter_context(httpx.Client(timeout=TIMEOUT_S, trust_env=False))
            self._start_all(opened)
            self._opened = opened.pop_all()
        self.gpus = [gpu.uuid for gpu in self.machine.state().gpus]

    def close(self) -> None:
        """End everything, and remove it."""
        self._opened.close()

    def _start_all(self, opened: ExitStack) -> None:
        self._fork_server = LabForkServer(self.clock.environment())
        opened.callback(self._fork_server.close)
        if self.engine is not None:  # the other one imports meanwhile
            self.engine.start_with_image()
            opened.enter_context(mock.patch.dict(os.environ, {ENV_DOCKER: self.engine.url}))
        self.settings = prepare(self._write_settings())
        self.databases = LabDatabases(self.settings, self.folder)
        self.pool = PoolOperator(self.settings, self._http, self.wait)
        opened.callback(self.disk.free)
        self.wait(self.answers, BOUND_S, "hub and pool to answer")
        gpus = self.settings.simulated_state
        assert gpus is not None
        self.machine = SimulatedMachine(gpus)
        if self.engine is not None:
            self.engine.hands_over(gpus)

    def _write_settings(self) -> Path:
        name = f"miglab-faults-{secrets.token_hex(4)}"
        servers = DOCKER.format(image=IMAGE) if self.engine else LOCAL
        file = self.folder / "lab.toml"
        file.write_text(
            TOML.format(name=name, port=free_ports(), gpus=simulated(GPUS), servers=servers)
        )
        return file

    def _folder(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir()
        return made

    # -- the processes -------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Start what does not run; `wait` goes on doing so, as systemd would."""
        for name in PARTS:
            if name not in self.parts or not self.parts[name].is_running():
                self._start(name)

    def _start(self, name: str) -> None:
        if name in self.parts:
            self.parts[name].close()
        log, file = self.folder / f"{name}.log", str(self.settings.file)
        env = {ENV_CONFIG: file, ENV_BRIDGE: self.settings.bridge}
        env[ENV_DOCKER] = self.settings.docker_url
        if name == "pool":
            arguments = [*self._switch, "--config", file]
            self.parts[name] = self._fork_server.fork(log, env, pool=arguments)
        elif name == "hub":
            self.parts[name] = self._fork_server.fork(log, env, hub=["-f", hub_config.__file__])
        else:
            proxy = next(one for one in siblings_of(self.settings) if one.name == name)
            env = {**env, **proxy.env}
            self.parts[name] = self._fork_server.fork(log, env, command=list(proxy.command))

    def send(self, number: signal.Signals, *names: str) -> None:
        """Signal these; nothing to one that ended by itself."""
        for name in names:
            self.parts[name].send(number)

    def end(self, number: signal.Signals, *names: str) -> None:
        """End these and wait for that."""
        self.send(number, *names)
        ending = [self.parts[name] for name in names]
        what = f"{' and '.join(names)} to end by {number.name}"
        wait_for(lambda: not any(part.is_running() for part in ending), what, BOUND_S, PAUSE_S)

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
            wait_for(is_so_now, what, bound_s, PAUSE_S)
        except CheckFailed as error:
            raise CheckFailed(f"{error}; the logs end:\n{self.log_ends()}") from None

    # -- what they said ------------------------------------------------------------------------

    def log_ends(self) -> str:
        """The last lines of every process's log."""
        logs = [log.read_text(errors="replace") for log in sorted(self.folder.glob("*.log"))]
        return "\n".join("\n".join(log.splitlines()[-LOG_LINES:]) for log in logs)

    def keep_logs(self) -> Path:
        """Copy the logs to where they outlive the lab, and what the engine says of containers."""
        kept = Path(tempfile.mkdtemp(prefix="miglab-faults-logs-"))
        for log in (*self.folder.glob("*.log"), *self.folder.glob("engine/*.log")):
            shutil.copy(log, kept)
        if self.engine is not None:
            with suppress(DockerException, RequestException, OSError):  # it may be away
                (kept / "containers.json").write_text(self.engine.describe())
        return kept

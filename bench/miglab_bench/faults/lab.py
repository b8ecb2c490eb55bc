"""A lab that is hurt and comes back: its processes, its engine, its disk, its clock, its GPUs.

Proxy, hub, pool and the students' containers are real ones.  Disk, clock, network and engine are
the harness's own (machine.py, engine.py): the machine's are not touched.  What ends by itself is
started again, as systemd would.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import httpx
import psutil
from docker.errors import DockerException  # noqa: TID251 -- real containers
from requests import RequestException

from miglab_bench.faults import hub_config
from miglab_bench.faults.engine import IMAGE, OwnEngine
from miglab_bench.faults.fork_server import LabForkServer
from miglab_bench.faults.hub_log import HubLog
from miglab_bench.faults.machine import LabDatabases, OwnClock, OwnDisk, OwnNetwork
from miglab_bench.faults.service import WITHOUT
from miglab_bench.harness.logs import log_ends, logs_below
from miglab_bench.harness.student import CheckFailed, wait_for
from miglab_bench.harness.temporary import ONE_ORIGIN, write_lab
from miglab_hub import lab_secrets
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.up import siblings_of
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_DOCKER
from miglab_pool.gpu.simulated.machine import SimulatedMachine

TIMEOUT_S = 2.0
PAUSE_S = 0.05
GPUS = 2
PARTS = ("proxy", "pool", "hub")
BOUND_S = 240.0
"""For everything that must come in the end: for a very busy machine, it is no measurement."""
TESTING = """
pool.reconcile_s = 2
pool.holders_s = 1
pool.attend_grace_s = 300
pool.attach_s = 60
servers.create_timeout_s = 60
"""
Seen = TypeVar("Seen")


class FaultLab:
    """See the module; needs `OwnEngine.is_possible`.

    Args:
        without: a mend that is taken back, for a test of the harness; see service.py.

    Attributes:
        machine: the simulated GPUs.
    """

    def __init__(self, *, without: str = "") -> None:
        self.parts: dict[str, psutil.Process] = {}
        self._switch = [WITHOUT, without] if without else []
        with ExitStack() as opened:
            self.folder = Path(tempfile.mkdtemp(prefix="miglab-faults-"))
            opened.callback(shutil.rmtree, self.folder)
            opened.enter_context(logs_below(self.folder))
            self.hub_log = HubLog(self.folder / "hub.log")
            self.clock = OwnClock(self.folder)
            self.disk = OwnDisk(self._folder("state"))
            opened.callback(self.disk.close)
            opened.callback(OwnNetwork().close)
            self.engine = OwnEngine(self._folder("engine"))
            opened.callback(self.engine.close)
            self._http = opened.enter_context(httpx.Client(timeout=TIMEOUT_S, trust_env=False))
            self._fork_server = LabForkServer(self.clock.environment())
            opened.callback(self._fork_server.close)
            self.engine.start_with_image()  # the other one imports meanwhile
            opened.enter_context(mock.patch.dict(os.environ, {ENV_DOCKER: self.engine.url}))
            file = write_lab(
                self.folder,
                spawner="docker",
                image=IMAGE,
                shapes=("1g.5gb", "2g.10gb", "3g.20gb"),
                lab='state_dir = "state"',
                accept=ONE_ORIGIN,
                pool="lease_s = 86400",
                testing=TESTING,
                gpus=GPUS,
            )
            self.settings = prepare(file)
            self.databases = LabDatabases(self.settings, self.folder)
            opened.callback(self.disk.free)
            self.wait(self.answers, BOUND_S, "hub and pool to answer")
            gpus = self.settings.simulated_state
            assert gpus is not None
            self.machine = SimulatedMachine(gpus)
            self.engine.hands_over(gpus)
            self._opened = opened.pop_all()
        self.gpus = [gpu.uuid for gpu in self.machine.state().gpus]

    def close(self) -> None:
        """End everything, and remove it."""
        self._opened.close()

    def _folder(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir()
        return made

    # -- the processes -------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Start what does not run; `wait` goes on doing so, as systemd would."""
        for name in PARTS:
            if name not in self.parts or not self.parts[name].is_running():
                with suppress(
                    psutil.NoSuchProcess
                ):  # it ended at once; the next look starts it anew
                    self._start(name)

    def _start(self, name: str) -> None:
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
            with suppress(psutil.NoSuchProcess):
                self.parts[name].send_signal(number)

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

    def wait(self, look: Callable[[], Seen | None], bound_s: float, what: str) -> Seen:
        """Wait until something is so; whatever ends meanwhile is started again.

        Returns:
            What was seen then.

        Raises:
            CheckFailed: it is not so within the bound.
        """

        def look_now() -> Seen | None:
            self.keep_running()
            return look()

        try:
            return wait_for(look_now, what, bound_s, PAUSE_S)
        except CheckFailed as error:
            raise CheckFailed(f"{error}; the logs end:\n{self.log_ends()}") from None

    # -- what the operator asks the pool, which may be away at any time ------------------------

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response | None:
        """The pool's answer, also a refusal; None if there is none to be had now."""
        try:
            headers = {"Authorization": f"Bearer {lab_secrets.read(self.settings.pool_secret)}"}
            url = f"{self.settings.pool_url}/api{path}"
            answer = self._http.request(method, url, headers=headers, json=body or None)
        except (httpx.TransportError, OSError):
            return None
        return None if answer.status_code >= 500 else answer

    def get(self, path: str) -> Any:
        """What the pool says; None if it says nothing now."""
        answer = self.ask("GET", path)
        return None if answer is None or answer.is_error else answer.json()

    def must_ask(self, path: str) -> httpx.Response:
        """The pool's answer, also a refusal, as soon as there is one: silence is none.

        Raises:
            CheckFailed: it never answers.
        """
        return self.wait(partial(self.ask, "GET", path), BOUND_S, f"an answer about {path}")

    def must_get(self, path: str) -> Any:
        """What the pool says.

        Raises:
            CheckFailed: it never answers, or refuses.
        """
        answer = self.must_ask(path)
        if answer.is_error:
            raise CheckFailed(f"GET {path} gave HTTP {answer.status_code}: {answer.text}")
        return answer.json()

    # -- what they said ------------------------------------------------------------------------

    def log_ends(self) -> str:
        """The last lines of every process's log."""
        return "\n".join(lines for _, lines in log_ends())

    def keep_logs(self) -> Path:
        """Copy the logs to where they outlive the lab, and what the engine says of containers."""
        kept = Path(tempfile.mkdtemp(prefix="miglab-faults-logs-"))
        for log in (*self.folder.glob("*.log"), *self.folder.glob("engine/*.log")):
            shutil.copy(log, kept)
        with suppress(DockerException, RequestException, OSError):  # it may be away
            (kept / "containers.json").write_text(self.engine.describe())
        return kept

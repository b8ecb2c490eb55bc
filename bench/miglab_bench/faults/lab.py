"""A lab that is hurt and comes back: its processes, its engine, its disk, its clock, its GPUs.

Proxy, hub, pool and the students' containers are real ones.  Disk, clock, network and engine are
the harness's own (machine.py, engine.py): the machine's are not touched.  What ends by itself is
started again, as systemd would.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import httpx

from miglab_bench.faults import service
from miglab_bench.faults.engine import IMAGE, OwnEngine
from miglab_bench.faults.machine import LabDatabases, OwnClock, OwnDisk, OwnNetwork
from miglab_bench.faults.recorded_hub import HUB_CONFIG, HubLog
from miglab_bench.harness.processes import Process, log_ends, logs_below, start
from miglab_bench.harness.student import CheckFailed, wait_for
from miglab_bench.harness.temporary import ONE_ORIGIN, PATIENT, write_lab
from miglab_hub import lab_secrets
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.process_group import PR_SET_PDEATHSIG, libc
from miglab_hub.launch.up import plan_siblings
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_DOCKER
from miglab_pool.gpu.simulated.machine import SimulatedMachine

TIMEOUT_S = 2.0
PAUSE_S = 0.05
GPUS = 2
PARTS = ("proxy", "pool", "hub")
BOUND_S = 240.0
"""For everything that must come in the end: for a very busy machine, it is no measurement."""
TESTING = f"""
{PATIENT}
pool.holders_s = 1
pool.attach_s = 60
servers.create_timeout_s = 60
"""
Seen = TypeVar("Seen")


class FaultLab:
    """See the module; needs `OwnEngine.is_possible`.

    Attributes:
        machine: the simulated GPUs.
    """

    def __init__(self) -> None:
        self.parts: dict[str, Process] = {}
        with ExitStack() as opened:
            self.folder = Path(tempfile.mkdtemp(prefix="miglab-faults-"))
            opened.callback(shutil.rmtree, self.folder)
            opened.enter_context(logs_below(self.folder))
            self.hub_log = HubLog(self.folder / "hub.log")
            self._hub_config = self.folder / "hub_config.py"
            self._hub_config.write_text(HUB_CONFIG)
            self.clock = OwnClock(self.folder)
            self.disk = OwnDisk(self.folder / "state")
            opened.callback(self.disk.close)
            opened.callback(OwnNetwork().close)
            self.engine = OwnEngine(self.folder / "engine")
            opened.callback(self.engine.close)
            self._http = opened.enter_context(httpx.Client(timeout=TIMEOUT_S, trust_env=False))
            self.engine.start_with_image()
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
            opened.callback(lambda: self.end(signal.SIGKILL, *self.parts))
            self.wait(self.answers, BOUND_S, "hub and pool to answer")
            gpus = self.settings.simulated_state
            assert gpus is not None
            self.machine = SimulatedMachine(gpus)
            self.engine.use_simulated_gpus(gpus)
            self.close = opened.pop_all().close
        self.gpus = [gpu.uuid for gpu in self.machine.state().gpus]

    # -- the processes -------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Start what does not run; `wait` goes on doing so, as systemd would."""
        for name in PARTS:
            if name not in self.parts or self.parts[name].poll() is not None:
                self.parts[name] = self._start(name)

    def _start(self, name: str) -> Process:
        settings = self.settings
        siblings = {sibling.name: sibling for sibling in plan_siblings(settings, self._hub_config)}
        command, clock = siblings[name].command, self.clock.environment()
        if name == "pool":
            command = [sys.executable, "-m", service.__name__, str(settings.file)]
        lab_env = {ENV_CONFIG: str(settings.file), ENV_BRIDGE: settings.bridge}
        return start(
            self.folder / f"{name}.log",
            command,
            {**lab_env, **siblings[name].env, **(clock if name != "proxy" else {})},
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )

    def send(self, number: signal.Signals, *names: str) -> None:
        """Signal these; nothing to one that ended by itself."""
        for name in names:
            self.parts[name].send_signal(number)

    def end(self, number: signal.Signals, *names: str) -> None:
        """End these parts, and wait until they have ended."""
        self.send(number, *names)
        event = f"{' and '.join(names)} to end by {number.name}"
        ending = [self.parts[name] for name in names]
        wait_for(lambda: all(part.poll() is not None for part in ending), event, BOUND_S, PAUSE_S)

    def answers(self) -> bool:
        """Whether hub and pool answer through the proxy."""
        return self.reaches("hub/health") and self.reaches("services/pool/api/health")

    def reaches(self, path: str) -> bool:
        """Whether what is there answers through the proxy."""
        try:
            return self._http.get(f"{self.settings.bind_url}{path}").is_success
        except httpx.TransportError:
            return False

    def wait(self, look: Callable[[], Seen | None], bound_s: float, event: str) -> Seen:
        """Call ``look`` until it returns something true; restart parts that end meanwhile.

        Returns:
            What it returned.

        Raises:
            CheckFailed: it does not within the bound.
        """

        def look_now() -> Seen | None:
            self.keep_running()
            return look()

        try:
            return wait_for(look_now, event, bound_s, PAUSE_S)
        except CheckFailed as error:
            raise CheckFailed(f"{error}; the logs end:\n{self.log_ends()}") from None

    # -- what the operator asks the pool, which may be away at any time ------------------------

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response | None:
        """Return the pool's answer, also a refusal; None if it does not answer now."""
        try:
            headers = {"Authorization": f"Bearer {lab_secrets.read(self.settings.pool_secret)}"}
            url = f"{self.settings.pool_url}/api{path}"
            answer = self._http.request(method, url, headers=headers, json=body or None)
        except (httpx.TransportError, OSError):
            return None
        return None if answer.status_code >= 500 else answer

    def get(self, path: str) -> Any:
        """Return the pool's JSON; None if it does not answer now, or refuses."""
        answer = self.ask("GET", path)
        return None if answer is None or answer.is_error else answer.json()

    def must_ask(self, path: str) -> httpx.Response:
        """Wait for the pool's answer, which may be a refusal, and return it.

        Raises:
            CheckFailed: it never answers.
        """
        return self.wait(partial(self.ask, "GET", path), BOUND_S, f"an answer about {path}")

    def must_get(self, path: str) -> Any:
        """Wait for the pool's JSON and return it.

        Raises:
            CheckFailed: it never answers, or refuses.
        """
        answer = self.must_ask(path)
        if answer.is_error:
            raise CheckFailed(f"GET {path} gave HTTP {answer.status_code}: {answer.text}")
        return answer.json()

    # -- what they said ------------------------------------------------------------------------

    def log_ends(self) -> str:
        """Return the last lines of every process's log."""
        return "\n".join(lines for _, lines in log_ends())

    def keep_logs(self) -> Path:
        """Copy the logs to a folder that outlives the lab, and return it."""
        folder = Path(tempfile.mkdtemp(prefix="miglab-faults-logs-"))
        for log in (*self.folder.glob("*.log"), *self.folder.glob("engine/*.log")):
            shutil.copy(log, folder)
        return folder

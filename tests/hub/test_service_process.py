"""The pool service as a process: what ends it, what outlives it, what the proxy must not show."""

import contextlib
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from miglab_bench.harness.student import STEP_S, wait_for
from miglab_bench.harness.temporary import wait_until_ready, write_lab
from miglab_hub.lab_secrets import read
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.state.lock import AlreadyRunning, GpuLock

ASK = {"user": "alice", "server": "", "course": "everyone", "shape": "1g.5gb"}


class PoolProcess:
    """One pool service, started and ended as the launcher does it."""

    def __init__(self, folder: Path) -> None:
        self.file = write_lab(folder)
        self.settings: Settings = load(self.file, {})
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, descriptors: int | None = None) -> None:
        """Start it, with a hard limit of descriptors if there is to be one."""
        command = [sys.executable, "-m", "miglab_hub.service", "--config", str(self.file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        if descriptors is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        wait_until_ready(self.settings, self.process, self.log)

    def end(self, signal_number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(signal_number)
        return self.process.wait(STEP_S)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {read(self.settings.pool_secret)}"}
        url = f"{self.settings.pool_url}/api"
        return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=STEP_S)


@pytest.fixture(scope="module")
def one_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolProcess]:
    service = PoolProcess(tmp_path_factory.mktemp("service"))
    yield service
    if service.is_running():
        service.end(signal.SIGKILL)


@pytest.fixture
def service(one_service: PoolProcess) -> PoolProcess:
    """Running; a test that ended it leaves the next one to start it."""
    if not one_service.is_running():
        one_service.start()
    return one_service


def test_a_lease_outlives_a_kill(service: PoolProcess) -> None:
    """After SIGKILL and a new start, lease and place are what they were."""
    with service.client() as client:
        ticket = client.post("/tickets", json=ASK).json()
        while ticket["state"] == "waiting":
            ticket = client.get(f"/tickets/{ticket['id']}?wait_s=20").json()
        lease = client.post(f"/tickets/{ticket['id']}/take").json()
    service.end(signal.SIGKILL)
    service.start()
    with service.client() as client:
        after = client.get(f"/leases/{lease['id']}").json()
        assert client.get("/invariants").json() == []
    assert (after["uuids"], after["state"]) == (lease["uuids"], "granted")


def test_two_labs_on_one_gpu(service: PoolProcess, tmp_path: Path) -> None:
    """A lab with another state folder and the same GPU is refused, and told which one it is."""
    (gpu,) = SimulatedMachine(service.settings.state / "gpus").state().gpus
    with pytest.raises(AlreadyRunning, match=gpu.uuid):
        GpuLock(service.settings.state / "gpus" / f"miglab-{gpu.uuid}.lock")


def states(service: PoolProcess) -> list[str]:
    with service.client() as client:
        return [gpu["state"] for gpu in client.get("/pool").json()["gpus"]]


@pytest.mark.long
def test_gpus_that_hang(service: PoolProcess) -> None:
    """A hung GPU becomes unknown wherever it is shown; then all hang, also at the start."""
    machine = SimulatedMachine(service.settings.state / "gpus")
    settings = service.settings
    machine.break_gpu("stuck")
    wait_for(lambda: states(service) == ["unknown"], "the GPU to be unknown")
    metrics = httpx.get(f"{settings.pool_origin}/metrics", trust_env=False, timeout=STEP_S).text
    assert 'miglab_gpus{state="unknown"} 1.0' in metrics
    with service.client() as client:
        health = client.get("/health").json()
        assert (health["ok"], health["gpus_troubled"], health["is_stuck"]) == (False, 1, True)
    report = command("doctor", "--config", str(service.file))
    assert "has not come back" in report
    assert "unknown" in command("pool", "--config", str(service.file), "status")
    machine.hang()
    assert service.end(signal.SIGTERM) == 0
    service.start()
    assert service.end(signal.SIGTERM) == 0
    machine.break_gpu("ok")
    service.start()
    assert states(service) == ["ok"]


def command(*arguments: str) -> str:
    """What `miglab …` prints."""
    call = [sys.executable, "-m", "miglab_hub.cli", *arguments]
    return subprocess.run(call, capture_output=True, text=True, timeout=60).stdout


def test_metrics_lie_outside_the_prefix(service: PoolProcess) -> None:
    """What the proxy passes on has no metrics; the listener's root has."""
    settings = service.settings
    below = httpx.get(f"{settings.pool_url}/metrics", trust_env=False, timeout=STEP_S)
    root = httpx.get(f"{settings.pool_origin}/metrics", trust_env=False, timeout=STEP_S)
    assert (below.status_code, root.status_code) == (404, 200)
    student = httpx.get(f"{settings.student_api_url}/metrics", trust_env=False, timeout=STEP_S)
    assert student.status_code == 404


def test_sigterm_ends_it_cleanly(service: PoolProcess) -> None:
    """Status 0, soon, though somebody follows the events; the stream ends with it."""
    with service.client() as client, client.stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: pool"
        assert service.end(signal.SIGTERM) == 0
        assert all(not line.startswith("event: error") for line in lines)


def half_requests(address: tuple[str, int], count: int) -> list[socket.socket]:
    """Connections that begin a request and leave it at that.

    Every eighth asks in full: its answer, or its end, says that those before it were accepted.  A
    backlog that is full makes the next connection wait for a second.
    """
    sockets = []
    for number in range(count):
        connection = socket.create_connection(address, timeout=STEP_S)
        sockets.append(connection)
        is_whole = number % 8 == 7
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /api/lease HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * is_whole)
            if is_whole:
                connection.recv(1)
    return sockets


def test_students_connections_leave_the_spawner_room(one_service: PoolProcess) -> None:
    """More half requests than the process has descriptors: the spawner is served as ever."""
    service = one_service
    if service.is_running():
        service.end(signal.SIGTERM)
    service.start(descriptors=512)
    student = ("127.0.0.1", service.settings.student_port)
    with contextlib.ExitStack() as stack, service.client() as client:
        for connection in half_requests(student, 600):
            stack.enter_context(connection)
        answer = client.post("/tickets", json={**ASK, "user": "bob"})
        assert answer.status_code == 201
    assert service.log.stat().st_size < 100_000

"""The Docker engine goes away and comes back while a student holds a slice."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

import docker
from miglab_api.holders import Liveness, processes_of
from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketRequest
from miglab_bench.harness.student import wait_for
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.worker.holders import HostHolders

from .conftest import STAYS, engine_script

pytestmark = [
    pytest.mark.docker,
    pytest.mark.long,
    # docker-py 7.2 leaves the socket of a refused connection to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

LAB = "restart-test"


class SecondEngine:
    """An engine of the test's own, beside the machine's, to stop and start at will."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.url = f"unix://{home}/docker.sock"

    def do(self, *arguments: str) -> None:
        """Start or stop it, or let it hand over simulated GPUs."""
        process = engine_script("--home", str(self.home), *arguments)
        assert process.returncode == 0, process.stderr


def unmount_below(folder: Path) -> None:
    """Undo the mounts an engine leaves behind in its data folder."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([mount for mount in mounted if mount.startswith(f"{folder}/")]):
        subprocess.run(["umount", place], check=True)


@pytest.fixture
def second(engine: docker.DockerClient, base_image: str) -> Iterator[SecondEngine]:
    """A running second engine that has the base image; all of it goes after the test."""
    if os.geteuid() != 0:
        pytest.skip("a second engine needs root")
    home = Path(tempfile.mkdtemp(prefix="miglab-engine-"))
    second_engine = SecondEngine(home)
    second_engine.do("start")
    try:
        with closing(docker.DockerClient(base_url=second_engine.url)) as client:
            client.images.load(engine.images.get(base_image).save(named=True))
        yield second_engine
    finally:
        second_engine.do("start")
        with closing(docker.DockerClient(base_url=second_engine.url)) as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        second_engine.do("stop")
        unmount_below(home)
        shutil.rmtree(home)


@pytest.fixture
def pool(machine: SimulatedMachine, second: SecondEngine, tmp_path: Path) -> Iterator[Pool]:
    """A pool that asks the second engine after its holders."""
    second.do("simulate", str(machine.folder))
    settings = PoolSettings(courses={"everyone": Course(title="Everyone", shapes=("1g.5gb",))})
    driver = open_gpus(simulated_state=machine.folder)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with closing(docker.APIClient(base_url=second.url, timeout=5)) as client:
        yield Pool(settings, ledger, driver, HostHolders(second.url, LAB, client=client))
    driver.close()
    gc.collect()  # here, where the warning about the sockets is expected


def settle(pool: Pool) -> None:
    """Turns and acts, until nothing more is due."""
    for _ in range(20):
        pool.turn()
        while act := pool.next_job():
            pool.perform(act)


def create_server(
    pool: Pool, second: SecondEngine, user: str = "ada", network: str = "none"
) -> tuple[LeaseView, str]:
    """A lease with a container behind it that is to be started, as the spawner makes it."""
    pool.reconcile()
    ticket = pool.tickets.request(TicketRequest(user=user, course="everyone", shape="1g.5gb"))
    settle(pool)
    lease = pool.tickets.take(ticket.id)
    labels = {"miglab.lab": LAB, "miglab.lease": str(lease.id)}
    device_request = docker.types.DeviceRequest(
        driver="nvidia", device_ids=list(lease.uuids), capabilities=[["gpu"]]
    )
    with closing(docker.DockerClient(base_url=second.url)) as client:
        container = client.containers.create(
            "miglab-base",
            STAYS,
            name=f"{user}-{uuid.uuid4().hex[:8]}",
            labels=labels,
            network_mode=network,
            device_requests=[device_request],
        )
    pool.leases.attach(lease.id, lease.generation, f"container:{container.id}")
    return lease, str(container.id)


def start_server(pool: Pool, second: SecondEngine, user: str = "ada") -> tuple[LeaseView, str]:
    """A lease with a running container behind it."""
    lease, number = create_server(pool, second, user)
    with closing(docker.DockerClient(base_url=second.url)) as client:
        client.containers.get(number).start()
    return pool.leases.running(lease.id), number


def die_while_starting(second: SecondEngine, number: str) -> None:
    """Kill the engine when the container's first process is there, and before it knows that.

    Halted at the first sign of the start, it cannot learn of the rest.  On the host's network the
    start needs nothing more of the engine.
    """
    engine = int((second.home / "dockerd.pid").read_text())
    with closing(docker.APIClient(base_url=second.url)) as client:
        asking = threading.Thread(target=ask_for_start, args=(client, number))
        asking.start()
        wait_for(lambda: has_shim(number), "the start", pause_s=0.001)
        os.kill(engine, signal.SIGSTOP)
        wait_for(lambda: is_made(number), "the first process")
        os.kill(engine, signal.SIGKILL)
        asking.join()
    wait_for(lambda: not Path(f"/proc/{engine}").exists(), "the engine's end")


def commands_of(number: str) -> list[str]:
    """The command lines that name the container."""
    listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if number in line]


def has_shim(number: str) -> bool:
    """Whether the engine has begun to start the container."""
    return any("containerd-shim" in command for command in commands_of(number))


def is_made(number: str) -> bool:
    """Whether its first process is there, and who made it has ended: that one would undo it."""
    is_making = any(command.startswith("runc") for command in commands_of(number))
    return bool(processes_of(f"container:{number}")) and not is_making


def ask_for_start(client: docker.APIClient, number: str) -> None:
    """Nobody answers."""
    with contextlib.suppress(docker.errors.DockerException, requests.RequestException):
        client.start(number)


def test_a_lease_outlives_a_restart_of_the_engine(pool: Pool, second: SecondEngine):
    """While the engine is away nothing is freed; back again, the server holds its slice."""
    lease, container = start_server(pool, second)
    engine = pool.worker.holders.engine()
    assert engine
    second.do("stop")
    pool.reconcile()
    settle(pool)
    assert pool.worker.holders.probe(f"container:{container}") is Liveness.UNKNOWN
    assert pool.leases.find(lease.id).state is LeaseState.RUNNING
    second.do("start")
    pool.reconcile()
    settle(pool)
    assert pool.worker.holders.engine() == engine
    assert pool.leases.find(lease.id).uuids == lease.uuids
    assert pool.leases.find(lease.id).state is LeaseState.RUNNING
    with closing(docker.DockerClient(base_url=second.url)) as client:
        assert client.containers.get(container).status == "running"
    assert pool.check_invariants() == []


def test_a_release_waits_for_the_engine(pool: Pool, second: SecondEngine):
    """Asked back while the engine is away, a slice is free only after the 404 for its holder."""
    lease, container = start_server(pool, second)
    second.do("stop")
    pool.leases.release(lease.id, actor="ada", reason="done")
    settle(pool)
    assert pool.leases.find(lease.id).state is LeaseState.RELEASING
    second.do("start")
    with closing(docker.DockerClient(base_url=second.url)) as client:
        client.containers.get(container).remove(force=True)
    pool.reconcile()
    settle(pool)
    assert pool.leases.find(lease.id).state is LeaseState.RELEASED
    assert pool.check_invariants() == []


def test_a_start_that_its_engine_has_forgotten(pool: Pool, second: SecondEngine):
    """It removes the container and leaves its processes: they end before the slice is free."""
    start_server(pool, second, "bob")  # with nothing running an engine forgets nothing
    lease, number = create_server(pool, second, network="host")
    die_while_starting(second, number)
    second.do("start")
    with closing(docker.APIClient(base_url=second.url)) as client:
        assert client.inspect_container(number)["State"]["Status"] == "created"
        client.remove_container(number, force=True)
    assert processes_of(f"container:{number}")
    pool.leases.release(lease.id, actor="ada", reason="done")
    settle(pool)
    assert pool.leases.find(lease.id).state is LeaseState.RELEASED
    assert processes_of(f"container:{number}") == []
    assert pool.check_invariants() == []


def test_an_engine_that_takes_its_containers_down(pool: Pool, second: SecondEngine):
    """A container that ended with its engine may start again: its slice is freed at its removal."""
    second.do("stop")
    second.do("--no-live-restore", "start")
    lease, container = start_server(pool, second)
    second.do("stop")
    second.do("--no-live-restore", "start")
    pool.reconcile()
    settle(pool)
    with closing(docker.DockerClient(base_url=second.url)) as client:
        ended = client.containers.get(container)
        assert ended.status == "exited"
        assert pool.leases.find(lease.id).state is LeaseState.RUNNING
        ended.remove()
    pool.reconcile()
    settle(pool)
    assert pool.leases.find(lease.id).state is LeaseState.RELEASED
    assert pool.leases.find(lease.id).reason
    assert pool.check_invariants() == []

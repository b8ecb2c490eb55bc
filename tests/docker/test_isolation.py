"""Networks of servers' own, where the hub is a container: it reaches all, and they not one another.

On the network that all share where the hub is on the host, test_intruders tries what is reached.
"""

import contextlib
import socket
import time
import uuid

import pytest
from docker.models.containers import Container

from miglab_bench.harness.student import STEP_S
from miglab_spawner.containers import networks
from miglab_spawner.containers.server_labels import ServerLabels

pytestmark = [pytest.mark.docker, pytest.mark.long]

PORT = 8000
SERVE = ["python3", "-m", "http.server", str(PORT)]
LAB = "miglab-test"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()"


def reaches(container: Container, host: str, port: int) -> bool:
    """Whether a program in the container can connect."""
    code, _ = container.exec_run(["python3", "-c", CONNECT, host, str(port)])
    return code == 0


def address(container: Container, network: str) -> str:
    """The container's address on a network."""
    container.reload()
    return str(container.attrs["NetworkSettings"]["Networks"][network]["IPAddress"])


def wait_for_server(host: str) -> None:
    """Wait until the server at ``host`` takes connections from here."""
    end = time.monotonic() + STEP_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, PORT), 1):
            return
    pytest.fail(f"{host} does not answer")


def test_a_hub_in_a_container_reaches_all_and_they_not_one_another(engine, base_image: str, start):
    """With a network per server only what is joined reaches them, and they only that."""
    lab = f"{LAB}-{uuid.uuid4().hex[:8]}"
    hub = start(base_image, SERVE, name=f"{lab}-hub")
    network_names = [f"{lab}-net-{place}" for place in range(2)]
    servers = []
    try:
        for net in network_names:
            networks.ensure_server_network(engine.api, net, ServerLabels(lab, net, ""), [hub.name])
            servers.append(start(base_image, SERVE, network=net))
        addresses = [
            address(server, net) for server, net in zip(servers, network_names, strict=True)
        ]
        for host in addresses:
            wait_for_server(host)
        assert all(reaches(hub, host, PORT) for host in addresses)
        assert all(reaches(server, hub.name, PORT) for server in servers)
        assert not reaches(servers[0], addresses[1], PORT)
        assert not reaches(servers[1], addresses[0], PORT)
    finally:
        for container in (*servers, hub):
            container.kill()
        for net in network_names:
            networks.remove_server_network(engine.api, net, ServerLabels(lab, net, ""))
    assert engine.networks.list(names=network_names) == []


def test_a_network_that_was_left_is_not_taken_from_the_next_server(engine, base_image, monkeypatch):
    """It is as old as its first server: a sweep between network and container would remove it."""
    lab = f"miglab-test-{uuid.uuid4().hex[:8]}"
    server, labels = f"{lab}-ada", ServerLabels(lab, "ada", "")
    networks.ensure_server_network(engine.api, f"{server}{networks.SUFFIX}", labels, [])
    (old_network,) = engine.networks.list(names=[server])
    monkeypatch.setattr(
        networks, "_age_s", lambda network: 1e6 if network["Id"] == old_network.id else 0.0
    )
    networks.ensure_server_network(engine.api, f"{server}{networks.SUFFIX}", labels, [])
    try:
        assert networks.remove_unused(engine.api, lab) == []
        container = engine.containers.create(
            base_image, ["true"], name=server, network=f"{server}{networks.SUFFIX}"
        )
        (new_network,) = engine.networks.list(names=[server])
        networks.ensure_server_network(engine.api, f"{server}{networks.SUFFIX}", labels, [])
        assert engine.networks.list(names=[server]) == [new_network]
        container.remove()
    finally:
        networks.remove_server_network(engine.api, f"{server}{networks.SUFFIX}", labels)

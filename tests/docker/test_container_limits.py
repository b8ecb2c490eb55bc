"""What a container may still do to its host: swap, open files, disk, networks, egress."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import docker
from miglab_hub.egress import METADATA, examine_egress
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import students_bridge
from miglab_hub.settings.lab_toml import Settings, load
from miglab_spawner.containers import networks
from miglab_spawner.containers.host_config import GIB, limits_of, soft_host_config
from miglab_spawner.containers.networks import SUFFIX
from miglab_spawner.containers.server_labels import ServerLabels

from .conftest import installed

pytestmark = [pytest.mark.docker, pytest.mark.long]

LAB = "miglab-test"
SAYS_LIMITS = (
    "import resource as r\nprint(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE))"
)


@pytest.fixture
def lab(engine: docker.DockerClient, tmp_path: Path, base_image: str) -> Settings:
    """The settings of a lab in containers on this engine."""
    file = tmp_path / "lab.toml"
    file.write_text(
        f"""
        lab.name = "miglab-{uuid.uuid4().hex[:8]}"
        accept_risk.students_can_act_as_staff = true
        [servers]
        spawner = "docker"
        image = "{base_image}"
        [courses.everyone]
        shapes = ["cpu"]
        """
    )
    return load(file, {})


@contextmanager
def container(engine: docker.DockerClient, image: str, code: str) -> Iterator[Any]:
    """A container as the spawner makes it, that has run this code."""
    config = soft_host_config(limits_of("cpu", {}), {})
    host = engine.api.create_host_config(**config)
    container = engine.api.create_container(image, ["python3", "-c", code], host_config=host)
    try:
        engine.api.start(container)
        engine.api.wait(container)
        yield container
    finally:
        engine.api.remove_container(container, force=True)


def test_no_swap_no_core_and_so_many_files(engine: docker.DockerClient, base_image: str) -> None:
    """Memory and swap together are the shape's memory."""
    with container(engine, base_image, SAYS_LIMITS) as created:
        host = engine.api.inspect_container(created)["HostConfig"]
        printed = engine.api.logs(created).decode().strip()
    assert host["Memory"] == host["MemorySwap"] == 4 * GIB
    assert printed == "(16384, 16384) (0, 0)"


def test_a_network_that_keeps_nobody_apart_stops_the_lab(
    engine: docker.DockerClient, lab: Settings
) -> None:
    """Made by hand, without the option: refused before anything starts, with what to do."""
    open_sign_in_notice = engine.networks.create(lab.network)
    try:
        with pytest.raises(StartError, match=r"reach one another.*docker network rm"):
            students_bridge(lab)
    finally:
        open_sign_in_notice.remove()


def test_networks_go_after_their_servers(
    engine: docker.DockerClient, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose container the pool removed goes; one with a stopped server, or a new one, stays."""
    lab = f"{LAB}-{uuid.uuid4().hex[:8]}"
    for name in ("left", "stopped"):
        labels = ServerLabels(lab, name, "")
        networks.ensure_server_network(engine.api, f"{lab}-{name}{SUFFIX}", labels, ())
    networks.ensure_shared_network(engine.api, f"{lab}-shared", lab)
    server = engine.api.create_container(base_image, ["true"], name=f"{lab}-stopped")
    try:
        assert networks.remove_unused(engine.api, lab) == []
        monkeypatch.setattr(networks, "UNUSED_GRACE_S", 0.0)
        assert networks.remove_unused(engine.api, lab) == [f"{lab}-left{SUFFIX}"]
        names = {network.name for network in engine.networks.list(names=[lab])}
        assert names == {f"{lab}-stopped{SUFFIX}", f"{lab}-shared"}
    finally:
        engine.api.remove_container(server, force=True)
        for network in engine.networks.list(names=[lab]):
            network.remove()


def test_the_rules_that_doctor_prints_hold(engine: docker.DockerClient, lab: Settings) -> None:
    """Without them a server reaches the host; with them the probe finds it closed."""
    if subprocess.run(["iptables", "-S", "DOCKER-USER"], capture_output=True).returncode:
        pytest.skip("no rights on the engine's firewall")
    students_bridge(lab)  # with the hub on the host: one network for all
    (before,) = examine_egress(lab)
    assert before.is_wrong and f":{lab.pool_port}" in before.observation
    rules = [line for line in before.remedy.splitlines() if line.startswith("iptables ")]
    try:
        with installed(rules):
            (after,) = examine_egress(lab)
            assert not after.is_wrong, after.observation
    finally:
        engine.networks.get(lab.network).remove()
    assert METADATA in after.observation

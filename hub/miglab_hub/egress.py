"""What a student's container reaches beyond the lab: tried from one, and the rules that end it.

Unlike the rest of doctor it starts something, a container without rights that it removes again, so
it runs only when asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from docker.errors import DockerException  # noqa: TID251 - doctor may ask the Docker engine

import docker  # noqa: TID251
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.worker.health_findings import HealthFinding, fine, wrong
from miglab_spawner.containers import egress, networks

LONGEST_S = 60
SSH, HTTP = 22, 80


def examine_egress(settings: Settings) -> Iterator[HealthFinding]:
    """Try the host and the metadata service from a container like a student's."""
    if settings.servers.spawner != "docker":
        yield fine("egress", "not tested: students' servers are local processes without isolation")
        return
    try:
        api = docker.APIClient(base_url=settings.docker_url, timeout=LONGEST_S)
        try:
            yield _tried(api, settings)
        finally:
            api.close()
    except (DockerException, requests.RequestException) as error:
        yield wrong(
            "egress", f"not tested: {error}", "check that the engine runs and has the image"
        )


def _tried(api: Any, settings: Settings) -> HealthFinding:
    with _network(api, settings) as name:
        found = api.inspect_network(name)
        host = networks.gateway(found)
        targets = [f"{egress.METADATA}:{HTTP}", f"{host}:{SSH}", f"{host}:{settings.pool_port}"]
        said = _run(api, settings, name, targets)
        subnets = [str(config["Subnet"]) for config in found["IPAM"]["Config"]]
        if name.endswith(networks.OWN):  # each server has another: where they come from, if said
            pools = api.info().get("DefaultAddressPools") or ()
            subnets = [str(pool["Base"]) for pool in pools]
    if open_to := egress.reached(said):
        do = _what_to_do(subnets, (settings.hub_port, settings.student_port))
        return wrong("egress", f"students' containers can reach {', '.join(open_to)}", do)
    return fine("egress", f"students' containers cannot reach {', '.join(targets)}")


def _what_to_do(subnets: list[str], ports: tuple[int, int]) -> str:
    if not subnets:
        return (
            "each server's network has a different address: set default-address-pools in "
            "/etc/docker/daemon.json, restart the engine, and run this again to get the rules"
        )
    rules = "\n".join(egress.rules(subnets, ports))
    return f"run this as root on the host, and make it survive reboots:\n{rules}"


def _run(api: Any, settings: Settings, network: str, targets: list[str]) -> str:
    """What the probe prints in a container of the students' image.

    Raises:
        DockerException: it could not be run.
    """
    made = api.create_container(
        settings.servers.image,
        ["python3", "-c", egress.PROBE, *targets],
        entrypoint=[],
        host_config=api.create_host_config(
            network_mode=network, cap_drop=["ALL"], security_opt=["no-new-privileges"]
        ),
    )
    try:
        api.start(made)
        api.wait(made, timeout=LONGEST_S)
        return str(api.logs(made, stderr=False).decode())
    finally:
        api.remove_container(made, force=True)


@contextmanager
def _network(api: Any, settings: Settings) -> Iterator[str]:
    """The students' network; where each server has its own, one like those, removed at the end."""
    shared = settings.network
    if api.networks(names=[f"^{shared}$"]):
        yield shared
        return
    name = f"{settings.lab_id}-doctor{networks.OWN}"
    networks.ensure_own(api, name, settings.lab_id, ())
    try:
        yield name
    finally:
        networks.remove_own(api, name, settings.lab_id)

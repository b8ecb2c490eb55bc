"""What a student's container reaches beyond the lab: tried from one, and the rules that end it.

Unlike the rest of doctor it starts something, a container without rights that it removes again, so
it runs only when asked for.  miglab changes no firewall: the operator installs the rules.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from docker.errors import DockerException  # noqa: TID251 - doctor may ask the Docker engine

import docker  # noqa: TID251
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.worker.health_findings import HealthFinding, fine, wrong
from miglab_spawner.containers import networks
from miglab_spawner.containers.server_labels import ServerLabels

METADATA = "169.254.169.254"
PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
FORWARD, HOST = "MIGLAB-FORWARD", "MIGLAB-HOST"
_NO = "REJECT --reject-with icmp-admin-prohibited"  # a plain REJECT looks like a closed port

#: Says for each ``host:port`` given whether anything there answered, be it with a refusal.
PROBE = """
import errno, socket, sys
for where in sys.argv[1:]:
    host, port = where.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 3).close()
        is_reached = True
    except OSError as error:
        is_reached = error.errno == errno.ECONNREFUSED
    print(where, "reached" if is_reached else "not-reached")
"""


def firewall_rules(subnets: Sequence[str], ports: Iterable[int]) -> list[str]:
    """Return iptables commands that allow containers the internet and these host ports.

    Args:
        subnets: of the students' networks.
        ports: TCP ports of this host that they need: the hub's API and the student listener.
    """
    student_networks = [f"iptables -A {FORWARD} -d {subnet} -j RETURN" for subnet in subnets]
    private = [f"iptables -A {FORWARD} -d {network} -j {_NO}" for network in PRIVATE]
    open_ports = [f"iptables -A {HOST} -p tcp --dport {port} -j RETURN" for port in ports]
    jumps = [
        f"iptables -I {chain} -s {subnet} -j {target}"
        for subnet in subnets
        for chain, target in (("DOCKER-USER", FORWARD), ("INPUT", HOST))
    ]
    answers = "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    return [
        f"iptables -N {FORWARD}",
        f"iptables -A {FORWARD} {answers}",
        *student_networks,
        *private,
        f"iptables -N {HOST}",
        f"iptables -A {HOST} {answers}",
        *open_ports,
        f"iptables -A {HOST} -j {_NO}",
        *jumps,
    ]


def reached_addresses(printed: str) -> list[str]:
    """Return the addresses that `PROBE` reached, from its output."""
    lines = (line.split() for line in printed.splitlines())
    return [fields[0] for fields in lines if len(fields) == 2 and fields[1] == "reached"]


LONGEST_S = 60
SSH, HTTP = 22, 80


def examine_egress(settings: Settings) -> Iterator[HealthFinding]:
    """Try the host and the metadata service from a container like a student's."""
    if settings.servers.spawner != "docker":
        yield fine("egress", "not tested: students' servers are local processes without isolation")
        return
    try:
        with docker.APIClient(base_url=settings.docker_url, timeout=LONGEST_S) as api:
            yield _probe_egress(api, settings)
    except (DockerException, requests.RequestException) as error:
        yield wrong(
            "egress", f"not tested: {error}", "check that the engine runs and has the image"
        )


def _probe_egress(api: Any, settings: Settings) -> HealthFinding:
    with _students_network(api, settings) as name:
        network = api.inspect_network(name)
        host = networks.gateway_address(network)
        targets = [f"{METADATA}:{HTTP}", f"{host}:{SSH}", f"{host}:{settings.pool_port}"]
        printed = _run_probe(api, settings, name, targets)
        subnets = [str(config["Subnet"]) for config in network["IPAM"]["Config"]]
        if name.endswith(networks.SUFFIX):  # each server has its own
            pools = api.info().get("DefaultAddressPools") or ()
            subnets = [str(pool["Base"]) for pool in pools]
    if open_to := reached_addresses(printed):
        advice = _firewall_advice(subnets, (settings.hub_port, settings.student_port))
        return wrong("egress", f"students' containers can reach {', '.join(open_to)}", advice)
    return fine("egress", f"students' containers cannot reach {', '.join(targets)}")


def _firewall_advice(subnets: list[str], ports: tuple[int, int]) -> str:
    if not subnets:
        return (
            "each server's network has a different address: set default-address-pools in "
            "/etc/docker/daemon.json, restart the engine, and run this again to get the rules"
        )
    printed = "\n".join(firewall_rules(subnets, ports))
    return f"run this as root on the host, and make it survive reboots:\n{printed}"


def _run_probe(api: Any, settings: Settings, network: str, targets: list[str]) -> str:
    """Run the probe in a container of the students' image; return its output.

    Raises:
        DockerException: it could not be run.
    """
    container = api.create_container(
        settings.servers.image,
        ["python3", "-c", PROBE, *targets],
        entrypoint=[],
        host_config=api.create_host_config(
            network_mode=network, cap_drop=["ALL"], security_opt=["no-new-privileges"]
        ),
    )
    try:
        api.start(container)
        api.wait(container, timeout=LONGEST_S)
        return str(api.logs(container, stderr=False).decode())
    finally:
        api.remove_container(container, force=True)


@contextmanager
def _students_network(api: Any, settings: Settings) -> Iterator[str]:
    """Yield the students' network, or a temporary one like a server's own."""
    shared = settings.network
    if api.networks(names=[f"^{shared}$"]):
        yield shared
        return
    name = f"{settings.lab_id}-doctor{networks.SUFFIX}"
    labels = ServerLabels(settings.lab_id, "", "doctor")
    networks.ensure_server_network(api, name, labels, ())
    try:
        yield name
    finally:
        networks.remove_server_network(api, name, labels)

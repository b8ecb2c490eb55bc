"""Docker networks on which students' servers reach neither one another nor each other's hub side.

Two ways.  With the hub on the host: one bridge for all with ``enable_icc=false``; the hub reaches
the containers, they reach the bridge's address.  With the hub in a container: one network per
server, with the hub (and the proxy, and the pool's student side) joined; there ``enable_icc`` would
cut off the hub as well (moby#48356).

Synchronous, over a docker-py ``APIClient``; the spawner calls it from its Docker threads.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from docker.errors import APIError, NotFound  # noqa: TID251 - one of the rooms that talk to Docker

from miglab_api.holders import LAB_LABEL
from miglab_spawner.containers.server_labels import ServerLabels, are_server_labels

ICC = "com.docker.network.bridge.enable_icc"
BUILT_IN = frozenset({"", "bridge", "host", "none", "default"})
SUFFIX = "-net"  # the end of the name of one server's network
UNUSED_GRACE_S = 600.0  # longer than a container takes from its network to its start
_ALREADY_THERE = (403, 409)


def can_be_created(name: str) -> bool:
    """Whether Docker can create a network of this name."""
    return name not in BUILT_IN and not name.startswith("container:")


def ensure_shared_network(api: Any, name: str, lab: str) -> dict[str, Any]:
    """Return the bridge for all servers; create it without ``icc`` if it is missing.

    An existing network is used as it is: `isolates_containers` says whether servers are apart.

    Returns:
        Docker's inspect of it; `gateway_address` reads the address at which servers reach the host.
    """
    try:
        network: dict[str, Any] = api.inspect_network(name)
    except NotFound:
        _create(api, name, {LAB_LABEL: lab}, {ICC: "false"})
        network = api.inspect_network(name)
    return network


class NetworkTaken(Exception):
    """A network has the server's name, but was not made for it; it is not used."""


def ensure_server_network(api: Any, name: str, server: ServerLabels, joined: Sequence[str]) -> None:
    """Create a network for one server, and connect the lab's containers to it.

    One that an earlier server left behind is made anew: it is old, and until the container is there
    `remove_unused` would take it for unused.

    Raises:
        NetworkTaken: a network of this name is not the server's.
    """
    network = _inspect_network(api, name)
    if network is not None:
        if not server.matches_server(network.get("Labels")):
            raise NetworkTaken(name)
        if not _container_exists(api, name.removesuffix(SUFFIX)):
            _remove(api, network)
            network = None
    if network is None:
        _create(api, name, server.as_labels(), {})
    join_containers(api, name, joined)


def join_containers(api: Any, network: str, containers: Sequence[str]) -> None:
    """Connect the lab's containers to a server's network, unless they are connected."""
    for container in containers:
        try:
            api.connect_container_to_network(container, network, aliases=[container])
        except APIError as error:
            if error.status_code not in _ALREADY_THERE:
                raise


def remove_server_network(api: Any, name: str, server: ServerLabels) -> None:
    """Remove a server's network, once the server itself has left it.

    Only if it was made for what the server holds; without a lease, another server of the same
    labels may run on it, which was started since a backup.
    """
    network = _inspect_network(api, name)
    if network is None or not server.matches_lease(network.get("Labels")):
        return
    on_it = (network.get("Containers") or {}).values()
    if name.removesuffix(SUFFIX) not in {container["Name"] for container in on_it}:
        _remove(api, network)


def remove_unused(api: Any, lab: str) -> list[str]:
    """Remove the networks of servers whose container is gone; return the removed names.

    The hub removes a server's network when it stops the server, but not where the pool removed the
    container, or where the hub died in between.  One that is new may wait for its container; one
    without a server's labels is shared, whatever its name.
    """
    removed = []
    for listed in api.networks(filters={"label": f"{LAB_LABEL}={lab}"}):
        name = str(listed["Name"])
        server = name.removesuffix(SUFFIX)
        if (
            not are_server_labels(listed.get("Labels"))
            or _age_s(listed) < UNUSED_GRACE_S
            or _container_exists(api, server)
        ):
            continue
        network = _inspect_network(api, str(listed["Id"]))
        if network is not None:
            _remove(api, network)
            removed.append(name)
    return removed


def _inspect_network(api: Any, name: str) -> dict[str, Any] | None:
    """Return Docker's inspect of a network, with its containers; None if there is none."""
    try:
        return dict(api.inspect_network(name))
    except NotFound:
        return None


def _remove(api: Any, network: dict[str, Any]) -> None:
    """Remove a network by its id, since its name may be another's by now."""
    try:
        for container in network.get("Containers") or {}:
            api.disconnect_container_from_network(container, network["Id"], force=True)
        api.remove_network(network["Id"])
    except NotFound:  # another one removed it just now
        return


def _container_exists(api: Any, container: str) -> bool:
    try:
        api.inspect_container(container)
    except NotFound:
        return False
    return True


def _age_s(inspected: dict[str, Any]) -> float:
    """Return the age; the engine writes nanoseconds, which Python 3.11 cannot parse."""
    created = datetime.fromisoformat(f"{inspected['Created'][:19]}+00:00")
    return (datetime.now(UTC) - created).total_seconds()


def isolates_containers(inspected: dict[str, Any]) -> bool:
    """Whether containers on this network cannot reach one another."""
    return (inspected.get("Options") or {}).get(ICC) == "false"


def gateway_address(inspected: dict[str, Any]) -> str:
    """Return the host's address on a bridge; empty if Docker does not say."""
    for config in (inspected.get("IPAM") or {}).get("Config") or ():
        if config.get("Gateway"):
            return str(config["Gateway"])
    return ""


def _create(api: Any, name: str, labels: dict[str, str], options: dict[str, str]) -> None:
    try:
        api.create_network(
            name, driver="bridge", options=options, labels=labels, check_duplicate=True
        )
    except APIError as error:
        if error.status_code not in _ALREADY_THERE:  # another start made it just now
            raise

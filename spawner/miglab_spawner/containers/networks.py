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

ICC = "com.docker.network.bridge.enable_icc"
BUILT_IN = frozenset({"", "bridge", "host", "none", "default"})
OWN = "-net"  # the end of the name of one server's network
NEW_S = 600.0  # longer than a container takes from its network to its start
_ALREADY_THERE = (403, 409)


def is_ours_to_make(name: str) -> bool:
    """Whether a network of this name can be made at all."""
    return name not in BUILT_IN and not name.startswith("container:")


def ensure_shared(api: Any, name: str, lab: str) -> dict[str, Any]:
    """The bridge for all servers, made without ``icc`` if it is missing.

    A network that is there is used as it is: `keeps_apart` says whether it keeps servers apart.

    Returns:
        Docker's inspect of it; `gateway` reads the address at which servers reach the host.
    """
    try:
        found: dict[str, Any] = api.inspect_network(name)
    except NotFound:
        _create(api, name, lab, {ICC: "false"})
        found = api.inspect_network(name)
    return found


def ensure_own(api: Any, name: str, lab: str, joined: Sequence[str]) -> None:
    """A network for one server, with the containers of the lab joined.

    One that an earlier server left behind is made anew: it is old, and until the container is there
    `remove_unused` would take it for unused.
    """
    if not _is_there(api, name.removesuffix(OWN)):
        remove_own(api, name, lab)
    try:
        api.inspect_network(name)
    except NotFound:
        _create(api, name, lab, {})
    for container in joined:
        try:
            api.connect_container_to_network(container, name, aliases=[container])
        except APIError as error:
            if error.status_code not in _ALREADY_THERE:
                raise


def remove_own(api: Any, name: str, lab: str) -> None:
    """Remove a server's network and whoever is joined to it; only one of this lab's."""
    try:
        found = api.inspect_network(name)
        if (found.get("Labels") or {}).get(LAB_LABEL) != lab:
            return
        for container in found.get("Containers") or {}:
            api.disconnect_container_from_network(container, name, force=True)
        api.remove_network(name)
    except NotFound:
        return


def remove_unused(api: Any, lab: str) -> list[str]:
    """Remove the networks of servers whose container is gone; the names of those removed.

    The hub removes a server's network when it stops the server, but not where the pool removed the
    container, or where the hub died in between.  One that is new may wait for its container.
    """
    removed = []
    for found in api.networks(filters={"label": f"{LAB_LABEL}={lab}"}):
        name = str(found["Name"])
        server = name.removesuffix(OWN)
        if server == name or _age_s(found) < NEW_S or _is_there(api, server):
            continue
        remove_own(api, name, lab)
        removed.append(name)
    return removed


def _is_there(api: Any, container: str) -> bool:
    try:
        api.inspect_container(container)
    except NotFound:
        return False
    return True


def _age_s(inspected: dict[str, Any]) -> float:
    """The engine says nanoseconds, which Python does not read."""
    made = datetime.fromisoformat(f"{inspected['Created'][:19]}+00:00")
    return (datetime.now(UTC) - made).total_seconds()


def keeps_apart(inspected: dict[str, Any]) -> bool:
    """Whether containers on this network cannot reach one another."""
    return (inspected.get("Options") or {}).get(ICC) == "false"


def gateway(inspected: dict[str, Any]) -> str:
    """The host's address on a bridge; empty if Docker does not say."""
    for config in (inspected.get("IPAM") or {}).get("Config") or ():
        if config.get("Gateway"):
            return str(config["Gateway"])
    return ""


def _create(api: Any, name: str, lab: str, options: dict[str, str]) -> None:
    try:
        api.create_network(
            name, driver="bridge", options=options, labels={LAB_LABEL: lab}, check_duplicate=True
        )
    except APIError as error:
        if error.status_code not in _ALREADY_THERE:  # another start made it just now
            raise

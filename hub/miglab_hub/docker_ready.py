"""Whether the Docker engine can carry the lab: it answers, has the image, and has the network."""

from typing import TYPE_CHECKING

from docker.errors import DockerException, ImageNotFound, NotFound  # noqa: TID251 -- as above

import docker  # noqa: TID251 -- the launcher asks before it starts anything
from miglab_hub.errors import StartError
from miglab_hub.settings import Settings

if TYPE_CHECKING:
    from docker import DockerClient  # noqa: TID251 -- as above

BUILD_COMMAND = "images/build"
# Students' containers do not reach one another; the hub is on the host, which they do reach.
NETWORK_OPTIONS = {"com.docker.network.bridge.enable_icc": "false"}


def students_bridge(settings: Settings) -> str:
    """The host's address on the students' network, which is made when missing.

    Raises:
        StartError: no engine, no image, or a network without an address for the host.
    """
    url = settings.students.docker_url
    try:
        client = docker.DockerClient(base_url=url, timeout=20)
        client.ping()
    except DockerException as error:
        raise StartError(
            f"{settings.file}: students.docker_url: no Docker engine answers at {url}: {error}. "
            "Is it running, and may this user use its socket?"
        ) from error
    try:
        _check_image(client, settings)
        return _gateway(client, settings.students.network)
    except DockerException as error:
        raise StartError(f"the Docker engine at {url} refuses: {error}") from error
    finally:
        client.close()


def _check_image(client: "DockerClient", settings: Settings) -> None:
    image = settings.students.image
    try:
        client.images.get(image)
    except ImageNotFound as error:
        raise StartError(
            f'{settings.file}: students.image: the engine has no image "{image}"; '
            f"build it with {BUILD_COMMAND}"
        ) from error


def _gateway(client: "DockerClient", name: str) -> str:
    try:
        network = client.networks.get(name)
    except NotFound:
        network = client.networks.create(name, driver="bridge", options=NETWORK_OPTIONS)
        network.reload()
    ranges = (network.attrs.get("IPAM") or {}).get("Config") or []
    for each in ranges:
        if each.get("Gateway"):
            return str(each["Gateway"]).split("/")[0]
    raise StartError(
        f'the Docker network "{name}" has no address for the host: remove it (docker network rm '
        f"{name}), and the lab makes it anew, or name another in students.network"
    )

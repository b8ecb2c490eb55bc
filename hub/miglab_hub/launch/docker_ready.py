"""Whether the Docker engine can carry the lab: it answers, has the image, and has the network."""

from typing import TYPE_CHECKING

from docker.errors import DockerException, ImageNotFound  # noqa: TID251 -- as above

import docker  # noqa: TID251 -- the launcher asks before it starts anything
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_spawner.containers.networks import ICC, ensure_shared, gateway, keeps_apart

if TYPE_CHECKING:
    from docker import APIClient  # noqa: TID251 -- as above


BUILD_COMMAND = "images/build student"
TIMEOUT_S = 20


def students_bridge(settings: Settings) -> str:
    """The host's address on the students' network, which is made when missing.

    Raises:
        StartError: no engine, no image, a network that keeps nobody apart, or one
            without an address for the host.
    """
    url = settings.docker_url
    try:
        api = docker.APIClient(base_url=url, timeout=TIMEOUT_S)
        api.ping()
    except DockerException as error:
        raise StartError(
            f"{settings.file}: servers.spawner: no Docker engine answers at {url}: {error}. "
            "Check that it runs and that this user may use its socket"
        ) from error
    try:
        _check_image(api, settings)
        return _bridge(api, settings)
    except DockerException as error:
        raise StartError(f"the Docker engine at {url} refused a request: {error}") from error
    finally:
        api.close()


def _check_image(api: "APIClient", settings: Settings) -> None:
    image = settings.servers.image
    try:
        api.inspect_image(image)  # type: ignore[no-untyped-call]  # docker-py's stubs leave it out
    except ImageNotFound as error:
        raise StartError(
            f'{settings.file}: servers.image: the engine has no image "{image}"; '
            f"build it with {BUILD_COMMAND}"
        ) from error


def _bridge(api: "APIClient", settings: Settings) -> str:
    name = settings.network
    found = ensure_shared(api, name, settings.lab_id)
    if not keeps_apart(found):
        raise StartError(
            f'{settings.file}: lab.name: on the Docker network "{name}" students\' servers '
            f"can reach one another (it was created without {ICC}=false): remove it with "
            f"`docker network rm {name}`, and the lab creates it anew"
        )
    address = gateway(found)
    if not address:
        raise StartError(
            f'{settings.file}: lab.name: the Docker network "{name}" has no address for '
            f"the host: remove it with `docker network rm {name}`, and the lab creates it anew"
        )
    return address

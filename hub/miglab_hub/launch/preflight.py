"""What must hold before the lab starts: each failing check is one message that says what to do.

Nothing is lost when one fails: nothing has been started, and nothing there has been changed.  The
Docker engine can carry the lab if it answers, has the image, and has the network.
"""

import errno
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docker.errors import DockerException, ImageNotFound  # noqa: TID251 -- as above

import docker  # noqa: TID251 -- the launcher asks before it starts anything
from miglab_hub import lab_secrets
from miglab_hub.backup import check_restore_ended
from miglab_hub.checkout import make_notebooks
from miglab_hub.errors import StartError
from miglab_hub.plugins import plugin
from miglab_hub.service.gpus import geometries
from miglab_hub.settings.lab_toml import (
    ENV_BRIDGE,
    ENV_PORT,
    SCHEDULER,
    Settings,
    load,
)
from miglab_hub.sign_in import check_identity, check_installed
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.shapes import ShapeError, resolve
from miglab_pool.ledger.own_file import check_own
from miglab_pool.ledger.tables import LedgerError
from miglab_pool.state.lock import PoolLock
from miglab_spawner.containers.host_config import DEFAULT as LIMITS_OF_ALL_OTHERS
from miglab_spawner.containers.networks import (
    ICC,
    ensure_shared_network,
    gateway_address,
    isolates_containers,
)

BUILD_COMMAND = "images/build student"
TIMEOUT_S = 20


def prepare(file: Path, port: int | None = None) -> Settings:
    """Check everything that can be checked beforehand, and make what is missing.

    Args:
        file: lab.toml.
        port: takes over from ``lab.port``.

    Returns:
        The settings, with the students' network found.

    Raises:
        StartError: something is not as it must be.
        AlreadyRunning: a pool service runs on this state folder.
    """
    environ = os.environ if port is None else {**os.environ, ENV_PORT: str(port)}
    settings = load(file, environ, running=False)
    check_identity(settings)
    check_ports(settings)
    check_state(settings)
    PoolLock(settings.pool_lock).release()  # before a second hub would touch this state folder
    check_ledger(settings)
    check_installed(settings)
    if settings.is_on_slurm:
        plugin("start", SCHEDULER)(settings)
    else:
        check_shapes(settings, geometries(settings))
    if settings.servers.spawner == "docker":
        settings = load(file, {**environ, ENV_BRIDGE: students_bridge(settings)}, running=False)
    lab_secrets.make_all(settings)
    lab_secrets.read_passwords(settings)
    settings.logs.mkdir(mode=0o700, exist_ok=True)
    settings.homes.mkdir(mode=0o700, exist_ok=True)
    if settings.has_own_notebooks:
        make_notebooks(settings.notebooks)
    return settings


def check_ports(settings: Settings) -> None:
    """Check that the lab's five ports are free.

    Raises:
        StartError: one is not, or its address is not this machine's.
    """
    proxy_bind, pool_bind = settings.addresses.proxy_bind, settings.addresses.pool_bind
    for host, port, user in (
        (settings.lab.host, settings.lab.port, "the lab"),
        (proxy_bind, settings.proxy_port, "the proxy's API"),
        (settings.addresses.hub_bind or "127.0.0.1", settings.hub_port, "the hub"),
        (pool_bind, settings.pool_port, "the pool"),
        (settings.addresses.student_bind or "127.0.0.1", settings.student_port, "the pool"),
    ):
        _check_port(host, port, user)


def _check_port(host: str, port: int, user: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartError(_port_problem(error, host, port, user)) from error


def _port_problem(error: OSError, host: str, port: int, user: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host}, which {user} needs, is in use: if another lab is running, "
            "stop it; or choose another port with --port (the lab uses five in a row)"
        )
    return f"{user} cannot listen on port {port} of {host}: {error.strerror or error}"


def check_state(settings: Settings) -> None:
    """Make the state folder, and check that it can be written.

    Raises:
        StartError: it cannot.
    """
    try:
        settings.make_private_folder()
    except OSError as error:
        raise StartError(f"cannot create the state folder {settings.state}: {error}") from error
    if not os.access(settings.state, os.W_OK | os.X_OK):
        raise StartError(f"this user cannot write to the state folder {settings.state}")


def check_ledger(settings: Settings) -> None:
    """Check that the ledger, if there is one, is this lab's and can be used.

    Raises:
        StartError: a restore was interrupted; or the ledger is missing, empty, another lab's,
            damaged, too new, or locked.
    """
    check_restore_ended(settings)
    try:
        check_own(settings.ledger)
    except (LedgerError, OSError) as error:
        raise StartError(str(error)) from error


def check_shapes(settings: Settings, geometries: Iterable[Geometry] | None) -> None:
    """Check that every shape that lab.toml names is one that some GPU can give.

    Where not every GPU answers, ``geometries`` is None and nothing is known to be wrong.

    Raises:
        StartError: one is not; the message names key, shape and what there is.
    """
    if geometries is None:
        return
    available = list(geometries)
    shapes_of = {
        f"courses.{name}.shapes": course.shapes for name, course in settings.courses.items()
    }
    for shape in settings.limits.keys() - {LIMITS_OF_ALL_OTHERS}:
        shapes_of[f'limits."{shape}"'] = (shape,)
    for key, shapes in shapes_of.items():
        for shape in shapes:
            try:
                resolve(shape, available)
            except ShapeError as error:
                raise StartError(f"{settings.file}: {key}: {error}") from error


def students_bridge(settings: Settings) -> str:
    """Return the host's address on the students' network, created if missing.

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


def _check_image(api: Any, settings: Settings) -> None:
    image = settings.servers.image
    try:
        api.inspect_image(image)
    except ImageNotFound as error:
        raise StartError(
            f'{settings.file}: servers.image: the engine has no image "{image}"; '
            f"build it with {BUILD_COMMAND}"
        ) from error


def _bridge(api: Any, settings: Settings) -> str:
    name = settings.network
    network = ensure_shared_network(api, name, settings.lab_id)
    if not isolates_containers(network):
        raise StartError(
            f'{settings.file}: lab.name: on the Docker network "{name}" students\' servers '
            f"can reach one another (it was created without {ICC}=false): remove it with "
            f"`docker network rm {name}`, and the lab creates it anew"
        )
    address = gateway_address(network)
    if not address:
        raise StartError(
            f'{settings.file}: lab.name: the Docker network "{name}" has no address for '
            f"the host: remove it with `docker network rm {name}`, and the lab creates it anew"
        )
    return address

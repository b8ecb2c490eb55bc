"""Becomes one part of the lab in a container: ``run.py pool``, ``hub`` or ``proxy``.

``run.py check`` only checks what lab.toml says, so that nothing is restarted to fail then.

The parts are those of `./lab up`, each in a container.  The pool comes first: it checks the
settings against the GPUs and makes the secrets, which the others find in the shared state volume.
"""

import os
import ssl
import sys

import docker  # noqa: TID251 - the hub's container joins itself to the servers' networks
from miglab_api.holders import LAB_LABEL
from miglab_hub import lab_secrets
from miglab_hub.checkout import make_notebooks
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import check_shapes, check_state
from miglab_hub.launch.up import PRIVATE, plan_siblings
from miglab_hub.service.gpus import geometries
from miglab_hub.settings.lab_toml import Settings, load
from miglab_hub.sign_in import check_identity, check_installed
from miglab_spawner.containers.networks import join_containers, remove_unused
from miglab_spawner.containers.server_labels import HOME

CONTAINERS = ("miglab-pool", "miglab-hub", "miglab-proxy")
BAD_SETTINGS = 2


def prepare_pool(settings: Settings) -> None:
    """Check settings and GPUs, and make what the three share."""
    check_state(settings)
    check_shapes(settings, geometries(settings))
    lab_secrets.make_all(settings)


def prepare_hub(settings: Settings) -> None:
    """Check the sign-in, make what students can read, and put the containers on the networks.

    Networks without a server are removed.  A container that was made anew, as by an upgrade, is on
    none of the others, and the servers that outlived it could not be reached.
    """
    check_installed(settings)
    check_identity(settings)
    if settings.has_own_notebooks:
        make_notebooks(settings.notebooks)
    api = docker.APIClient(base_url=settings.docker_url)
    remove_unused(api, settings.lab_id)
    for network in api.networks(filters={"label": f"{LAB_LABEL}={settings.lab_id}"}):
        if HOME in (network.get("Labels") or {}):  # not one for all servers, which a trial lab left
            join_containers(api, network["Id"], CONTAINERS)
    api.close()


def check(settings: Settings) -> None:
    """Check what can be checked without the lab's data and GPUs: real ones, only the pool sees."""
    check_installed(settings)
    check_identity(settings)
    if settings.gpus.simulated:
        check_shapes(settings, geometries(settings))
    if settings.lab.tls_key:
        check_certificate(settings)


def check_certificate(settings: Settings) -> None:
    """Check that the proxy, which has no capability, can read the certificate, and that they fit.

    Raises:
        StartError: it cannot, or the key is another certificate's.
    """
    files = (settings.lab.tls_certificate, settings.lab.tls_key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files)
    except OSError as error:
        raise StartError(
            f"the certificate cannot be used ({error}): put files that belong together into tls, "
            f"owned by root: {' and '.join(files)}"
        ) from error


PREPARE = {"pool": prepare_pool, "hub": prepare_hub, "proxy": lambda _: None, "check": check}


def main() -> int:
    """Prepare, then become the part; 2 and one line if the settings are wrong."""
    part = sys.argv[1] if len(sys.argv) == 2 else ""
    if part not in PREPARE:
        print(f"miglab: which part? {', '.join(PREPARE)}", file=sys.stderr)
        return BAD_SETTINGS
    os.umask(PRIVATE)
    try:
        settings = load(None)
        PREPARE[part](settings)
    except (StartError, docker.errors.DockerException) as error:
        print(f"miglab {part}: {error}", file=sys.stderr)
        return BAD_SETTINGS
    if part == "check":
        return 0
    sibling = next(sibling for sibling in plan_siblings(settings) if sibling.name == part)
    program, *_ = sibling.command
    os.execvpe(program, list(sibling.command), {**os.environ, **sibling.env})  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())

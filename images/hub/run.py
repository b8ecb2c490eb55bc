"""Becomes one part of the lab in a container: ``run.py pool``, ``hub`` or ``proxy``.

The parts are those of `./lab up`, each in a container.  The pool comes first: it checks the
settings against the GPUs and makes the secrets, which the others find in the shared state volume.
"""

import os
import sys

import docker  # noqa: TID251 - the hub's container joins itself to the servers' networks
from miglab_hub import lab_secrets
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import check_shapes, check_state
from miglab_hub.launch.up import siblings_of
from miglab_hub.service.gpus import geometries
from miglab_hub.settings.lab_toml import Settings, SettingsError, load
from miglab_spawner.containers.labels import LAB
from miglab_spawner.containers.networks import ensure_own, remove_unused

PARTS = ("pool", "hub", "proxy")
CONTAINERS = tuple(f"miglab-{part}" for part in PARTS)
BAD_SETTINGS = 2


def prepare_pool(settings: Settings) -> None:
    """Check settings and GPUs, and make what the three share."""
    check_state(settings)
    check_shapes(settings, geometries(settings))
    lab_secrets.make_all(settings)


def prepare_hub(settings: Settings) -> None:
    """Remove networks without a server, and join the lab's containers to those of the others.

    A container that was made anew, as by an upgrade, is on none of them, and the servers that
    outlived it could not be reached.
    """
    api = docker.APIClient(base_url=settings.students.docker_url)
    remove_unused(api, settings.lab_id)
    for network in api.networks(filters={"label": f"{LAB}={settings.lab_id}"}):
        ensure_own(api, network["Name"], settings.lab_id, CONTAINERS)
    api.close()


def main() -> int:
    """Prepare, then become the part; 2 and one line if the settings are wrong."""
    part = sys.argv[1] if len(sys.argv) == 2 else ""
    if part not in PARTS:
        print(f"miglab: which part? {', '.join(PARTS)}", file=sys.stderr)
        return BAD_SETTINGS
    try:
        settings = load(None)
        {"pool": prepare_pool, "hub": prepare_hub, "proxy": lambda _: None}[part](settings)
    except (SettingsError, StartError, docker.errors.DockerException) as error:
        print(f"miglab {part}: {error}", file=sys.stderr)
        return BAD_SETTINGS
    sibling = next(one for one in siblings_of(settings) if one.name == part)
    program, *_ = sibling.command
    os.execvpe(program, list(sibling.command), {**os.environ, **sibling.env})  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())

"""Measures a home volume, which only the engine can read, from a container of its own.

It runs as root, since the owner of a folder can close it to its own group and to itself, without
network, with the right to read and no other, and the volume cannot be written.

Synchronous, over a docker-py ``APIClient``; the spawner calls it from threads of its own.
"""

import time
from contextlib import suppress
from typing import Any

from docker.errors import NotFound  # noqa: TID251 - one of the rooms that talk to Docker

from miglab_spawner.containers.labels import LAB
from miglab_spawner.home_size import Sizes, sizes_of

MEASURES = "miglab.measures"  # the label of such a container: the lab's name
WHERE = "/home-to-measure"
LONGEST_S = 120
_EACH = (
    "find . -mindepth 1 -maxdepth 1 -print0 | du --null --summarize --block-size=1K --files0-from=-"
)


def volume_sizes(api: Any, image: str, volume: str, lab: str) -> Sizes:
    """What lies in the volume; nothing where there is no such volume yet.

    Args:
        api: docker-py's ``APIClient``.
        image: any that has ``du``.
        volume: its name.
        lab: the lab's name, which marks the container as this lab's.

    Raises:
        DockerException, RequestException: the engine could not do it in time.
    """
    remove_left(api, lab)
    host = api.create_host_config(
        binds={volume: {"bind": WHERE, "mode": "ro"}},
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=["DAC_READ_SEARCH"],
        security_opt=["no-new-privileges"],
        pids_limit=16,
    )
    made = api.create_container(
        image,
        ["-c", _EACH],
        entrypoint=["/bin/sh"],
        user="0:0",
        working_dir=WHERE,
        labels={LAB: lab, MEASURES: lab},
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        host_config=host,
    )
    try:
        api.start(made)
        api.wait(made, timeout=LONGEST_S)
        return sizes_of(api.logs(made, stdout=True, stderr=False).decode(errors="replace"))
    finally:
        api.remove_container(made, force=True)


def remove_left(api: Any, lab: str) -> None:
    """Remove the containers of measurements that a hub began and did not live to end.

    The engine keeps a volume for as long as a container names it.
    """
    for one in api.containers(all=True, filters={"label": f"{MEASURES}={lab}"}):
        if time.time() - one["Created"] > 2 * LONGEST_S:
            with suppress(NotFound):  # another one removed it just now
                api.remove_container(one["Id"], force=True)

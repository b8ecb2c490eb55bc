"""Measures a home volume, which only the engine can read, from a container of its own.

It runs as root, since the owner of a folder can close it to its own group and to itself, without
network, with the right to read and no other, and the volume cannot be written.

Synchronous, over a docker-py ``APIClient``; the spawner calls it from its Docker threads.
"""

from typing import Any

from miglab_spawner.home_size import Sizes, sizes_of

WHERE = "/home-to-measure"
LONGEST_S = 120
_EACH = (
    "find . -mindepth 1 -maxdepth 1 -print0 | du --null --summarize --block-size=1K --files0-from=-"
)


def volume_sizes(api: Any, image: str, volume: str, lab_label: dict[str, str]) -> Sizes:
    """What lies in the volume; nothing where there is no such volume yet.

    Args:
        api: docker-py's ``APIClient``.
        image: any that has ``du``.
        volume: its name.
        lab_label: what marks the container as this lab's.

    Raises:
        DockerException, RequestException: the engine could not do it in time.
    """
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
        labels=lab_label,
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        host_config=host,
    )
    try:
        api.start(made)
        api.wait(made, timeout=LONGEST_S)
        return sizes_of(api.logs(made, stdout=True, stderr=False).decode(errors="replace"))
    finally:
        api.remove_container(made, force=True)

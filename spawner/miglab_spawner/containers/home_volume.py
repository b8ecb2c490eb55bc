"""The home volume: whose it is, where it belongs in a container, and how large it is.

A volume is a lab's by its label; one without, which somebody made by hand, is whoever's names it.

Only the engine can read it, so a container of its own measures it.  It runs as root, since the
owner of a folder can close it to its own group and to itself, without network, with the right to
read and no other, and neither the volume nor anything else can be written.  It counts and sums
itself, and prints a few lines: a home can hold millions of names.

Synchronous, over a docker-py ``APIClient``; the spawner calls it from threads of its own.
"""

import posixpath
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from docker.errors import NotFound  # noqa: TID251 - one of the rooms that talk to Docker
from requests import RequestException

from miglab_api.holders import LAB_LABEL
from miglab_spawner.containers.server_labels import HOME
from miglab_spawner.home_size import GIB, KIB, LARGEST_SHOWN, HomeUse, max_files, parse_use

MEASURES_LABEL = "miglab.measures"  # the label of such a container: the lab's name
MOUNT_POINT = "/home-to-measure"
MEASURE_TIMEOUT_S = 30  # a home of 200,000 files takes 2 s; a second try finds the names in memory
_MEMORY = 256 * 2**20  # find and du hold 100,000 names of a folder at once: 60 MB
_LOG = {"type": "json-file", "config": {"max-size": "64k", "max-file": "1"}}
#: $1 is the first number of files that is too many, at which counting ends; $2 the KiB allowed.
#: The largest are looked for only where there is too much, and none that takes under 1 % of that.
_MEASURE = rf"""
files=$(find . -mindepth 1 -printf x | head -c "$1" | wc -c)
kib=0
[ "$files" -ge "$1" ] || kib=$(du -sk . | cut -f1)
echo "$files $kib"
[ "$kib" -le "$2" ] || du -ak -d1 --null --threshold=$(($2 / 100 + 1))K . \
    | sort -zrn | head -zn {LARGEST_SHOWN + 1} | tr '\n\000' '?\n'
"""


def home_directory(image: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the home directory of a container's user; empty if the image does not say it.

    Args:
        image: the image's ``Config``, by the engine.
        env: what the container is given beside the image's own environment.
    """
    image_env = dict(entry.partition("=")[::2] for entry in image.get("Env") or ())
    home = posixpath.normpath(env.get("HOME") or image_env.get("HOME") or "/")
    if home.startswith("/") and home.strip("/"):
        return home
    folder = posixpath.normpath(image.get("WorkingDir") or "/")
    return folder if folder.startswith("/home/") else ""


class HomeTaken(Exception):
    """A volume has the home's name, but another lab's label; the argument is that lab's name."""


def ensure_home_volume(api: Any, volume: str, lab: str, home: str) -> None:
    """Create the volume of a home with the lab's label, unless it is there.

    Args:
        api: docker-py's ``APIClient``.
        volume: its name.
        lab: the lab's name.
        home: the name under which the home goes.

    Raises:
        HomeTaken: the volume is another lab's.
        DockerException, RequestException: the engine cannot say, or cannot create it.
    """
    try:
        inspected = api.inspect_volume(volume)
    except NotFound:  # one that is made meanwhile comes back as it is
        inspected = api.create_volume(volume, labels={LAB_LABEL: lab, HOME: home})
    if (owner := labelled_lab(inspected)) not in ("", lab):
        raise HomeTaken(owner)


def labelled_lab(volume: Mapping[str, Any]) -> str:
    """Return the lab that a volume's label names, by Docker's inspect; empty without a label."""
    return str((volume.get("Labels") or {}).get(LAB_LABEL, ""))


def measure_volume(api: Any, image: str, volume: str, lab: str, limit_gib: float) -> HomeUse | None:
    """Measure a volume with a container; None if that took too long.

    Args:
        api: docker-py's ``APIClient``.
        image: any that has GNU's ``find`` and ``du``.
        volume: its name; made where there is none yet.
        lab: the lab's name, which marks the container as this lab's.
        limit_gib: what it may take: no more is counted.

    Raises:
        DockerException, RequestException: the engine could not start the container.
    """
    remove_stale_measurements(api, lab)
    limits = [str(max_files(limit_gib) + 1), str(int(limit_gib * GIB / KIB))]
    container = api.create_container(
        image,
        ["-c", _MEASURE, "measure", *limits],
        entrypoint=["/bin/sh"],
        user="0:0",
        working_dir=MOUNT_POINT,
        labels={LAB_LABEL: lab, MEASURES_LABEL: lab},
        environment={"NVIDIA_VISIBLE_DEVICES": "void"},
        healthcheck={"test": ["NONE"]},
        host_config=_isolated_host_config(api, volume),
    )
    try:
        api.start(container)
        with suppress(RequestException):  # it took too long
            api.wait(container, timeout=MEASURE_TIMEOUT_S)
            return parse_use(
                api.logs(container, stdout=True, stderr=False).decode(errors="replace")
            )
        return None
    finally:
        api.remove_container(container, force=True)


def _isolated_host_config(api: Any, volume: str) -> Any:
    """Return the host configuration of a container that only reads the volume."""
    return api.create_host_config(
        binds={volume: {"bind": MOUNT_POINT, "mode": "ro"}},
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        cap_add=["DAC_READ_SEARCH"],
        security_opt=["no-new-privileges"],
        pids_limit=16,
        mem_limit=_MEMORY,
        memswap_limit=_MEMORY,
        log_config=_LOG,
    )


def remove_stale_measurements(api: Any, lab: str) -> None:
    """Remove the containers of measurements that outlived their hub.

    The engine keeps a volume for as long as a container names it.
    """
    for container in api.containers(all=True, filters={"label": f"{MEASURES_LABEL}={lab}"}):
        if time.time() - container["Created"] > 2 * MEASURE_TIMEOUT_S:
            with suppress(NotFound):  # another one removed it just now
                api.remove_container(container["Id"], force=True)

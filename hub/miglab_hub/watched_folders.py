"""Where the lab writes, so that somebody is told before a disk is full."""

import logging
from contextlib import closing
from pathlib import Path

from docker.errors import DockerException  # noqa: TID251 -- the engine knows where volumes lie

import docker  # noqa: TID251 -- as above
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.worker.disks import LEDGER

TIMEOUT_S = 3
log = logging.getLogger(__name__)


def watched_folders(settings: Settings) -> dict[str, Path]:
    """The folders of ledger, logs and homes, as far as they can be seen from here.

    Homes of containers are volumes in the engine's data folder.  A pool that is a container itself
    does not see that folder; its own volume, with the ledger, lies there as well.
    """
    folders = {LEDGER: settings.ledger.parent, "logs": settings.logs}
    homes = settings.homes if settings.servers.spawner == "local" else _volumes(settings)
    return folders if homes is None else folders | {"homes": homes}


def _volumes(settings: Settings) -> Path | None:
    if settings.servers.spawner != "docker":
        return None
    try:
        client = docker.APIClient(base_url=settings.docker_url, timeout=TIMEOUT_S)
        with closing(client):
            folder = Path(client.info()["DockerRootDir"])
    except (DockerException, OSError, KeyError) as error:
        log.warning("the engine does not say where homes lie, so their disk is unknown: %s", error)
        return None
    return folder if folder.is_dir() else None

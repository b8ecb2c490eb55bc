"""The names of the volumes in which homes are, where students' servers are containers."""

import json
import string
import tarfile
from pathlib import Path

from escapism import escape

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings

_VOLUME_SAFE = frozenset(string.ascii_lowercase + string.digits)


def home_prefix(settings: Settings) -> str:
    """Return the beginning of the names of homes' volumes, which another lab's may have too."""
    return f"{settings.lab_id}-home-"


def home_volume(settings: Settings, name: str) -> str:
    """Return the volume of a home of this name, as DockerSpawner names it."""
    return f"{home_prefix(settings)}{escape(name, _VOLUME_SAFE, escape_char='-').lower()}"


def recorded_home_volumes(settings: Settings, archive: Path) -> set[str]:
    """Return the volumes of the homes that the lab had recorded when a backup was made.

    Args:
        settings: the lab's.
        archive: what `miglab backup` wrote; without a record in it, no home was begun yet.

    Raises:
        StartError: it is no such archive, or its record is damaged.
    """
    record = str(settings.home_names.relative_to(settings.state))
    try:
        with tarfile.open(archive) as packed:
            file = packed.extractfile(record) if record in packed.getnames() else None
            names = json.load(file) if file else {}
    except (OSError, tarfile.TarError, ValueError) as error:
        raise StartError(f"{archive} does not say whose homes are whose: {error}") from error
    return {home_volume(settings, name) for name in names}

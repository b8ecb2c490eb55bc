"""The name of NVIDIA's container hook, by the version of the Docker engine.

The engine is asked in the form that means NVIDIA's container hook in every version.  The hook looks
a slice up in the driver at each start, so it finds one that is seconds old; a CDI specification is
written at boot, and knows no slice that was cut since.
"""

import re

Version = tuple[int, int]

#: From here on the engine answers the driver ``nvidia`` by CDI first, and names the hook apart
#: (moby, daemon/devices_nvidia_linux.go).
HOOK_HAS_A_NAME: Version = (29, 2)
_VERSION = re.compile(r"(\d+)\.(\d+)")


def parse_version(text: str) -> Version | None:
    """Return the first two numbers of the first version in a text; None if there is none."""
    match = _VERSION.search(text)
    return None if match is None else (int(match[1]), int(match[2]))


def gpu_driver_name(engine: str) -> str:
    """Return the name by which an engine of this version calls NVIDIA's container hook.

    Args:
        engine: the version that it reports; for one that cannot be parsed, the name that every
            engine knows is returned.
    """
    version = parse_version(engine)
    return "nvidia" if version is None or version < HOOK_HAS_A_NAME else "nvidia.runtime-hook"

"""What a node lacks, as an exit status: a job's program, for any Python, of its library alone."""

import importlib.util
import sys
import urllib.request

HUB, LAB, EXTENSION, PSUTIL, NO_HUB, NO_LISTENER = 2, 4, 8, 16, 32, 64


def missing_components(version: str, hub: str, listener: str) -> int:
    """The sum of what is not there; the hub's version by its first two numbers."""
    missing_bits = 0
    for bit, name in ((LAB, "jupyterlab"), (EXTENSION, "miglab_jupyterlab"), (PSUTIL, "psutil")):
        if importlib.util.find_spec(name) is None:
            missing_bits += bit
    try:
        from jupyterhub import __version__
    except ImportError:
        missing_bits += HUB
    else:
        missing_bits += HUB * (__version__.split(".")[:2] != version.split("."))
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for bit, url in ((NO_HUB, hub), (NO_LISTENER, listener)):
        try:
            straight.open(url, timeout=20).close()
        except OSError:
            missing_bits += bit
    return missing_bits


if __name__ == "__main__":
    sys.exit(missing_components(*sys.argv[1:]))

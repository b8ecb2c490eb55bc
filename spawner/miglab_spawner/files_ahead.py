"""JupyterLab's files, fetched ahead by the browser of a student who waits.

The hub serves them at the addresses at which the student's own server will, as long as that server
does not run.  In each address is a hash of the content, so the browser keeps the files and asks
nobody for them when JupyterLab opens.  They are those of the JupyterLab beside the hub: without one
nothing is fetched ahead, and what another version names otherwise is fetched when it is needed.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

from jupyterhub.handlers.static import CacheControlStaticFilesHandler

FOLDER = Path(sys.prefix, "share/jupyter/lab/static")
NAMES = Path(__file__).with_name("files_ahead.txt")
"""What Chromium asks for until JupyterLab can be used, by tests/browser/test_while_waiting.py."""
BELOW_SERVER = "static/lab/"


@cache
def names() -> tuple[str, ...]:
    """Return the files to fetch, with the version that JupyterLab adds to each address."""
    listed = NAMES.read_text(encoding="ascii").split()
    return tuple(f"{name}?v={name.split('.')[-2]}" for name in listed if (FOLDER / name).is_file())


def serve(app: Any) -> None:
    """Let the hub serve the files below the addresses of servers that do not run.

    These are outside the hub's own prefix, for which JupyterHub has no setting.
    """
    init_handlers = app.init_handlers

    def init_with_files() -> None:
        init_handlers()
        files = app.tornado_settings.get("static_handler_class", CacheControlStaticFilesHandler)
        address = rf"{app.base_url}user/[^/]+/(?:[^/]+/)?{BELOW_SERVER}([^/]+)"
        app.handlers.insert(0, (address, files, {"path": str(FOLDER)}))

    if names():
        app.init_handlers = init_with_files

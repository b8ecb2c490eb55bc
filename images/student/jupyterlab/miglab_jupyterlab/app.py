"""The extension as Jupyter Server knows it: settings, routes, start and stop."""

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, Unicode, default

from miglab_jupyterlab.asking import ApiClient, HubClient
from miglab_jupyterlab.course import course, progress
from miglab_jupyterlab.handlers import routes
from miglab_jupyterlab.keeper import Keeper, OwnCourse, Pace
from miglab_jupyterlab.state import BORROW, CPU

PICTURE = ("title", "picture")  # of the shape, in words and as SVG: MIGLAB_SHAPE_TITLE …


class LeaseExtension(ExtensionApp):
    """``c.LeaseExtension``: silent unless the spawner said where the pool is (``MIGLAB_API``)."""

    name = "miglab_jupyterlab"

    interval_s = Float(
        15.0,
        min=0.1,
        help="""Seconds between two reports to the pool.

        Unless it is set here, the lab's own word (``MIGLAB_REPORT_S``) counts.
        """,
    ).tag(config=True)
    warned_s = Float(
        5.0,
        min=0.1,
        help="""Seconds between two reports while the slice is about to be reclaimed.

        Open documents are saved when less than 20 s are left; keep it well below that.
        """,
    ).tag(config=True)
    longest_s = Float(
        60.0,
        min=0.1,
        help="Seconds: how far apart the attempts get while the pool does not answer.",
    ).tag(config=True)
    patience_s = Float(
        10.0, min=0.1, help="Seconds that one answer of the pool may take; then it is silent."
    ).tag(config=True)

    notebooks = Unicode(
        "notebooks",
        help="Folder of the course's notebooks, which the start page lists, below the server's.",
    ).tag(config=True)

    @default("interval_s")
    def _as_the_lab_says(self) -> float:
        return float(os.environ.get("MIGLAB_REPORT_S") or 15.0)

    @default("warned_s")
    def _no_slower_while_warned(self) -> float:
        return min(5.0, float(self.interval_s))

    def initialize_settings(self) -> None:
        """Make the keeper."""
        assert self.serverapp is not None  # linked before anything is initialised
        pace = Pace(self.interval_s, self.warned_s, self.longest_s)
        pool = self._pool()
        has_slice = pool is not None and bool(os.environ.get("MIGLAB_LEASE"))
        shape = os.environ.get("MIGLAB_SHAPE", CPU)
        shape = shape if has_slice or shape == BORROW else CPU
        settings = self.serverapp.web_app.settings
        title = os.environ.get("MIGLAB_COURSE_TITLE", "")
        root, folder = Path(self.serverapp.root_dir), self.notebooks.strip("/")
        self.course = partial(course, title, root, folder)
        name = os.environ.get("MIGLAB_COURSE", "")
        own = OwnCourse(name, partial(progress, root, folder)) if name else None
        self.keeper = Keeper(pool, self._hub(), shape, settings, pace, self.log, own)
        if pool is not None and title:
            settings.setdefault("page_config_data", {})["miglabCourse"] = title
        if has_slice:
            drawn = {key: os.environ.get(f"MIGLAB_SHAPE_{key.upper()}") for key in PICTURE}
            settings.setdefault("page_config_data", {})["miglabShape"] = drawn

    def initialize_handlers(self) -> None:
        """Put the routes up; the base URL is added by Jupyter Server."""
        self.handlers.extend(routes(self.keeper, self.course))
        if find_spec("nbgitpuller"):
            assert self.serverapp is not None
            from nbgitpuller._compat import get_base_handler

            get_base_handler(self.serverapp)  # before its handlers are imported
            from miglab_jupyterlab.git_handlers import git_routes

            self.handlers.extend(git_routes(Path(self.serverapp.root_dir)))

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        """The event loop runs: begin."""
        self.keeper.start()

    async def stop_extension(self) -> None:
        """The server ends."""
        await self.keeper.stop()

    def _pool(self) -> ApiClient | None:
        url, token = os.environ.get("MIGLAB_API", ""), os.environ.get("JUPYTERHUB_API_TOKEN", "")
        return ApiClient(url, token, self.patience_s) if url and token else None

    def _hub(self) -> HubClient | None:
        url, user = (os.environ.get(f"JUPYTERHUB_{name}", "") for name in ("API_URL", "USER"))
        if not url or not user:
            return None
        token, server = (
            os.environ.get(f"JUPYTERHUB_{name}", "") for name in ("API_TOKEN", "SERVER_NAME")
        )
        return HubClient(url, token, self.patience_s, user, server)

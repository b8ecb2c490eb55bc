"""Makes what JupyterLab downloads small, and lets browsers keep it.

Jupyter Server's own switch, Tornado's ``compress_response``, would compress every answer.  A file
of a gigabyte would then keep the server's one thread busy for half a minute; and the length of
JupyterLab's page, in which there is a token, would depend on what somebody else's link adds to it
(BREACH).  So only `FILES` and `ANSWERS` are compressed.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_path
from jupyter_server.utils import url_path_join
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import Application, GZipContentEncoding

from miglab_jupyterlab.prepared import serve_prepared

FILES = ("static/", "lab/extensions/", "lab/api/themes/")
"""Below the base URL: what everybody gets."""

ANSWERS = ("lab/api/", "api/contents", "miglab/api/course")
"""Below the base URL: settings and lists of files; no secret stands beside what a request says."""

LARGEST_ANSWER_BYTES = 1 << 20  # 20 ms; a notebook with large outputs goes as it is
ICONS = {"image/vnd.microsoft.icon", "image/x-icon"}
PageConfig = dict[str, Any]


def reduce_downloads(app: Application, base_url: str) -> None:
    """Compress shared files, let browsers keep them, and leave out disabled extensions.

    Args:
        app: the server's, after all its extensions have been loaded.
        base_url: the server's.
    """
    serve_prepared(app.default_router)
    app.transforms.append(gzip_for(base_url))
    # JupyterLab 4.6 means to add these, but forgets the base URL.
    names = hashed_extensions(jupyter_path("labextensions"))
    paths = [url_path_join(base_url, "lab/extensions", name, "static/") for name in names]
    settings = app.settings
    settings["static_immutable_cache"] = [*settings.get("static_immutable_cache", ()), *paths]
    settings["page_config_hook"] = without_disabled(settings.get("page_config_hook"))


def gzip_for(base_url: str) -> type[GZipContentEncoding]:
    """Return Tornado's compression for `FILES` and `ANSWERS` alone."""
    files = tuple(url_path_join(base_url, path) for path in FILES)
    answers = tuple(url_path_join(base_url, path) for path in ANSWERS)

    class SelectedGzip(GZipContentEncoding):
        CONTENT_TYPES = GZipContentEncoding.CONTENT_TYPES | ICONS

        def __init__(self, request: HTTPServerRequest) -> None:
            super().__init__(request)
            self._is_file = request.path.startswith(files)
            self._is_answer = request.path.startswith(answers)
            if "Range" in request.headers:
                self._gzipping = False

        def transform_first_chunk(
            self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
        ) -> tuple[int, HTTPHeaders, bytes]:
            """Compress it, or pass it on as it is."""
            is_short = finishing and len(chunk) <= LARGEST_ANSWER_BYTES
            if self._is_file or (self._is_answer and is_short):
                return super().transform_first_chunk(status_code, headers, chunk, finishing)
            self._gzipping = False
            return status_code, headers, chunk

    return SelectedGzip


def hashed_extensions(folders: Iterable[str]) -> Iterator[str]:
    """Return the JupyterLab extensions in whose files' names there is a hash of the content.

    JupyterLab's builder makes them so; ours is not built.
    """
    for folder in folders:
        for entry_point in Path(folder).glob("**/static/remoteEntry.*.js"):
            yield entry_point.parent.parent.relative_to(folder).as_posix()


def without_disabled(
    hook: Callable[[Any, PageConfig], PageConfig] | None,
) -> Callable[[Any, PageConfig], PageConfig]:
    """Return a hook for JupyterLab's page that leaves out extensions that are disabled as a whole.

    JupyterLab downloads them, and then does not use them.

    Args:
        hook: another hook, such as JupyterHub's, which comes first.
    """

    def change(handler: Any, page_config: PageConfig) -> PageConfig:
        if hook is not None:
            page_config = hook(handler, page_config)
        disabled = page_config.get("disabledExtensions", ())
        extensions = page_config.get("federated_extensions", ())
        enabled = [extension for extension in extensions if extension["name"] not in disabled]
        return {**page_config, "federated_extensions": enabled}

    return change

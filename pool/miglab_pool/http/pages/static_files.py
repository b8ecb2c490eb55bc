"""The pages' static files: compressed, and kept by browsers, which ask whether they have changed.

Nothing else is compressed.  Pages have an XSRF token in them and repeat what a link says, so that
their compressed length would tell an eavesdropper about the token (BREACH); and the streams of
events must not wait in a buffer.
"""

from typing import Any

from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from miglab_pool.http.pages.frame import SERVICE

KEEP_AND_ASK = "no-cache"  # HTTP's word for it


class KeptFiles(StaticFiles):
    """Static files that a browser keeps."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        """Return the file, or that it has not changed."""
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = KEEP_AND_ASK
        return response


def static_files(*packages: str | tuple[str, str]) -> ASGIApp:
    """Return an application that serves the pages' static files, and those of other packages.

    Those of `miglab_api.web` are among them: the frame's own scripts import them.
    """
    every_package = [("miglab_api", "web"), *packages]
    return GZipMiddleware(KeptFiles(directory=SERVICE / "static", packages=every_package))

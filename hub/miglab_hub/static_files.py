"""The hub's static files as a browser gets them: compressed, and without an icon font.

Each file is compressed once in a hub's life, not for each visitor: 440 students who come within a
minute would cost the thread that answers everybody nine seconds.  All that JupyterHub ships comes
to a few megabytes, so nothing needs to be forgotten.

Pages are not compressed.  They have XSRF tokens in them, and some repeat what a link says, so that
their compressed length would tell an eavesdropper about the token (BREACH); and the events of a
start, which are no files either, must not wait in a buffer.
"""

import gzip
import re
from collections.abc import Generator
from functools import cache
from pathlib import Path

from jupyterhub.handlers.static import CacheControlStaticFilesHandler

COMPRESSIBLE = (".css", ".ico", ".js", ".json", ".svg")
SMALLEST_BYTES = 1024  # as Tornado's own compression has it
GZIPPED = ":gzip"  # after the path of a file: its content, compressed
# In JupyterHub's stylesheet: 225 kB, for the six icons that its pages show.
ICON_FONT = re.compile(rb'(@import"\.\./components/@fortawesome/[^"]*";)+')
ICONS = Path(__file__).parent / "hub_templates" / "icons.css"


class HubStaticFiles(CacheControlStaticFilesHandler):
    """Tornado's ``static_handler_class`` of the hub."""

    absolute_path: str

    def set_headers(self) -> None:
        """Choose the encoding; what Tornado reads afterwards is the content in that encoding."""
        super().set_headers()
        self.set_header("Vary", "Accept-Encoding")
        if self._accepts_gzip() and _is_worth_it(self.absolute_path):
            self.set_header("Content-Encoding", "gzip")
            self.absolute_path += GZIPPED

    def get_content_size(self) -> int:
        """Return the size of what `get_content` returns."""
        return sum(map(len, self.get_content(self.absolute_path)))

    @classmethod
    def get_content(
        cls, abspath: str, start: int | None = None, end: int | None = None
    ) -> Generator[bytes, None, None]:
        """Yield the content; Tornado makes the version in a file's address of it, too."""
        yield (_gzipped if abspath.endswith(GZIPPED) else _plain)(abspath)[start:end]

    def _accepts_gzip(self) -> bool:
        headers = self.request.headers
        return "gzip" in headers.get("Accept-Encoding", "") and "Range" not in headers


def _is_worth_it(path: str) -> bool:
    return path.endswith(COMPRESSIBLE) and Path(path).stat().st_size >= SMALLEST_BYTES


def _plain(path: str) -> bytes:
    content = Path(path).read_bytes()
    return ICON_FONT.sub(ICONS.read_bytes(), content) if path.endswith(".css") else content


@cache
def _gzipped(path: str) -> bytes:
    return gzip.compress(_plain(path.removesuffix(GZIPPED)), mtime=0)

"""JupyterLab's files, compressed before anybody asks: ``python -m miglab_jupyterlab.prepared``.

Beside each file it writes one with ``.gz`` after its name, which `PreparedFiles` serves.  Without
them the server compresses the files when they are asked for, which takes 0.2 s of CPU each time
that a browser opens JupyterLab for the first time.
"""

import gzip
import mimetypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from jupyter_server.base.handlers import FileFindHandler
from tornado.routing import RuleRouter

COMPRESSIBLE = {".css", ".js", ".svg"}
SMALLEST_BYTES = 1024
SUFFIX = ".gz"
FOLDERS = ("lab/static", "labextensions")


class PreparedFiles(FileFindHandler):
    """Jupyter Server's static files; the prepared one where the browser takes it."""

    absolute_path: str

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        """Return the path of what is sent, once Jupyter Server has allowed the file."""
        path: str | None = super().validate_absolute_path(root, absolute_path)
        self._name = path or ""
        headers = self.request.headers
        takes_gzip = "gzip" in headers.get("Accept-Encoding", "") and "Range" not in headers
        self._is_prepared = bool(path) and takes_gzip and is_prepared(path or "")
        return f"{path}{SUFFIX}" if self._is_prepared else path

    def set_headers(self) -> None:
        """Name the encoding."""
        super().set_headers()
        if self._is_prepared:
            self.set_header("Content-Encoding", "gzip")

    def get_content_type(self) -> str:
        """Return the type of the file itself."""
        return mimetypes.guess_type(self._name)[0] or "application/octet-stream"

    def get_content_size(self) -> int:
        """Return the size of what is sent."""
        return Path(self.absolute_path).stat().st_size


def serve_prepared(router: RuleRouter) -> None:
    """Serve prepared files wherever Jupyter Server and its extensions serve static ones."""
    for rule in router.rules:
        if rule.target is FileFindHandler:
            rule.target = PreparedFiles
        elif isinstance(rule.target, RuleRouter):
            serve_prepared(rule.target)


def is_prepared(path: str) -> bool:
    """Whether a file has been prepared since it last changed.

    The times of both agree to the second, which is what the layers of an image keep of them.
    """
    try:
        return int(Path(path).stat().st_mtime) == int(Path(path + SUFFIX).stat().st_mtime)
    except FileNotFoundError:
        return False


def prepare(folder: Path) -> None:
    """Compress all files below a folder that shrink by it."""
    for file in _compressible(folder):
        status = file.stat()
        prepared = file.with_name(file.name + SUFFIX)
        unfinished = prepared.with_name(f".{prepared.name}")
        unfinished.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        os.utime(unfinished, ns=(status.st_atime_ns, status.st_mtime_ns))
        unfinished.replace(prepared)


def _compressible(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        if file.suffix in COMPRESSIBLE and file.is_file() and file.stat().st_size >= SMALLEST_BYTES:
            yield file


if __name__ == "__main__":
    for name in FOLDERS:
        prepare(Path(sys.prefix, "share/jupyter", name))

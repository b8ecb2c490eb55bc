"""A student's server that keeps notes: what is posted to it is a line of ``~/work.txt``, for good.

Run from its text, with the standard library alone.
"""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class NotesHandler(BaseHTTPRequestHandler):
    """Answers whatever is below its user's path; keeps what is posted."""

    def do_GET(self) -> None:
        """Say that it is there."""
        self._answer()

    def do_POST(self) -> None:
        """Keep a line, and answer when it is on the disk."""
        line = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_meant():
            self._keep(line)
        self._answer()

    def _keep(self, line: bytes) -> None:
        with Path.home().joinpath("work.txt").open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _is_meant(self) -> bool:
        return self.path.startswith(os.environ["JUPYTERHUB_SERVICE_PREFIX"])

    def _answer(self) -> None:
        self.send_response(200 if self._is_meant() else 404)
        self.send_header("X-JupyterHub-Version", os.environ["MIGLAB_FAULTS_HUB"])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ThreadingHTTPServer((where.hostname or "", where.port or 0), NotesHandler).serve_forever()

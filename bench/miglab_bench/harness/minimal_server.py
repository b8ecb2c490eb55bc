"""The smallest server a student can have: it answers every request, and the hub is content.

Run as a file, with the standard library alone: two hundred of them start within a minute.
"""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class PresenceHandler(BaseHTTPRequestHandler):
    """Says that it is there."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", os.environ["MIGLAB_BENCH_HUB"])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ThreadingHTTPServer((where.hostname or "", where.port or 0), PresenceHandler).serve_forever()

"""The smallest server that a Slurm job can be: it answers every request with its job's number.

Run as a file, with the standard library alone.
"""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class JobHandler(BaseHTTPRequestHandler):
    """Says which job it is."""

    def do_GET(self) -> None:
        """Answer."""
        body = os.environ["SLURM_JOB_ID"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    where = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
    ThreadingHTTPServer((where.hostname or "", where.port or 0), JobHandler).serve_forever()

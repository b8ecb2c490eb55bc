"""A single-user server of the smallest kind: answers every request with its environment."""

import contextlib
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse


class StudentHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.endswith("/eat"):
            print(len(bytearray(os.urandom(2**20)) * 2**10))
        body = json.dumps({**os.environ, "PID": str(os.getpid())}).encode()
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", os.environ.get("HUB_VERSION", "6.1.1"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    where = urlparse(os.environ["JUPYTERHUB_SERVICE_URL"])
    with contextlib.suppress(KeyboardInterrupt):
        ThreadingHTTPServer((where.hostname or "", where.port or 0), StudentHandler).serve_forever()

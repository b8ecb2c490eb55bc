"""Servers that tests play: an identity provider, a learning platform."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class Answers(BaseHTTPRequestHandler):
    """Answers with a body, and logs nothing."""

    def answer(self, text: str, kind: str) -> None:
        """Send a whole answer of this content type."""
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """A server that answers, until the block ends."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

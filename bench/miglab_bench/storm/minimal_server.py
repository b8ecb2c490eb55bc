"""The smallest server a student can have: it answers every request, and the hub is content.

Run as a file, with `socket` alone: hundreds of them start within a minute, and `http.server` would
take three times as long to load as Python itself.
"""

import os
import socket
import sys

LONGEST_HEAD = 65536
HEAD = (
    "HTTP/1.1 200 OK\r\nX-JupyterHub-Version: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


def serve(url: str, version: str) -> None:
    """Answer one request after the other, for ever."""
    host, _, port = url.split("/")[2].partition(":")
    answer = HEAD.format(version).encode()
    with socket.create_server((host, int(port)), backlog=16) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                answer_one(connection, answer)


def answer_one(connection: socket.socket, answer: bytes) -> None:
    """Read a request's head and answer it; whoever hangs up gets no answer."""
    try:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < LONGEST_HEAD:
            more = connection.recv(LONGEST_HEAD)
            if not more:
                return
            head += more
        connection.sendall(answer)
    except OSError:
        return


if __name__ == "__main__":
    try:
        serve(os.environ["JUPYTERHUB_SERVICE_URL"], os.environ["MIGLAB_BENCH_HUB"])
    except KeyboardInterrupt:
        sys.exit()

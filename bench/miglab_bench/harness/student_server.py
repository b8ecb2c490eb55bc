"""The one student's server of benchmarks and tests, as small as a server can be.

It answers whatever is below its user's path, keeps what is posted as a line of ``~/work.txt``, says
its environment (``/environment``) and takes a gigabyte (``/eat``).  Run as a file or from its text,
with sockets alone: hundreds of them start within a minute, and `http.server` would take three times
as long to load as Python itself.
"""

import os
import socket
import sys
import threading

MOST_BYTES = 65536
HEAD = "HTTP/1.1 {}\r\nX-JupyterHub-Version: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"


def serve(url: str) -> None:
    """Serve requests for ever."""
    host, _, port = url.split("/")[2].partition(":")
    with socket.create_server((host, int(port)), backlog=64) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer_connection, args=(connection,), daemon=True).start()


def answer_connection(connection: socket.socket) -> None:
    """Read a request, answer it and hang up; whoever hangs up first gets no answer."""
    with connection:
        try:
            head, body = read_request(connection)
            if head:
                connection.sendall(answer_to(head, body))
        except OSError:
            return


def read_request(connection: socket.socket) -> tuple[str, bytes]:
    """Return head and body; the head is empty if the request is incomplete."""
    request, limit = b"", MOST_BYTES
    while len(request) < limit:
        chunk = connection.recv(MOST_BYTES)
        if not chunk:
            return "", b""
        request += chunk
        head, has_all, body = request.partition(b"\r\n\r\n")
        if has_all:
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            limit = len(head) + 4 + int(length or 0)
    return head.decode("latin-1"), body


def answer_to(head: str, body: bytes) -> bytes:
    """Carry out a request and return the answer."""
    method, path, _ = head.split(maxsplit=2)
    content = b""
    is_meant = path.startswith(os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/"))
    if is_meant and method == "POST":
        append_note(body)
    elif path.endswith("/environment"):
        import json  # takes as long to load as all else here

        content = json.dumps({**os.environ, "PID": str(os.getpid())}).encode()
    elif path.endswith("/eat"):
        content = str(len(bytearray(os.urandom(2**20)) * 2**10)).encode()
    status = "200 OK" if is_meant else "404 Not Found"
    version = os.environ.get("MIGLAB_HUB_VERSION", "")
    return HEAD.format(status, version, len(content)).encode() + content


def append_note(line: bytes) -> None:
    """Write a line into the home; it is on the disk when this returns."""
    with open(os.path.expanduser("~/work.txt"), "ab") as file:  # noqa: PTH111, PTH123 -- see above
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    try:
        serve(os.environ["JUPYTERHUB_SERVICE_URL"])
    except KeyboardInterrupt:
        sys.exit()

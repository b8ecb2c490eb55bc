"""Whether a container has got the slices of its lease.

It is seen in the container alone: a toolkit that is set to ignore the engine's request, or a device
node that is missing, lets it start without a word.
"""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from docker.errors import APIError  # noqa: TID251 - one of the rooms that talk to Docker
from docker.utils.socket import frames_iter  # noqa: TID251

from miglab_spawner.slices_missing import SlicesMissing

LISTING_COMMAND = ("nvidia-smi", "-L")
#: The places into which NVIDIA's toolkit puts its programs, and none that a student can write to.
LISTING_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"
LISTING_TIMEOUT_S = (
    30.0  # from the start of the program; eight busy GPUs took nvidia-smi 5.4 s (gpu-operator#2155)
)
LISTING_MAX_BYTES = 1 << 16
NOT_FOUND = (126, 127)
_UUID = re.compile(r"\(UUID: ([^)\s]+)\)")
NO_TOOL = (
    "; NVIDIA's toolkit puts it into a container together with the GPU, unless the image's "
    "NVIDIA_DRIVER_CAPABILITIES leaves out `utility`"
)
_GONE = 404
_ENDED = 409


@contextlib.contextmanager
def listing_thread() -> Iterator[ThreadPoolExecutor]:
    """Yield a thread for one listing: a slow one holds up no other call of the engine."""
    thread = ThreadPoolExecutor(1, "look")
    try:
        yield thread
    finally:
        thread.shutdown(wait=False)


def check_container(engine: Any, container: str, uuids: tuple[str, ...]) -> None:
    """Check that a running container has exactly these slices.

    A container that has ended already is left to whoever watches it.

    Args:
        engine: docker-py's ``APIClient``.
        container: its id.
        uuids: of the slices, or of GPUs leased whole.

    Raises:
        SlicesMissing: it has others, or nobody can tell, also where `LISTING_TIMEOUT_S` passed.
        DockerException: as the engine's client raises it.
    """
    try:
        status, output = _run_listing(engine, container)
    except APIError as error:
        if error.status_code == _ENDED:
            return
        raise _listing_refused(error) from error
    if status:
        raise _listing_failed(status, output)
    visible = visible_uuids(output)
    if sorted(visible) != sorted(uuids):
        handed_over = ", ".join(visible) or "no GPU"
        raise SlicesMissing("slice-not-there", f"leased {', '.join(uuids)}; it has {handed_over}")


def visible_uuids(listing: str) -> list[str]:
    """Return the UUIDs in a listing of ``nvidia-smi -L`` on which a program can compute.

    A GPU below which slices are listed is not one of them; a GPU with MIG on of which the container
    has no slice is, and so never equals a lease.
    """
    visible: list[str] = []
    gpu = ""
    for line in listing.splitlines():
        for uuid in _UUID.findall(line):
            if line.startswith("GPU "):
                gpu = uuid
            elif gpu in visible:
                visible.remove(gpu)
            visible.append(uuid)
    return visible


def _slices_unknown(details: str) -> SlicesMissing:
    return SlicesMissing(
        "slice-unknown", f"{' '.join(LISTING_COMMAND)} in the container: {details}"
    )


def _listing_failed(status: int, output: str) -> SlicesMissing:
    hint = NO_TOOL if status in NOT_FOUND else ""
    return _slices_unknown(f"exit status {status}: {output.strip()[:500]}{hint}")


def _listing_refused(error: APIError) -> SlicesMissing:
    """Return the error for a listing that the engine refused to run."""
    explanation = str(error.explanation).strip()[:500]
    is_tool_missing = error.status_code != _GONE and "not found" in explanation
    hint = NO_TOOL if is_tool_missing else ""
    return _slices_unknown(f"the engine answered {error.status_code}: {explanation}{hint}")


def _run_listing(engine: Any, container: str) -> tuple[int, str]:
    """Return exit status and output of the listing; of endless output only the beginning."""
    look = engine.exec_create(container, LISTING_COMMAND, environment={"PATH": LISTING_PATH})
    output = b""
    connection = engine.exec_start(look["Id"], socket=True)
    with _closed_at_deadline(connection) as is_late:
        for _, piece in frames_iter(connection, tty=False):  # type: ignore[no-untyped-call]
            output += piece
            if len(output) > LISTING_MAX_BYTES:
                return 1, "more output than any list of GPUs"
    if is_late.is_set():
        raise _slices_unknown(f"no answer within {LISTING_TIMEOUT_S:g} s")
    status = engine.exec_inspect(look["Id"])["ExitCode"]
    return (1 if status is None else int(status)), output.decode(errors="replace")


@contextlib.contextmanager
def _closed_at_deadline(connection: Any) -> Iterator[threading.Event]:
    """End the connection after `LISTING_TIMEOUT_S` and set the event; docker-py has no timeout."""
    connected, is_late = getattr(connection, "_sock", connection), threading.Event()

    def end() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(LISTING_TIMEOUT_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()
        connected.close()
        connection.close()

"""One look at the running Jupyter Server: its managers and its processes.  Decides nothing.

Kernels of which nothing was heard yet are asked, so that a slice is not held for ever by one.
Jupyter Server calls a kernel "starting" until it hears a status.  It hears what is said after it
has subscribed: what a kernel said and ran before is lost, and one that then runs nothing more stays
"starting", which is unknown and so never idle.
"""

import os
from collections.abc import Mapping
from typing import Any

from miglab_jupyterlab.signals import ServerReading

try:
    import psutil
except ImportError:  # the signal is unknown then
    psutil = None


def read(settings: Mapping[str, Any], cpu_s: float | None) -> ServerReading:
    """Look at the managers of a Jupyter Server; on its event loop, for they belong to it.

    Args:
        settings: the web application's settings.
        cpu_s: what `process_cpu_s` said.
    """
    kernels = settings["kernel_manager"].list_kernels()
    return ServerReading(
        kernels={one["id"]: (one["execution_state"], one["last_activity"]) for one in kernels},
        terminals=_terminals(settings),
        sockets=sum(one.get("connections", 0) for one in kernels),
        cpu_s=cpu_s,
    )


def _terminals(settings: Mapping[str, Any]) -> dict[str, object] | None:
    if not settings.get("terminals_available", False):
        return {}
    manager = settings.get("terminal_manager")
    if manager is None:
        return None
    return {one["name"]: one["last_activity"] for one in manager.list()}


def process_cpu_s(pid: int | None = None) -> float | None:
    """CPU seconds of a process, of those below it, and of those that they have outlived.

    Walks the process table: call it off the event loop.
    """
    if psutil is None:
        return None
    try:
        top = psutil.Process(pid or os.getpid())
        family = [top, *top.children(recursive=True)]
        return sum(_used_s(process) for process in family)
    except psutil.Error:
        return None


def _used_s(process: Any) -> float:
    """One process and its ended children; 0 for one that ended meanwhile: its parent has it."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


LINGER_MS = 1000  # a message has left by then, or its kernel is gone


def ask_unheard(settings: Mapping[str, Any]) -> None:
    """Ask each such kernel for its status; on the server's event loop, without waiting.

    The question goes to the shell channel: a kernel that computes answers when it has done so, and
    until then stays unknown.

    Args:
        settings: the web application's settings.
    """
    manager = settings["kernel_manager"]
    unheard = [one["id"] for one in manager.list_kernels() if one["execution_state"] == "starting"]
    for kernel in map(manager.get_kernel, unheard):
        if kernel.shell_port:  # not of one whose ports are not chosen yet, or are a gateway's
            _ask(kernel)


def _ask(kernel: Any) -> None:
    shell = kernel.connect_shell()
    shell.on_send(lambda *_: shell.close(linger=LINGER_MS))
    kernel.session.send(shell, "kernel_info_request")

"""Kernels of which nothing was heard yet are asked, so that a slice is not held for ever by one.

Jupyter Server calls a kernel "starting" until it hears a status.  It hears what is said after it
has subscribed: what a kernel said and ran before is lost, and one that then runs nothing more stays
"starting", which is unknown and so never idle.
"""

from collections.abc import Mapping
from typing import Any

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

"""How much a server is used: one look at the running Jupyter Server, and the ``Signals`` of it.

Ages are seconds by the caller's monotonic clock since a value was last seen to change, so that a
wall clock that jumps, here or at the pool, makes nobody idle or busy.  What is not known is None,
never zero.  No clock is read here.

Kernels of which nothing was heard yet are asked, so that a slice is not held for ever by one.
Jupyter Server calls a kernel "starting" until it hears a status.  It hears what is said after it
has subscribed: what a kernel said and ran before is lost, and one that then runs nothing more stays
"starting", which is unknown and so never idle.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

try:
    import psutil
except ImportError:  # the signal is unknown then
    psutil = None

MANY = 1000  # of anything; the pool takes no larger count
LONG_S = 366 * 24 * 3600.0
LINGER_MS = 1000  # a message has left by then, or its kernel is gone
_BUSY = {"busy": True, "idle": False}


@dataclass(frozen=True)
class ServerReading:
    """One reading of the server.

    Attributes:
        kernels: kernel id to (state in Jupyter's words, a mark that changes with each activity).
        terminals: terminal name to such a mark; None if the server does not tell.
        sockets: open connections to kernels, from whatever front end.
        cpu_s: CPU seconds that the server's processes used so far; None if unknown.
    """

    kernels: Mapping[str, tuple[str, object]]
    terminals: Mapping[str, object] | None
    sockets: int
    cpu_s: float | None


@dataclass(frozen=True)
class Tabs:
    """What the open JupyterLab tabs report.

    Attributes:
        open: how many there are.
        active_age_s: since the last key or pointer in any of them; None if no tab has reported it.
        unsaved: documents with changes that are not saved; None if no tab has reported it.
    """

    open: int
    active_age_s: float | None
    unsaved: int | None


@dataclass
class Ages:
    """When each thing was last seen to change.

    Attributes:
        first_seen: by name, the last value and when it was first seen, by a monotonic clock, s.
    """

    first_seen: dict[str, tuple[object, float]] = field(default_factory=dict)

    def age_s(self, name: str, value: object, now: float) -> float:
        """Seconds since ``value`` was first seen; a name not seen before starts now."""
        before = self.first_seen.get(name)
        if before is None or before[0] != value:
            self.first_seen[name] = (value, now)
            return 0.0
        return now - before[1]

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other names."""
        current = set(names)
        self.first_seen = {
            name: value for name, value in self.first_seen.items() if name in current
        }


def signals(reading: ServerReading, tabs: Tabs, ages: Ages, now: float) -> dict[str, Any]:
    """The body of ``POST /api/server/signals``.

    Args:
        reading: the server's own look at itself.
        tabs: what the front ends say.
        ages: what was seen before; brought up to date.
        now: seconds of the monotonic clock that ``ages`` goes by.

    Returns:
        ``miglab_api.leases.Signals`` as JSON; ``cpu_s`` is a total that only grows while
        the server lives.
    """
    terminals = reading.terminals
    names = {f"kernel:{name}" for name in reading.kernels}
    names |= {f"terminal:{name}" for name in terminals or ()}
    ages.keep(names)
    used = [ages.age_s(f"terminal:{name}", mark, now) for name, mark in (terminals or {}).items()]
    return {
        "kernels": [
            {
                "busy": _BUSY.get(state),
                "last_execution_age_s": ages.age_s(f"kernel:{name}", mark, now),
            }
            for name, (state, mark) in islice(reading.kernels.items(), MANY)
        ],
        "terminals": None if terminals is None else min(len(terminals), MANY),
        "terminal_age_s": min(used, default=None),
        "browsers": min(max(tabs.open, reading.sockets), MANY),
        "browser_age_s": tabs.active_age_s,
        "unsaved": tabs.unsaved,
        "cpu_s": reading.cpu_s,
    }


class OpenTabs:
    """The connected tabs and their reports; the last key press outlives the tab it was in."""

    def __init__(self) -> None:
        self._unsaved: dict[object, int | None] = {}
        self._active_at: float | None = None

    def add(self, tab: object) -> None:
        """Add a tab, which has not reported anything yet."""
        self._unsaved[tab] = None

    def remove(self, tab: object) -> None:
        """Remove a tab, and its unsaved documents with it."""
        self._unsaved.pop(tab, None)

    def take_report(self, tab: object, report: Mapping[str, Any], now: float) -> None:
        """Take the report of a tab; ignore values that make no sense.

        Args:
            tab: which one.
            report: ``unsaved`` documents, and ``active_age_s`` since the last key or pointer.
            now: seconds of the server's monotonic clock.
        """
        unsaved = _number(report.get("unsaved"), MANY)
        age_s = _number(report.get("active_age_s"), LONG_S)
        if tab in self._unsaved and unsaved is not None:
            self._unsaved[tab] = int(unsaved)
        if age_s is not None:
            self._active_at = max(now - age_s, self._active_at or -math.inf)

    def summary(self, now: float) -> Tabs:
        """Return the totals of all tabs; a document open in two tabs counts twice."""
        counts = [count for count in self._unsaved.values() if count is not None]
        return Tabs(
            open=len(self._unsaved),
            active_age_s=None if self._active_at is None else now - self._active_at,
            unsaved=min(sum(counts), MANY) if counts else None,
        )


def _number(value: object, limit: float) -> float | None:
    """Return the value if it is a number from 0 to the limit, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= limit else None


def read_server(settings: Mapping[str, Any], cpu_s: float | None) -> ServerReading:
    """Read the managers of a Jupyter Server; call it on the server's event loop.

    Args:
        settings: the web application's settings.
        cpu_s: the result of `process_cpu_s`.
    """
    kernels = settings["kernel_manager"].list_kernels()
    return ServerReading(
        kernels={
            kernel["id"]: (kernel["execution_state"], kernel["last_activity"]) for kernel in kernels
        },
        terminals=_terminals(settings),
        sockets=sum(kernel.get("connections", 0) for kernel in kernels),
        cpu_s=cpu_s,
    )


def _terminals(settings: Mapping[str, Any]) -> dict[str, object] | None:
    if not settings.get("terminals_available", False):
        return {}
    manager = settings.get("terminal_manager")
    if manager is None:
        return None
    return {terminal["name"]: terminal["last_activity"] for terminal in manager.list()}


def process_cpu_s(pid: int | None = None) -> float | None:
    """CPU seconds of a process, of those below it, and of those that they have outlived.

    Walks the process table: call it off the event loop.
    """
    if psutil is None:
        return None
    try:
        top = psutil.Process(pid or os.getpid())
        family = [top, *top.children(recursive=True)]
        return sum(_process_used_s(process) for process in family)
    except psutil.Error:
        return None


def _process_used_s(process: Any) -> float:
    """Return a process's CPU seconds with its ended children's; 0 if it has ended meanwhile."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def ask_starting_kernels(settings: Mapping[str, Any]) -> None:
    """Ask each kernel that is "starting" for its status; on the event loop, without waiting.

    The question goes to the shell channel: a kernel that computes answers when it has done so, and
    until then stays unknown.

    Args:
        settings: the web application's settings.
    """
    manager = settings["kernel_manager"]
    unheard = [
        kernel["id"] for kernel in manager.list_kernels() if kernel["execution_state"] == "starting"
    ]
    for kernel in map(manager.get_kernel, unheard):
        if kernel.shell_port:  # not of one whose ports are not chosen yet, or are a gateway's
            _request_info(kernel)


def _request_info(kernel: Any) -> None:
    shell = kernel.connect_shell()
    shell.on_send(lambda *_: shell.close(linger=LINGER_MS))
    kernel.session.send(shell, "kernel_info_request")

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
    """What one look at the server found.

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
        active_age_s: since the last key or pointer in any of them; None if none ever told.
        unsaved: documents with changes that are not saved; None if none ever told.
    """

    open: int
    active_age_s: float | None
    unsaved: int | None


@dataclass
class Ages:
    """When each thing was last seen to change.

    Attributes:
        seen: by name, the last value and when it was first seen, seconds of a monotonic clock.
    """

    seen: dict[str, tuple[object, float]] = field(default_factory=dict)

    def age_s(self, name: str, value: object, now: float) -> float:
        """Seconds since ``value`` was first seen; a name not seen before starts now."""
        before = self.seen.get(name)
        if before is None or before[0] != value:
            self.seen[name] = (value, now)
            return 0.0
        return now - before[1]

    def keep(self, names: Iterable[str]) -> None:
        """Forget what is not there any more."""
        wanted = set(names)
        self.seen = {name: value for name, value in self.seen.items() if name in wanted}


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
    """Who is connected, and what they said; the last key press outlives the tab it was in."""

    def __init__(self) -> None:
        self._unsaved: dict[object, int | None] = {}
        self._active_at: float | None = None

    def opened(self, tab: object) -> None:
        """A tab connected; it has not told anything yet."""
        self._unsaved[tab] = None

    def closed(self, tab: object) -> None:
        """A tab went away, and what was not saved in it with it."""
        self._unsaved.pop(tab, None)

    def told(self, tab: object, said: Mapping[str, Any], now: float) -> None:
        """A tab reported; what makes no sense is passed over.

        Args:
            tab: which one.
            said: ``unsaved`` documents, and ``active_age_s`` since the last key or pointer.
            now: seconds of the server's monotonic clock.
        """
        unsaved = _number(said.get("unsaved"), MANY)
        age_s = _number(said.get("active_age_s"), LONG_S)
        if tab in self._unsaved and unsaved is not None:
            self._unsaved[tab] = int(unsaved)
        if age_s is not None:
            self._active_at = max(now - age_s, self._active_at or -math.inf)

    def summary(self, now: float) -> Tabs:
        """All tabs in one; documents are counted per tab, each has its own changes."""
        known = [count for count in self._unsaved.values() if count is not None]
        return Tabs(
            open=len(self._unsaved),
            active_age_s=None if self._active_at is None else now - self._active_at,
            unsaved=min(sum(known), MANY) if known else None,
        )


def _number(value: object, most: float) -> float | None:
    """A number that can be counted with, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None


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


def ask_unheard(settings: Mapping[str, Any]) -> None:
    """Ask each kernel that is "starting" for its status; on the event loop, without waiting.

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

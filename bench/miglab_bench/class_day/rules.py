"""Who ends servers: our reclaimer, an idle culler, nobody."""

from collections.abc import Sequence
from typing import Protocol

from miglab_api.leases import LeaseState
from miglab_bench.class_day.assumptions import Day
from miglab_bench.class_day.lab import DayLab
from miglab_bench.class_day.server import DayServer
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import Rules
from miglab_pool.reclaim.round import Reclaimer


class Ender(Protocol):
    """Decides which servers end."""

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """What the servers say."""

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """Those that end now."""


class MiglabReclaimer:
    """The lab's own reclaimer, as it is set without a word in lab.toml."""

    def __init__(self) -> None:
        self._at = 0.0
        self._board = SignalBoard(clock=self._clock)
        self._reclaimer = Reclaimer(Rules(), self._board, clock=self._clock)

    def _clock(self) -> float:
        return self._at

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """Every server reports."""
        self._at = at
        for server in servers:
            self._board.take(server.lease, server.signals(at))

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """Read the slices, look at every lease, stop what was reclaimed."""
        self._at = at
        lab.rack.busy = {
            uuid for server in servers if server.ran_at is not None for uuid in server.uuids
        }
        lab.pool.sample()
        self._reclaimer.round(lab.pool)
        return [one for one in servers if lab.lease_state(one.lease) is LeaseState.RELEASING]


class Culler:
    """jupyterhub-idle-culler: the time since ``last_activity``, and nothing else.

    JupyterHub's last activity of a server is the later of two: traffic through the proxy, which a
    connected page causes by itself (websocket pings), and what the server reports, of which the
    messages of its kernels are part: a kernel that runs and prints nothing sends none.
    """

    def __init__(self, day: Day) -> None:
        self._day = day
        self._next_at = day.cull_every_s

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """It asks the hub alone."""

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """All that were quiet for too long, every so often."""
        if at < self._next_at:
            return []
        self._next_at = at + self._day.cull_every_s
        return [one for one in servers if at - one.told_at >= self._day.cull_timeout_s]


class Nobody:
    """Servers run until their students stop them."""

    def hear(self, at: float, servers: Sequence[DayServer]) -> None:
        """Nothing."""

    def ends(self, at: float, lab: DayLab, servers: Sequence[DayServer]) -> list[DayServer]:
        """None."""
        return []

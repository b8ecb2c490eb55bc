"""The leases as the reclaimer looks at them: all that are in use.  Reads only."""

from collections.abc import Callable
from dataclasses import dataclass

from miglab_spawner.messages import LeaseState, LeaseView

from .core import Core
from .rows import LeaseRow

IN_USE = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED})


@dataclass(frozen=True, slots=True)
class Case:
    """A lease in use.

    Attributes:
        lease: with its slices, their memory and processes as last read.
        held_since: when its server was attached, seconds since the epoch.
        stays: how often "I am still here" was said since work was last seen.
        stay_until: until when the last of these counts.
    """

    lease: LeaseView
    held_since: float
    stays: int
    stay_until: float | None

    @property
    def processes(self) -> int | None:
        """How many processes are on its slices; None if one cannot be read."""
        counts = [item.processes for item in self.lease.slices]
        known = [count for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def memory_used_mib(self) -> int | None:
        """Memory in use on its slices; None if one cannot be read."""
        used = [item.memory_used_mib for item in self.lease.slices]
        known = [mib for mib in used if mib is not None]
        return sum(known) if used and len(known) == len(used) else None


def cases(core: Core, view: Callable[[LeaseRow], LeaseView]) -> list[Case]:
    """All leases in use."""
    return [
        Case(view(row), row.attached_at or row.granted_at, row.stays, row.stay_until)
        for row in core.state.leases.values()
        if row.state in IN_USE and row.holder
    ]

"""The leases as the reclaimer looks at them: all that are in use.  Reads only."""

from collections.abc import Iterable
from dataclasses import dataclass

from miglab_api.leases import LeaseState, LeaseView
from miglab_pool.leases import views as pool_views
from miglab_pool.queue.demand import others_waiting
from miglab_pool.reservations import class_ends
from miglab_pool.reservations.rules import MakesWay
from miglab_pool.state.view import PoolView

AHEAD_S = 3600.0  # longer than anybody is warned before an end
IN_USE = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED})


@dataclass(frozen=True, slots=True)
class Case:
    """A lease in use.

    Attributes:
        lease: with its slices, their memory and processes as last read.
        held_since: when its server was attached, seconds since the epoch.
        keepalives: how often "I am still here" was said since work was last seen.
        keepalive_until: until when the last of these counts.
        end_reason: why it ends at its own end, where that is not its length.
        makes_way: its end, if the class it was drawn for is over and others need its slot.
    """

    lease: LeaseView
    held_since: float
    keepalives: int
    keepalive_until: float | None
    makes_way: MakesWay | None = None
    end_reason: str = ""

    @property
    def processes(self) -> int | None:
        """How many processes are on its slices; None if one cannot be read."""
        return _sum(item.processes for item in self.lease.slices)

    @property
    def memory_used_mib(self) -> int | None:
        """Memory in use on its slices; None if one cannot be read."""
        return _sum(item.memory_used_mib for item in self.lease.slices)

    @property
    def activity_pct(self) -> float | None:
        """How busy the busiest of its slices is, percent; None if none tells."""
        told = (item.activity_pct for item in self.lease.slices)
        return max((share for share in told if share is not None), default=None)


def _sum(figures: Iterable[int | None]) -> int | None:
    """Their sum if there are any and all are known."""
    found = list(figures)
    known = [figure for figure in found if figure is not None]
    return sum(known) if found and len(known) == len(found) else None


def cases(view: PoolView) -> list[Case]:
    """All leases in use."""
    ends = class_ends.ends(view, AHEAD_S)
    return [
        Case(
            pool_views.lease_view(view, row, others_wait=others_waiting(view, row)),
            row.attached_at or row.granted_at,
            row.keepalives,
            row.keepalive_until,
            makes_way=ends.get(row.id),
        )
        for row in view.leases.values()
        if row.state in IN_USE and row.holder
    ]

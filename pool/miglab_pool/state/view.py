"""The pool at one moment: what every decision and every answer is made from.

A view never changes.  It holds the rows as they were when it was made, and the moment; what follows
from these is worked out when it is first asked for, and kept with the view.  So any thread may read
it, and nothing in it goes stale: a change of the pool makes another view.

Knows neither the store nor the ledger's file.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from miglab_pool.gpu.geometry import Geometry, Placed
from miglab_pool.layouts import rules as layout_times
from miglab_pool.layouts.rules import Planned
from miglab_pool.ledger.rows import (
    GpuRow,
    LayoutRow,
    LeaseRow,
    MessageRow,
    ReservationRow,
    SliceRow,
    TicketRow,
)
from miglab_pool.queue.rules import UsageTotals, WaitEstimates
from miglab_pool.reservations import rules as reservations_in_force
from miglab_pool.reservations.rules import InForce
from miglab_pool.settings import PoolSettings
from miglab_pool.state.gpu_snapshot import GpuFacts, GpuSnapshot, occupancies_of
from miglab_pool.state.placement import GpuOccupancy


@dataclass(frozen=True, eq=False)
class PoolView:
    """See the module.

    Attributes:
        version: the store's when it was made.
        at: the moment, seconds since the epoch.
        settings: the site's.
        ledger: the ledger's identity.
        simulated: whether the GPUs are.
        started_at: when this pool service began, or every grace anew: no grace is older.
        paused: why nothing is granted; empty: it is granted.
        facts: the GPUs, by UUID.
        slices: the slices that are not gone; tickets, leases, reservations, messages and layouts
            alike are those that live.
        past: the reservations that are over.
        usage: what was used lately.
        estimates: of the waits, to be shown; no grant depends on them.
    """

    version: int
    at: float
    settings: PoolSettings
    ledger: str
    simulated: bool
    started_at: float
    paused: str
    facts: Mapping[str, GpuFacts]
    slices: Mapping[int, SliceRow]
    tickets: Mapping[int, TicketRow]
    leases: Mapping[int, LeaseRow]
    reservations: Mapping[int, ReservationRow]
    messages: Mapping[int, MessageRow]
    layouts: Mapping[int, LayoutRow]
    past: tuple[ReservationRow, ...]
    usage: UsageTotals
    estimates: WaitEstimates

    # -- GPUs ---------------------------------------------------------------------------------

    @cached_property
    def gpus(self) -> dict[str, GpuSnapshot]:
        """Every GPU under the layout in force, by UUID."""
        in_force = self.layouts_in_force
        return {uuid: one.now(in_force.get(uuid), self.at) for uuid, one in self.facts.items()}

    @cached_property
    def occupancies(self) -> list[GpuOccupancy]:
        """The GPUs that are cut, as placement sees them."""
        return occupancies_of(list(self.gpus.values()))

    @cached_property
    def geometries(self) -> list[Geometry]:
        """How the GPUs that ever answered can be cut."""
        return [one.hardware for one in self.facts.values() if one.hardware is not None]

    @cached_property
    def rows(self) -> list[GpuRow]:
        """The rows of all GPUs."""
        return [one.row for one in self.facts.values()]

    def placed(self, row: SliceRow) -> Placed:
        """A slice as placement sees it."""
        return self.facts[row.gpu].placed(row)

    # -- layouts and reservations -------------------------------------------------------------

    @cached_property
    def plans(self) -> list[Planned]:
        """Every layout that is planned or in force."""
        return [layout_times.planned(row) for row in self.layouts.values()]

    @cached_property
    def layouts_in_force(self) -> dict[str, layout_times.InForce]:
        """The layout in force on each GPU; one without any is not named."""
        return layout_times.in_force(self.plans, self.at, self.settings.pool.reserve_lead_s)

    @cached_property
    def reservations_in_force(self) -> list[InForce]:
        """The reservations that keep places or take place, those that began first in front."""
        return self.in_force_at(self.at, self.leases.values())

    def in_force_at(self, moment: float, leases: Collection[LeaseRow]) -> list[InForce]:
        """The same of another moment, when these leases live."""
        rows, lead_s = self.reservations.values(), self.settings.pool.reserve_lead_s
        return reservations_in_force.in_force(rows, moment, lead_s, leases)

    # -- leases and tickets -------------------------------------------------------------------

    def slices_of(self, lease: LeaseRow) -> list[SliceRow]:
        """The lease's live slices, in the order asked."""
        return [self.slices[number] for number in lease.slices if number in self.slices]

    @cached_property
    def held_servers(self) -> frozenset[tuple[str, str]]:
        """The servers, each with its user, whose last lease is not over: none ever holds two."""
        return frozenset((lease.user, lease.server) for lease in self.leases.values())

    @cached_property
    def queued(self) -> list[TicketRow]:
        """Everyone who waits, in order of arrival."""
        waiting = (ticket for ticket in self.tickets.values() if ticket.is_queued)
        return sorted(waiting, key=lambda ticket: (ticket.created_at, ticket.id))


def gpus_at(
    view: PoolView,
    moment: float,
    there: Collection[int] | None,
    plans: Sequence[Planned] | None = None,
) -> dict[str, GpuSnapshot]:
    """What every GPU is cut into, and whose it is, at another moment than the view's.

    Args:
        view: the pool now.
        moment: which.
        there: the slices, by number, that lie there then: a layout is laid around them.  None:
            nothing does.
        plans: the layouts that there are; None: the pool's.
    """
    of_pool = view.plans if plans is None else plans
    in_force = layout_times.in_force(of_pool, moment, view.settings.pool.reserve_lead_s)
    return {uuid: one.then(in_force.get(uuid), there) for uuid, one in view.facts.items()}

"""The pool at one moment: what every decision and every answer is made from.

A view never changes.  It holds the moment and the rows of that moment; whatever follows from them
is computed when it is first needed, and cached with the view (`cached_on_instance`).  So any thread
may read it, and nothing in it becomes stale: a change of the pool makes another view.

A `GpuSnapshot` is made anew when a row of its GPU is touched, and never changes either.  Knows
neither the store nor the ledger's file.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from miglab_api.gpus import SliceState
from miglab_pool.gpu.geometry import (
    Geometry,
    Placement,
    Profile,
    ProfilePlacement,
    without_placements,
)
from miglab_pool.gpu.readings import GpuInfo, Usage
from miglab_pool.ledger.rows import (
    FULL,
    GPU_OK,
    GpuRow,
    LeaseRow,
    MessageRow,
    SliceRow,
    TicketRow,
)
from miglab_pool.settings import PoolSettings
from miglab_pool.state.fair_share import LeaseUses
from miglab_pool.state.partition import (
    Change,
    LayoutRole,
    PresentSlice,
    arrange,
    is_possible,
    plan_change,
    restrict_geometry,
)
from miglab_pool.state.placement import WITHIN_SECONDS, Choice, GpuOccupancy
from miglab_pool.state.reservation_times import ReservationTimes
from miglab_pool.state.wait_estimates import WaitEstimates

Frozen = TypeVar("Frozen")
P = ParamSpec("P")
T = TypeVar("T")
_KINDS = {
    SliceState.FREE: LayoutRole.FREE,
    SliceState.LEASED: LayoutRole.HELD,
    SliceState.SCRUBBING: LayoutRole.GOING,
    SliceState.QUARANTINED: LayoutRole.FIXED,
    SliceState.FOREIGN: LayoutRole.FIXED,
}


def cached_on_instance(
    work: Callable[Concatenate[Frozen, P], T],
) -> Callable[Concatenate[Frozen, P], T]:
    """Cache a pure function's results on its first argument, with which they are freed.

    Args:
        work: takes an immutable object with a ``__dict__``, and hashable values.

    Returns:
        The cached function.  Two threads that call it at the same time may both compute a result.
    """

    @wraps(work)
    def answer(instance: Frozen, /, *args: P.args, **options: P.kwargs) -> T:
        answers: dict[Any, Any] = instance.__dict__.setdefault("_answers", {})
        key = (work, *args, *options.items())
        result: T
        try:
            result = answers[key]
        except KeyError:
            result = answers[key] = work(instance, *args, **options)
        return result

    return answer


@dataclass(frozen=True, eq=False)
class GpuSnapshot:
    """A GPU at a moment.

    Attributes:
        row: the GPU's.
        info: what it said of itself; None if it never answered.
        slices: those that are not gone.
        leases: the live leases on it, by number.
        slice_usage: what was read last of each of its slices, by number.
        gpu_usage: what was read last of the GPU itself.
        rests_until: nothing is granted on it before then, as what was granted could not be made.
        unprepared_until: nothing is made for nobody before then, for the same reason.
        closed_until: the placements at which NVML found no room although none is known to lie
            there, each by its profile's name and its start: nothing is granted there before then.
        settings: the site's.
        is_resting: whether it rests after a grant that could not be made.
        closed: the placements that are closed now.
        assumed: what its layout is laid around, at another moment; None: what lies there now.
    """

    row: GpuRow
    info: GpuInfo | None
    slices: tuple[SliceRow, ...]
    leases: Mapping[int, LeaseRow]
    slice_usage: Mapping[int, Usage]
    gpu_usage: Usage | None
    rests_until: float
    unprepared_until: float
    closed_until: Mapping[object, float]
    settings: PoolSettings
    is_resting: bool = False
    closed: frozenset[object] = frozenset()
    assumed: tuple[PresentSlice, ...] | None = None

    @property
    def uuid(self) -> str:
        """The GPU's."""
        return self.row.uuid

    @property
    def hardware(self) -> Geometry | None:
        """How the GPU can be cut, if it ever answered."""
        return self.info.geometry if self.info else None

    @property
    def is_partitionable(self) -> bool:
        """Whether it is to be cut on demand."""
        return self.info is not None and not self.is_whole

    @property
    def is_whole(self) -> bool:
        """Whether it is to be leased whole."""
        return is_whole(self.row, self.info, self.settings)

    @property
    def course(self) -> str:
        """The only course that gets leases there; empty: any does."""
        return self.settings.assigned_course(self.row.uuid, self.row.idx)

    @cached_property
    def has_lost(self) -> bool:
        """Whether a server may still live whose slice on this GPU is gone.

        NVML's UUIDs repeat: what is made now could get the very UUID that server was given, so
        nothing is made or granted here until it is gone.
        """
        return any(row.lost for row in self.slices)

    def placement_of(self, row: SliceRow) -> ProfilePlacement:
        """One of its slices as placement sees it."""
        return placement_on(self.hardware, row)

    @cached_property
    def present(self) -> tuple[PresentSlice, ...]:
        """The slices on it, as a layout sees them."""
        if self.assumed is not None:
            return self.assumed
        return tuple(
            PresentSlice(row.id, self.placement_of(row), _layout_role(row)) for row in self.slices
        )

    @cached_property
    def partition(self) -> tuple[str, ...]:
        """The profiles of its layout, if it can (still) be cut so; none: it is cut on demand."""
        if not self.row.partition or self.hardware is None or not self.is_partitionable:
            return ()
        names = tuple(self.row.partition.split(","))
        has_all = all(name in self.hardware.by_name for name in names)
        return names if has_all and is_possible(names, self.hardware) else ()

    @property
    def layout(self) -> str:
        """The name of its layout; empty: it is cut on demand."""
        return self.row.layout if self.partition else ""

    # -- moments ------------------------------------------------------------------------------

    def now(self, at: float) -> "GpuSnapshot":
        """Return the GPU at the moment of its rows: with pauses and closed placements applied."""
        is_resting = at < self.rests_until
        if not (is_resting or self.closed_until):
            return self
        closed = frozenset(place for place, until in self.closed_until.items() if at < until)
        return self._restricted(is_resting, closed) if is_resting or closed else self

    @cached_on_instance
    def _restricted(self, is_resting: bool, closed: frozenset[object]) -> "GpuSnapshot":
        return replace(self, is_resting=is_resting, closed=closed)

    def at_moment(self, remaining: Collection[int] | None) -> "GpuSnapshot":
        """Return the GPU as it will be at another moment, as far as that is known.

        Args:
            remaining: the numbers of the slices that are there then; those that only a person can
                remove are there in any case.  None: no slice at all.
        """
        stays = (
            present_slice
            for present_slice in self.present
            if present_slice.number in (remaining or ()) or present_slice.role is LayoutRole.FIXED
        )
        return replace(self, assumed=() if remaining is None else tuple(stays))

    def under_proof(self, reason: str) -> "GpuSnapshot":
        """Return the GPU as drained, while it is lent to `miglab prove`."""
        return replace(self, row=replace(self.row, draining=self.row.draining or reason))

    def with_layout(self, layout: str, partition: tuple[str, ...], at: float) -> "GpuSnapshot":
        """Return the GPU at a moment as if it had another layout."""
        row = replace(self.row, layout=layout, partition=",".join(partition))
        return replace(self, row=row).now(at)

    # -- what may lie there -------------------------------------------------------------------

    @cached_property
    def geometry(self) -> Geometry | None:
        """How it may be cut: anyhow, or as the layout says; None: not at all."""
        hardware = self.hardware
        if hardware is None or not self.partition:
            return hardware if self.is_partitionable else None
        return restrict_geometry(hardware, arrange(hardware, self.partition, self.present))

    @property
    def is_open(self) -> bool:
        """Whether it takes new leases, by how it is and what was done with it."""
        return self.row.state == GPU_OK and not self.row.draining and not self.is_resting

    @property
    def is_free_whole(self) -> bool:
        """Whether it could be leased whole now, by what was read last."""
        if not self.is_open or not self.is_whole or self.slices:
            return False
        usage = self.gpu_usage
        return usage is not None and usage.processes == ()

    @property
    def whole(self) -> tuple[Choice, ...]:
        """The choice of the whole GPU, as it is granted where GPUs are leased whole."""
        row = self.row
        size, sms = row.memory_slices, row.sm_count or 0
        profile = Profile(FULL, -1, -1, 0, size, sms, row.memory_mib, 1, (0,))
        return (Choice(row.uuid, profile, Placement(0, size)),)

    @cached_property
    def occupancy(self) -> GpuOccupancy | None:
        """The GPU as placement sees it; None if it is not one that is cut."""
        if self.geometry is None:
            return None
        geometry = without_placements(self.geometry, self.closed) if self.closed else self.geometry
        rows = self.slices
        warm = tuple(self.placement_of(row) for row in rows if row.is_open)
        live = tuple(self.placement_of(row) for row in rows if not row.is_open)
        immovable = tuple(self.placement_of(row) for row in rows if row.is_fixed)
        usable = self.is_open and not self.has_lost
        free = {((1 << row.size) - 1) << row.start: self._frees_at(row) for row in rows}
        return GpuOccupancy(self.uuid, geometry, live, warm, usable, immovable, free, self.course)

    @cached_property
    def emptied(self) -> GpuOccupancy | None:
        """The GPU as placement would see it if no lease were on it; None as for `occupancy`."""
        occupancy = self.occupancy
        return occupancy and replace(occupancy, live=occupancy.immovable)

    @cached_property
    def bare(self) -> GpuOccupancy | None:
        """The GPU as placement would see it with nothing on it and no layout, if it is ever cut."""
        if self.hardware is None or self.is_whole:
            return None
        return GpuOccupancy(self.uuid, self.hardware)

    def _frees_at(self, row: SliceRow) -> float:
        lease = self.leases.get(row.lease or 0)
        return WITHIN_SECONDS if lease is None else lease.frees_at(self.settings)

    @cached_on_instance
    def change(self, partition: tuple[str, ...] | None = None) -> Change:
        """Plan the change to a partition; without ``partition`` to its own layout's."""
        assert self.hardware is not None
        return plan_change(self.hardware, partition or self.partition, self.present)


def is_whole(row: GpuRow, info: GpuInfo | None, settings: PoolSettings) -> bool:
    """Whether a GPU is to be leased whole: lab.toml says so, or it cannot do MIG.

    A GPU whose MIG mode is not the one that this asks for is `unfit`, and takes no lease at all.
    """
    if info is None:
        return False
    return not info.geometry.profiles or settings.gpus.wants_whole(row.uuid, row.idx)


def placement_on(geometry: Geometry | None, row: SliceRow) -> ProfilePlacement:
    """A slice as placement sees it, by its GPU's geometry or, that unknown, by the ledger."""
    return ProfilePlacement(profile_on(geometry, row), Placement(row.start, row.size))


def profile_on(geometry: Geometry | None, row: SliceRow) -> Profile:
    """The profile of a slice, by its GPU's geometry or, that unknown, as the ledger has it."""
    listed = geometry.by_name.get(row.profile) if geometry else None
    return listed or Profile(
        row.profile, -1, -1, 0, row.size, row.sm_count, row.memory_mib, 1, (row.start,)
    )


def _layout_role(row: SliceRow) -> LayoutRole:
    if row.state == SliceState.MAKING:
        return LayoutRole.COMING if row.lease is None else LayoutRole.GRANTED
    if row.state == SliceState.FREE and row.draining:
        return LayoutRole.FIXED
    return _KINDS[SliceState(row.state)]


@dataclass(frozen=True, eq=False)
class PoolView:
    """The pool at one moment; immutable.

    Attributes:
        version: the store's when it was made.
        at: the moment, seconds since the epoch.
        settings: the site's.
        ledger: the ledger's identity.
        simulated: whether the GPUs are.
        started_at: when this pool service began, or every grace anew: no grace is older.
        paused: why nothing is granted; empty: it is granted.
        unpaused_gpus: the GPUs, by UUID, as they are but for pauses after failures; see `gpus`.
        slices: the slices that are not gone; tickets, leases, reservations and messages alike are
            those that live.
        lease_uses: what leases have used lately.
        estimates: of the waits, to be shown; no grant depends on them.
        wasted: by user, when slices last went to waste that were made free for them.
    """

    version: int
    at: float
    settings: PoolSettings
    ledger: str
    simulated: bool
    started_at: float
    paused: str
    unpaused_gpus: Mapping[str, GpuSnapshot]
    slices: Mapping[int, SliceRow]
    tickets: Mapping[int, TicketRow]
    leases: Mapping[int, LeaseRow]
    reservations: ReservationTimes
    messages: Mapping[int, MessageRow]
    lease_uses: LeaseUses
    estimates: WaitEstimates
    wasted: Mapping[str, tuple[float, ...]]

    # -- GPUs ---------------------------------------------------------------------------------

    @cached_property
    def gpus(self) -> dict[str, GpuSnapshot]:
        """Every GPU now, by UUID."""
        return {uuid: gpu.now(self.at) for uuid, gpu in self.unpaused_gpus.items()}

    @cached_property
    def occupancies(self) -> list[GpuOccupancy]:
        """The GPUs that are cut, as placement sees them."""
        return [gpu.occupancy for gpu in self.gpus.values() if gpu.occupancy is not None]

    @cached_property
    def geometries(self) -> list[Geometry]:
        """How the GPUs that ever answered can be cut, each way once."""
        geometries = (gpu.hardware for gpu in self.unpaused_gpus.values())
        return list({id(geometry): geometry for geometry in geometries if geometry}.values())

    @cached_property
    def gpu_rows(self) -> list[GpuRow]:
        """The rows of all GPUs."""
        return [gpu.row for gpu in self.unpaused_gpus.values()]

    def placement_of(self, row: SliceRow) -> ProfilePlacement:
        """A slice as placement sees it."""
        return self.unpaused_gpus[row.gpu].placement_of(row)

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

"""The wire models of leases, tickets, slices and GPUs, and leases as the reclaimer judges them.

The wire models name their users; the HTTP routes redact them for each principal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from miglab_api.gpus import GpuView, PoolSnapshot, ReservedSlot, SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, LeaseWarning, WarningKind
from miglab_api.line import LeaseEnd
from miglab_api.staff import is_holder
from miglab_api.tickets import Purpose, TicketState, TicketView
from miglab_pool.ledger.rows import LeaseRow, SliceRow, TicketRow
from miglab_pool.queue import offers
from miglab_pool.queue import order as queue
from miglab_pool.queue.needs import others_waiting
from miglab_pool.queue.offers import headcount
from miglab_pool.queue.order import answer_deadline, expiry_time
from miglab_pool.queue.quotas import SliceClaim, longest_guarantee_s, slice_hours_left_s
from miglab_pool.reservations import guarantees, slots
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

LEAST_EXTENSION_S = 60.0  # a shorter extension is not offered


def slice_view(view: PoolView, row: SliceRow) -> SliceView:
    """Return the wire model of a slice."""
    return _slice_view(view.unpaused_gpus[row.gpu], row, "")


@cached_on_instance
def _slice_view(gpu: GpuSnapshot, row: SliceRow, blocks_layout: str) -> SliceView:
    lease, usage = gpu.leases.get(row.lease or 0), gpu.slice_usage.get(row.id)
    processes = usage.processes if usage else None
    return SliceView.of(
        row,
        slice_id=row.id,
        gpu=gpu.row.idx,
        state=SliceState(row.state) if row.is_live else SliceState.SCRUBBING,
        memory_used_mib=usage.memory_used_mib if usage else None,
        processes=None if processes is None else len(processes),
        activity_pct=usage.activity_pct if usage else None,
        user=lease.user if lease else None,
        server=lease.server if lease else None,
        course=lease.course if lease else None,
        guaranteed_until=lease.guaranteed_until if lease else None,
        blocks_layout=blocks_layout,
    )


@cached_on_instance
def gpu_view(gpu: GpuSnapshot) -> GpuView:
    """Return the wire model of a GPU with its slices, lowest start first."""
    on_gpu = sorted(gpu.slices, key=lambda row: (row.start, row.id))
    blocked_layouts, row = _layouts_blocked_by(gpu), gpu.row
    return GpuView.of(
        row,
        index=row.idx,
        reason=row.reason or _describe_unavailable(gpu),
        course=gpu.course,
        layout=gpu.layout,
        slices=tuple(_slice_view(gpu, s, blocked_layouts.get(s.id, "")) for s in on_gpu),
    )


def _layouts_blocked_by(gpu: GpuSnapshot) -> dict[int, str]:
    """Return the GPU's layout by each slice that the layout has no place for."""
    if not gpu.layout:
        return {}
    todo = gpu.change()
    return {change.number: gpu.layout for change in (*todo.drains, *todo.removes)}


def _describe_unavailable(gpu: GpuSnapshot) -> str:
    """Return why a GPU that answers takes no lease; empty if it takes leases."""
    if gpu.has_lost:
        return "takes no new lease until the servers whose slices are gone have ended"
    if not gpu.is_whole or gpu.slices:
        return ""
    usage = gpu.gpu_usage
    if usage is None or usage.processes is None:
        return "its processes cannot be read, so it counts as in use"
    if not usage.processes:
        return ""
    pids = ", ".join(str(process.pid) for process in usage.processes)
    return f"foreign processes run on it: {pids}"


def ticket_view(view: PoolView, row: TicketRow) -> TicketView:
    """Return the wire model of a ticket, with its position and wait estimate."""
    positions = queue.positions(view) if row.state == TicketState.WAITING else {}
    position = positions.get(row.id)
    estimate = None if position is None else offers.current_estimate(view, row.id)
    return TicketView.of(
        row,
        position=position,
        waiting=len(positions),
        expires_at=expiry_time(view.settings, view.started_at, row),
        answer_by=answer_deadline(view.settings, view.started_at, row, view.at),
        lease=None if row.state == TicketState.WAITING else row.lease,
        message=row.message or queue.wait_reason(view, row),
        is_next=row.is_queued and row.next_at is not None,
        estimate=estimate,
    )


def full_lease_view(
    view: PoolView, row: LeaseRow, rows: Sequence[SliceRow] | None = None
) -> LeaseView:
    """Return `lease_view` with how many wait for the lease and by how much it may be extended."""
    most_s = extension_limit_s(view, row) if row.is_held else None
    return lease_view(view, row, rows, others_waiting(view, row), most_s)


def lease_view(
    view: PoolView,
    row: LeaseRow,
    rows: Sequence[SliceRow] | None = None,
    others_wait: int = 0,
    extension_s: float | None = None,
) -> LeaseView:
    """Return the wire model of a lease with its slices.

    Args:
        view: the pool.
        row: the lease.
        rows: its slices, including destroyed ones; None: those that exist.
        others_wait: how many tickets wait for what it would free.
        extension_s: the most that one extension may add; None: as much as the settings allow.
    """
    most_s = view.settings.pool.extension_s if extension_s is None else extension_s
    rows = view.slices_of(row) if rows is None else rows
    return LeaseView.of(
        row,
        ledger=view.ledger,
        uuids=tuple(s.uuid for s in rows if s.uuid is not None),
        slices=tuple(slice_view(view, s) for s in rows) if row.is_live else (),
        release_requested_at=row.releasing_at,
        is_given_back=_is_given_back(row),
        goes_on=row.warn_kind == WarningKind.NEEDED and row.warn_by == "reclaimer",
        extensions_left=row.extensions_left(view.settings) if most_s else 0,
        extension_s=most_s,
        warning=_warning(view, row),
        others_wait=others_wait,
    )


def lease_end(row: LeaseRow) -> LeaseEnd:
    """Return the wire model of a lease that is over."""
    return LeaseEnd(
        shape=row.shape,
        server=row.server,
        ended_at=row.ended_at or row.granted_at,
        reason=row.reason,
        is_given_back=_is_given_back(row),
        purpose=Purpose(row.purpose),
    )


def _is_given_back(row: LeaseRow) -> bool:
    return row.releasing_at is not None and is_holder(row.warn_by, row.user, row.server)


def _warning(view: PoolView, row: LeaseRow) -> LeaseWarning | None:
    if row.state != LeaseState.WARNED or row.warned_at is None or row.reclaim_at is None:
        return None
    return LeaseWarning(
        at=row.warned_at,
        reclaim_at=row.reclaim_at,
        reason=row.warn_reason,
        kind=WarningKind(row.warn_kind),
        keepalives_left=row.keepalives_left(view.settings),
    )


def _reserved_slots(view: PoolView) -> tuple[ReservedSlot, ...]:
    """Return the slots that are reserved now."""
    return tuple(
        ReservedSlot(
            reservation=row.id,
            course=row.course,
            gpu=slot.gpu,
            start=slot.placed_slice.placement.start,
            size=slot.placed_slice.placement.size,
        )
        for row, slot in slots.slots_with_reservation(view)
    )


def _offered_tickets(view: PoolView) -> tuple[TicketView, ...]:
    """Return the tickets whose slices are ready and not taken yet, the oldest offer first."""
    offered = (row for row in view.tickets.values() if row.state == TicketState.OFFERED)
    by_offer = sorted(offered, key=lambda row: (row.offered_at or 0.0, row.id))
    return tuple(ticket_view(view, row) for row in by_offer)


@cached_on_instance
def snapshot(view: PoolView) -> PoolSnapshot:
    """Return the pool at the view's moment; only GPUs that changed are worked out again."""
    gpus = (gpu_view(gpu) for gpu in view.gpus.values())
    return PoolSnapshot(
        at=view.at,
        simulated=view.simulated,
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))),
        waiting=tuple(ticket_view(view, view.tickets[number]) for number in queue.positions(view)),
        offered=_offered_tickets(view),
        reserved_slots=_reserved_slots(view),
        paused=view.paused,
        people=headcount(view),
    )


def guarantee_end_at_attach(view: PoolView, lease: LeaseRow) -> float:
    """Return until when a lease is guaranteed if its server attaches now.

    That is no later than was set at the grant.
    """
    lasts_s = longest_guarantee_s(view.settings, lease)
    left_s = remaining_slice_hours_s(view, lease)
    by_quota = view.at + (lasts_s if left_s is None else min(lasts_s, left_s))
    drawn_until = slots.drawn_until(view).get(lease.id, 0.0)
    return min(lease.guaranteed_until, max(by_quota, drawn_until))


def remaining_slice_hours_s(view: PoolView, lease: LeaseRow) -> float | None:
    """Return how many seconds the slice-hours of a lease's student last; None: no limit."""
    size = sum(row.size for row in view.slices_of(lease))
    claim = SliceClaim(lease.user, lease.course, lease.server, size)
    return slice_hours_left_s(view.settings.quotas, claim, view.lease_uses.all, view.at)


@cached_on_instance
def extension_limit_s(view: PoolView, lease: LeaseRow) -> float:
    """Return the most seconds that one extension may add to a lease now; 0 for none.

    Reservations may leave less than the settings allow, or nothing.
    """
    longest_s = view.settings.pool.extension_s
    if not view.reservations:
        return longest_s
    begins = max(lease.guaranteed_until, view.at)
    most_s = guarantees.extension_limit(view, lease, begins + longest_s).until - begins
    return most_s if most_s >= LEAST_EXTENSION_S else 0.0


@dataclass(frozen=True, slots=True)
class LeaseCase:
    """A lease in use, as the reclaimer judges it.

    Attributes:
        lease: with its slices, their memory and processes as last read.
        held_since: when its server was attached, seconds since the epoch.
        keepalives: how often the student said "I am still here" since work was last seen.
        keepalive_until: until when the last keepalive counts.
        end_reason: why it ends at its set end, if not because its time is up.
    """

    lease: LeaseView
    held_since: float
    keepalives: int
    keepalive_until: float | None
    end_reason: str = ""

    @property
    def processes(self) -> int | None:
        """The number of processes on its slices; None if one cannot be read."""
        return _sum_if_known(s.processes for s in self.lease.slices)

    @property
    def memory_used_mib(self) -> int | None:
        """Memory in use on its slices; None if one cannot be read."""
        return _sum_if_known(s.memory_used_mib for s in self.lease.slices)

    @property
    def activity_pct(self) -> float | None:
        """The activity of its busiest slice, percent; None if none can be read."""
        readings = (s.activity_pct for s in self.lease.slices)
        return max((share for share in readings if share is not None), default=None)


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """For how long a lease was seen active, idle or unknown since the last report, seconds."""

    lease: int
    active_s: float = 0.0
    idle_s: float = 0.0
    unknown_s: float = 0.0


def _sum_if_known(figures: Iterable[int | None]) -> int | None:
    """Return the sum of figures; None if there are none or one is unknown."""
    all_figures = list(figures)
    known_figures = [figure for figure in all_figures if figure is not None]
    return sum(known_figures) if all_figures and len(known_figures) == len(all_figures) else None

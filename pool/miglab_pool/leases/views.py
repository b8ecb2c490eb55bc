"""Rows as the messages that leave the pool, and leases in use as the reclaimer looks at them.

Names are all in: who may see them is the service's to decide.  Until when a lease is guaranteed,
and by how much it may be extended, is worked out on the way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from miglab_api.gpus import GpuView, PoolSnapshot, ReservedSlot, SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, LeaseWarning, WarningKind
from miglab_api.staff import is_holder
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.leases.rules import Asked, hours_left_s, longest_s
from miglab_pool.ledger.rows import LeaseRow, SliceRow, TicketRow
from miglab_pool.queue import offers
from miglab_pool.queue import order as queue
from miglab_pool.queue.needs import others_waiting
from miglab_pool.queue.offers import headcount
from miglab_pool.queue.order import answer_by, expires_at
from miglab_pool.reservations import promises, slots
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

LEAST_S = 60.0  # an extension by less is not worth a click


def slice_view(view: PoolView, row: SliceRow) -> SliceView:
    """One slice."""
    return _slice_view(view.facts[row.gpu], row, "")


@cached_on_instance
def _slice_view(gpu: GpuSnapshot, row: SliceRow, blocks_layout: str) -> SliceView:
    lease, usage = gpu.leases.get(row.lease or 0), gpu.usage.get(row.id)
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
    """One GPU with its slices, lowest start first."""
    on_gpu = sorted(gpu.slices, key=lambda item: (item.start, item.id))
    leaving, row = _leaving(gpu), gpu.row
    return GpuView.of(
        row,
        index=row.idx,
        reason=row.reason or _why_not_now(gpu),
        course=gpu.course,
        layout=gpu.layout,
        slices=tuple(_slice_view(gpu, item, leaving.get(item.id, "")) for item in on_gpu),
    )


def _leaving(gpu: GpuSnapshot) -> dict[int, str]:
    """The slices for which its layout has no place."""
    if not gpu.layout:
        return {}
    todo = gpu.change()
    return {item.number: gpu.layout for item in (*todo.drains, *todo.removes)}


def _why_not_now(gpu: GpuSnapshot) -> str:
    """Why a GPU that answers takes no lease."""
    if gpu.has_lost:
        return "takes no new lease until the servers whose slices are gone have ended"
    if not gpu.is_whole or gpu.slices:
        return ""
    usage = gpu.whole_usage
    if usage is None or usage.processes is None:
        return "its processes cannot be read, so it counts as in use"
    if not usage.processes:
        return ""
    pids = ", ".join(str(process.pid) for process in usage.processes)
    return f"foreign processes run on it: {pids}"


def ticket_view(view: PoolView, row: TicketRow) -> TicketView:
    """A ticket with its position."""
    positions = queue.positions(view) if row.state == TicketState.WAITING else {}
    position = positions.get(row.id)
    estimate = None if position is None else offers.told(view, row.id)
    return TicketView.of(
        row,
        position=position,
        waiting=len(positions),
        expires_at=expires_at(view.settings, view.started_at, row),
        answer_by=answer_by(view.settings, view.started_at, row, view.at),
        lease=None if row.state == TicketState.WAITING else row.lease,
        message=row.message or queue.why_waits(view, row),
        is_next=row.is_queued and row.next_at is not None,
        estimate=estimate,
    )


def full_lease_view(
    view: PoolView, row: LeaseRow, rows: Sequence[SliceRow] | None = None
) -> LeaseView:
    """As `lease_view`, with who waits for it, and by how much it may be extended."""
    most_s = extension_limit_s(view, row) if row.is_held else None
    return lease_view(view, row, rows, others_waiting(view, row), most_s)


def lease_view(
    view: PoolView,
    row: LeaseRow,
    rows: Sequence[SliceRow] | None = None,
    others_wait: int = 0,
    extension_s: float | None = None,
) -> LeaseView:
    """A lease with its slices.

    Args:
        view: the pool.
        row: the lease.
        rows: its slices, also those that are gone; None: those that are not.
        others_wait: how many wait for what it would free.
        extension_s: what one extension may add, if reservations allow less than the settings.
    """
    most_s = view.settings.pool.extension_s if extension_s is None else extension_s
    rows = view.slices_of(row) if rows is None else rows
    return LeaseView.of(
        row,
        ledger=view.ledger,
        uuids=tuple(item.uuid for item in rows if item.uuid is not None),
        slices=tuple(slice_view(view, item) for item in rows) if row.is_live else (),
        release_requested_at=row.releasing_at,
        is_given_back=row.releasing_at is not None and is_holder(row.warn_by, row.user, row.server),
        goes_on=row.warn_kind == WarningKind.NEEDED and row.warn_by == "reclaimer",
        extensions_left=row.extensions_left(view.settings) if most_s else 0,
        extension_s=most_s,
        warning=_warning(view, row),
        others_wait=others_wait,
    )


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


def _reserved(view: PoolView) -> tuple[ReservedSlot, ...]:
    """What is set aside now for reservations."""
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


@cached_on_instance
def snapshot(view: PoolView) -> PoolSnapshot:
    """The pool at the view's moment; only the GPUs that changed are drawn again."""
    gpus = (gpu_view(gpu) for gpu in view.gpus.values())
    return PoolSnapshot(
        at=view.at,
        simulated=view.simulated,
        gpus=tuple(sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))),
        waiting=tuple(ticket_view(view, view.tickets[number]) for number in queue.positions(view)),
        reserved_slots=_reserved(view),
        paused=view.paused,
        people=headcount(view),
    )


def guaranteed_until(view: PoolView, lease: LeaseRow) -> float:
    """Until when it is guaranteed if its server is attached now: no later than at the grant."""
    lasts_s, left_s = longest_s(view.settings, lease), slice_hours_s(view, lease)
    by_quota = view.at + (lasts_s if left_s is None else min(lasts_s, left_s))
    drawn_until = slots.drawn_until(view).get(lease.id, 0.0)
    return min(lease.guaranteed_until, max(by_quota, drawn_until))


def slice_hours_s(view: PoolView, lease: LeaseRow) -> float | None:
    """How long the slice-hours of a lease's student last, seconds; None: no limit."""
    size = sum(row.size for row in view.slices_of(lease))
    asked = Asked(lease.user, lease.course, lease.server, size)
    return hours_left_s(view.settings.quotas, asked, view.usage.all, view.at)


@cached_on_instance
def extension_limit_s(view: PoolView, lease: LeaseRow) -> float:
    """The most that one extension adds to a lease now, seconds; 0 for none.

    What is reserved may leave less than an extension's length, or nothing.
    """
    longest_s = view.settings.pool.extension_s
    if not view.reservations:
        return longest_s
    begins = max(lease.guaranteed_until, view.at)
    most_s = promises.extension_limit(view, lease, begins + longest_s).until - begins
    return most_s if most_s >= LEAST_S else 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """A lease in use.

    Attributes:
        lease: with its slices, their memory and processes as last read.
        held_since: when its server was attached, seconds since the epoch.
        keepalives: how often "I am still here" was said since work was last seen.
        keepalive_until: until when the last of these counts.
        end_reason: why it ends at its own end, where that is not its length.
    """

    lease: LeaseView
    held_since: float
    keepalives: int
    keepalive_until: float | None
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


@dataclass(frozen=True, slots=True)
class Spent:
    """What was seen of a lease since it was told last, seconds."""

    lease: int
    active_s: float = 0.0
    idle_s: float = 0.0
    unknown_s: float = 0.0


def _sum(figures: Iterable[int | None]) -> int | None:
    """Their sum if there are any and all are known."""
    found = list(figures)
    known = [figure for figure in found if figure is not None]
    return sum(known) if found and len(known) == len(found) else None

"""Rows as the messages that leave the pool.

Names are all in: who may see them is the service's to decide.
"""

from miglab_api.gpus import GpuView, PoolSnapshot, ReservedSlot, SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, LeaseWarning, WarningKind
from miglab_api.reservations import ReservationState, ReservationView
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.decisions import estimates, queue, reserved_places
from miglab_pool.decisions.reservations_in_force import in_force
from miglab_pool.decisions.wait_reasons import Whys
from miglab_pool.model import schedule
from miglab_pool.model.reservations import kept_until, phase, rule_of
from miglab_pool.model.rows import GpuRow, LeaseRow, ReservationRow, SliceRow, TicketRow
from miglab_pool.state.store import Store
from miglab_pool.transactions import tickets, warnings


def slice_view(store: Store, row: SliceRow, blocks_layout: str = "") -> SliceView:
    """One slice."""
    lease = store.state.leases.get(row.lease or 0)
    usage = store.usage.get(row.id)
    processes = usage.processes if usage else None
    gpu = store.state.gpus.get(row.gpu)
    return SliceView(
        slice_id=row.id,
        gpu=gpu.idx if gpu else -1,
        uuid=row.uuid,
        profile=row.profile,
        start=row.start,
        size=row.size,
        generation=row.generation,
        state=SliceState(row.state) if row.is_live else SliceState.SCRUBBING,
        sm_count=row.sm_count,
        memory_mib=row.memory_mib,
        memory_used_mib=usage.memory_used_mib if usage else None,
        processes=None if processes is None else len(processes),
        activity_pct=usage.activity_pct if usage else None,
        lease=row.lease,
        user=lease.user if lease else None,
        server=lease.server if lease else None,
        course=lease.course if lease else None,
        ends_at=lease.ends_at if lease else None,
        why=row.why,
        draining=row.draining,
        blocks_layout=blocks_layout,
    )


def gpu_view(store: Store, row: GpuRow) -> GpuView:
    """One GPU with its slices, lowest start first."""
    on_gpu = sorted(store.state.on_gpu[row.uuid].values(), key=lambda item: (item.start, item.id))
    laid = store.laid_on(row.uuid)
    leaving = {} if laid is None else _leaving(store, row.uuid, laid.name)
    return GpuView(
        index=row.idx,
        uuid=row.uuid,
        name=row.name,
        memory_slices=row.memory_slices,
        memory_mib=row.memory_mib,
        mig=row.mig,
        state=row.state,
        why=row.why or _why_not_now(store, row),
        draining=row.draining,
        course=store.course_of(row),
        layout=laid.name if laid else "",
        slices=tuple(slice_view(store, item, leaving.get(item.id, "")) for item in on_gpu),
    )


def _leaving(store: Store, gpu: str, layout: str) -> dict[int, str]:
    """The slices for which the layout in force has no place."""
    todo = store.change(gpu)
    return {item.number: layout for item in (*todo.drains, *todo.removes)}


def _why_not_now(store: Store, row: GpuRow) -> str:
    """Why a GPU that answers takes no lease."""
    if store.has_lost(row.uuid):
        return "takes no new lease until the servers whose slices are gone have ended"
    if not store.is_whole(row) or store.state.on_gpu[row.uuid]:
        return ""
    usage = store.gpu_usage.get(row.uuid)
    if usage is None or usage.processes is None:
        return "its processes cannot be read, so it counts as in use"
    if not usage.processes:
        return ""
    pids = ", ".join(str(process.pid) for process in usage.processes)
    return f"foreign processes run on it: {pids}"


def ticket_view(store: Store, row: TicketRow) -> TicketView:
    """A ticket with its place in line."""
    line = queue.places(store) if row.state == TicketState.WAITING else {}
    return make_ticket_view(store, row, line.get(row.id), len(line), Whys(store))


def make_ticket_view(
    store: Store, row: TicketRow, position: int | None, waiting: int, whys: Whys
) -> TicketView:
    """A ticket whose place is known."""
    return TicketView(
        id=row.id,
        user=row.user,
        server=row.server,
        course=row.course,
        shape=row.shape,
        state=TicketState(row.state),
        position=position,
        waiting=waiting,
        created_at=row.created_at,
        expires_at=tickets.expires_at(store, row),
        lease=None if row.state == TicketState.WAITING else row.lease,
        reason=row.reason,
        message=row.message or whys.of(row),
        is_next=row.is_queued and row.next_at is not None,
        estimate=estimates.of_ticket(store, row.id) if position is not None else None,
    )


def lease_view(
    store: Store, row: LeaseRow, others_wait: int = 0, extension_s: float | None = None
) -> LeaseView:
    """A lease with its slices.

    Args:
        store: the pool.
        row: the lease.
        others_wait: how many wait for what it would free.
        extension_s: what one extension may add, if reservations allow less than the settings.
    """
    most_s = store.settings.pool.extension_s if extension_s is None else extension_s
    found = [store.ledger.find_slice(number) for number in row.slices]
    rows = [item for item in found if item is not None]
    return LeaseView(
        id=row.id,
        ticket=row.ticket,
        generation=row.generation,
        ledger=store.ledger.identity,
        user=row.user,
        server=row.server,
        course=row.course,
        shape=row.shape,
        state=LeaseState(row.state),
        holder=row.holder,
        uuids=tuple(item.uuid for item in rows if item.uuid is not None),
        slices=tuple(slice_view(store, item) for item in rows) if row.is_live else (),
        granted_at=row.granted_at,
        attached_at=row.attached_at,
        ends_at=row.ends_at,
        release_requested_at=row.releasing_at,
        extensions_left=max(0, store.settings.pool.extensions - row.extensions) if most_s else 0,
        extension_s=most_s,
        reason=row.reason,
        warning=_warning(store, row),
        others_wait=others_wait,
    )


def _warning(store: Store, row: LeaseRow) -> LeaseWarning | None:
    if row.state != LeaseState.WARNED or row.warned_at is None or row.reclaim_at is None:
        return None
    return LeaseWarning(
        at=row.warned_at,
        reclaim_at=row.reclaim_at,
        reason=row.warn_why,
        kind=WarningKind(row.warn_kind),
        keepalives_left=warnings.keepalives_left(store, row),
    )


def reservation_view(store: Store, row: ReservationRow) -> ReservationView:
    """A reservation, with its time in force or next."""
    at, lead_s = store.now(), store.settings.pool.reserve_lead_s
    rule = rule_of(row)
    state, found = phase(row, at, lead_s) if row.is_live else (row.state, None)
    drawn = next((row.count - n.left for n in in_force(store, at) if n.row.id == row.id), 0)
    return ReservationView(
        id=row.id,
        course=row.course,
        shape=row.shape,
        count=row.count,
        weekdays=schedule.names_of(row.weekdays),
        date=rule.first,
        until=rule.last,
        from_time=row.from_time,
        to_time=row.to_time,
        tz=row.tz,
        grace_s=row.grace_s,
        state=ReservationState(state),
        starts_at=found.starts_at if found else None,
        ends_at=found.ends_at if found else None,
        kept_from=found.starts_at - lead_s if found else None,
        kept_until=kept_until(row, found) if found else None,
        drawn=drawn,
        made_by=row.made_by,
        made_at=row.made_at,
        reason=row.reason,
        message=row.message,
    )


def kept_places(store: Store) -> tuple[ReservedSlot, ...]:
    """What is set aside now for reservations."""
    return tuple(
        ReservedSlot(
            reservation=row.id,
            course=row.course,
            gpu=seat.gpu,
            start=seat.placed.placement.start,
            size=seat.placed.placement.size,
        )
        for row, seat in reserved_places.places_kept(store, store.now())
    )


class Snapshots:
    """The pool at one moment; only the GPUs that changed are drawn again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
        self._gpus: dict[str, GpuView] = {}
        self._snapshot: PoolSnapshot | None = None

    def get(self) -> PoolSnapshot:
        """The snapshot of now; the same object until something changes."""
        store = self._store
        if self._snapshot is None or self._version != store.version:
            for gpu in store.stale_views() | (store.state.gpus.keys() - self._gpus.keys()):
                if gpu in store.state.gpus:
                    self._gpus[gpu] = gpu_view(store, store.state.gpus[gpu])
            self._snapshot = self._draw()
            self._version = store.version
        return self._snapshot

    def _draw(self) -> PoolSnapshot:
        store = self._store
        line = queue.places(store)
        rows, whys = store.state.tickets, Whys(store)
        return PoolSnapshot(
            at=store.now(),
            simulated=store.simulated,
            gpus=tuple(sorted(self._gpus.values(), key=lambda view: (view.index, view.uuid))),
            waiting=tuple(
                make_ticket_view(store, rows[number], place, len(line), whys)
                for number, place in line.items()
            ),
            reserved_slots=kept_places(store),
            paused=store.paused,
        )

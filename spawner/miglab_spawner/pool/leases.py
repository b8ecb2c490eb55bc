"""Leases: granted, attached, running, released.  Decisions only, each one ledger transaction.

Nothing here talks to NVML or asks a holder: what must be done follows from the rows (acts.py).
"""

from collections.abc import Sequence
from dataclasses import replace

from miglab_spawner.messages import LeaseState, SliceState, TicketState, WarningKind
from miglab_spawner.processes import BadHolder

from .core import Core
from .ledger.ledger import Transaction
from .ledger.rows import (
    FULL,
    GpuRow,
    LeaseRow,
    SliceRow,
    TicketRow,
)
from .line import allowance
from .line.queue import clash
from .placing.placement import Choice
from .refused import Refused
from .reserve import later
from .work.holders import check_holder

NEVER_USED = frozenset({LeaseState.GRANTED})


def find(core: Core, number: int) -> LeaseRow:
    """The lease, live or over; Refused if there never was one."""
    row = core.ledger.find_lease(number)
    if row is None:
        raise Refused("unknown-lease", f"There is no lease {number}.", 404)
    return row


def servers(core: Core) -> set[tuple[str, str]]:
    """The servers, each with its user, whose last lease is not over: none ever holds two."""
    return {(lease.user, lease.server) for lease in core.state.leases.values()}


# -- grant --------------------------------------------------------------------------------------


def grant(core: Core, tx: Transaction, ticket: TicketRow, choices: Sequence[Choice]) -> LeaseRow:
    """Give a waiting ticket the slices chosen for it: existing ones at once, others to be made."""
    number = core.ledger.new_id("lease")
    rows = [_chosen(core, tx, choice, number, ticket.course) for choice in choices]
    return _granted(core, tx, ticket, rows, number)


def grant_whole(core: Core, tx: Transaction, ticket: TicketRow, gpu: GpuRow) -> LeaseRow:
    """Give a waiting ticket a GPU with MIG off; made means here: seen to be empty once more."""
    number = core.ledger.new_id("lease")
    row = SliceRow(
        id=core.ledger.new_id("slice"),
        gpu=gpu.uuid,
        generation=next_generation(core, tx, gpu.uuid),
        profile=FULL,
        start=0,
        size=gpu.memory_slices,
        sm_count=gpu.sm_count or 0,
        memory_mib=gpu.memory_mib,
        state=SliceState.MAKING,
        lease=number,
        course=ticket.course,
    )
    tx.put(row, reason=f"for lease {number}")
    return _granted(core, tx, ticket, [row], number)


def _granted(
    core: Core, tx: Transaction, ticket: TicketRow, rows: Sequence[SliceRow], number: int
) -> LeaseRow:
    lease = LeaseRow(
        id=number,
        ticket=ticket.id,
        generation=max(row.generation for row in rows),
        user=ticket.user,
        server=ticket.server,
        course=ticket.course,
        shape=ticket.shape,
        state=LeaseState.GRANTED,
        granted_at=tx.at,
        slices=tuple(row.id for row in rows),
    )
    tx.put(lease, reason=f"ticket {ticket.id} is next and there is room")
    tx.put(replace(ticket, lease=number))
    offer_if_ready(core, tx, lease)
    return lease


def _chosen(core: Core, tx: Transaction, choice: Choice, lease: int, course: str) -> SliceRow:
    warm = {
        (row.start, row.profile): row
        for row in core.state.on_gpu[choice.gpu].values()
        if row.state == SliceState.FREE
    }
    if choice.reuse:
        row = warm[choice.placement.start, choice.profile.name]
        row = replace(row, state=SliceState.LEASED, lease=lease, course=course)
        tx.put(row, reason=f"for lease {lease}")
        return row
    for placed in choice.destroy:
        in_the_way = warm[placed.placement.start, placed.profile.name]
        scrub(tx, in_the_way, f"recut for lease {lease}", remake=False)
    row = new_slice(core, tx, choice.gpu, choice, lease, course)
    tx.put(row, reason=f"for lease {lease}")
    return row


def new_slice(
    core: Core, tx: Transaction, gpu: str, choice: Choice, lease: int | None, course: str
) -> SliceRow:
    """The row of a slice that is to be made."""
    profile, placement = choice.profile, choice.placement
    return SliceRow(
        id=core.ledger.new_id("slice"),
        gpu=gpu,
        generation=next_generation(core, tx, gpu),
        profile=profile.name,
        start=placement.start,
        size=placement.size,
        sm_count=profile.sm_count,
        memory_mib=profile.memory_mib,
        state=SliceState.MAKING,
        lease=lease,
        course=course,
    )


def next_generation(core: Core, tx: Transaction, gpu: str) -> int:
    """The generation of the next slice on a GPU; never given twice."""
    row = core.state.gpus[gpu]
    row = replace(row, generation=row.generation + 1)
    tx.put(row)
    return row.generation


def offer_if_ready(core: Core, tx: Transaction, lease: LeaseRow) -> None:
    """Offer the ticket its lease once every slice exists."""
    ticket = core.state.tickets.get(lease.ticket or 0)
    if ticket is None or ticket.state != TicketState.WAITING:
        return
    if all(row.state == SliceState.LEASED for row in core.state.slices_of(lease)):
        tx.put(
            replace(ticket, state=TicketState.OFFERED, offered_at=tx.at),
            reason=f"lease {lease.id} is ready",
        )


# -- the holder's side --------------------------------------------------------------------------


def attach(core: Core, number: int, generation: int, holder: str) -> LeaseRow:
    """The fence: bind the lease to the one holder that may use its slices."""
    with core.write(durable=True) as tx:
        lease = find(core, number)
        why = _why_not_attach(core, lease, generation, holder)
        if why is None and lease.holder == holder:
            return lease
        if why is None:
            lease = _attached(core, tx, lease, holder)
        else:
            tx.note(lease, "spawner", f"attach of {holder} refused: {why}")
    if why is not None:
        raise why
    return lease


def _attached(core: Core, tx: Transaction, lease: LeaseRow, holder: str) -> LeaseRow:
    lease = replace(
        lease,
        state=LeaseState.ATTACHED,
        holder=holder,
        attached_at=tx.at,
        ends_at=allowance.ends_at(core, lease, tx.at),
    )
    tx.put(lease, "spawner", f"holder {holder}")
    ticket = core.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state == TicketState.OFFERED:
        tx.put(replace(ticket, state=TicketState.TAKEN), "spawner", "attached")
    return lease


def _why_not_attach(core: Core, lease: LeaseRow, generation: int, holder: str) -> Refused | None:
    try:
        check_holder(holder)
    except BadHolder as error:
        return Refused("bad-holder", str(error), 422)
    why = _why_stale(core, lease, generation, holder)
    if why:
        return _stale(lease, why)
    others = (other for other in core.state.leases.values() if other.id != lease.id)
    other = next((one for one in others if one.holder == holder), None)
    if other is not None:
        return Refused("bad-holder", f"{holder} already holds lease {other.id}.")
    return None


def _why_stale(core: Core, lease: LeaseRow, generation: int, holder: str) -> str:
    """Why the lease is not this holder's to attach; empty if it is."""
    if lease.generation != generation:
        return f"its generation is {lease.generation}, not {generation}"
    if lease.holder:
        is_again = lease.is_live and lease.state != LeaseState.RELEASING
        return "" if is_again and lease.holder == holder else "it has or had a holder"
    if lease.state != LeaseState.GRANTED:
        return f"it is {lease.state}{f' ({lease.reason})' if lease.reason else ''}"
    is_ready = all(row.state == SliceState.LEASED for row in core.state.slices_of(lease))
    return "" if is_ready else "its slices are not ready"


def _stale(lease: LeaseRow, why: str) -> Refused:
    return Refused(
        "stale-lease",
        f"Lease {lease.id} cannot be attached: {why}. Start the server again for a new one.",
    )


def running(core: Core, number: int) -> LeaseRow:
    """The attached holder was started."""
    with core.write(durable=True) as tx:
        lease = find(core, number)
        if lease.state == LeaseState.ATTACHED:
            lease = replace(lease, state=LeaseState.RUNNING)
            tx.put(lease, "spawner", "started")
        elif lease.state not in (LeaseState.RUNNING, LeaseState.WARNED):
            raise _stale(lease, f"it is {lease.state}")
    return lease


def extend(core: Core, number: int, by_s: float, by: str) -> LeaseRow:
    """Put off the lease's end, within what the site allows."""
    with core.write() as tx:
        lease = find(core, number)
        _check_extension(core, lease, by_s)
        assert lease.ends_at is not None
        ends_at = max(lease.ends_at, tx.at) + by_s
        if lease.state == LeaseState.WARNED:
            lease = replace(lease.without_warning(), stay_until=tx.at + core.settings.stay_s)
        lease = replace(lease, ends_at=ends_at, extensions=lease.extensions + 1)
        tx.put(lease, by, "extended")
        tx.note(lease, by, f"extended by {by_s:.0f} s", "extend")
    return lease


def _check_extension(core: Core, lease: LeaseRow, by_s: float) -> None:
    settings = core.settings
    if lease.state not in (LeaseState.ATTACHED, LeaseState.RUNNING, LeaseState.WARNED):
        raise Refused("no-extension", f"Lease {lease.id} is {lease.state}; there is no more to it.")
    if lease.warn_kind in (WarningKind.CLASS_END, WarningKind.MAINTENANCE, WarningKind.STAFF):
        why = f"That does not put this end off: {lease.warn_why} Save your work in time."
        raise Refused("no-extension", why)
    if lease.ends_at is None:
        raise Refused("no-extension", "This lease has no end: there is nothing to extend.")
    if lease.extensions >= settings.extensions:
        raise Refused(
            "no-extension",
            f"It was extended {lease.extensions} times, which is all there is. "
            "Save your work; afterwards you can ask for a new slice.",
        )
    if by_s > settings.extension_s:
        raise Refused(
            "no-extension", f"One extension is at most {settings.extension_s:.0f} s long.", 422
        )
    ends_at = max(lease.ends_at, core.now()) + by_s
    allowance.check_end(core, lease, ends_at)
    later.check_end(core, lease, ends_at)


# -- the end ------------------------------------------------------------------------------------


def release(core: Core, number: int, by: str, reason: str) -> LeaseRow:
    """Ask for a lease back: at once if nothing was ever attached, else once the holder is gone."""
    with core.write(durable=True) as tx:
        return release_in(core, tx, find(core, number), by, reason)


def release_in(
    core: Core, tx: Transaction, lease: LeaseRow, by: str, reason: str, act: str = ""
) -> LeaseRow:
    """As `release`, as part of a transaction; ``act``: what a person did, see `Transaction.put`."""
    if lease.state == LeaseState.GRANTED:
        lease = withdraw(core, tx, lease, LeaseState.RELEASED, by, reason or "released", act)
        _end_ticket(core, tx, lease, by)
    elif lease.is_live and lease.state != LeaseState.RELEASING:
        lease = start_release(core, tx, lease, by, reason, act)
    return lease


def start_release(
    core: Core, tx: Transaction, lease: LeaseRow, by: str, reason: str, act: str = ""
) -> LeaseRow:
    """Wait for the holder's end."""
    lease = replace(lease, state=LeaseState.RELEASING, releasing_at=tx.at, reason=reason)
    tx.put(lease, by, reason, act)
    core.probe_backoff.clear(lease.id)
    return lease


def holder_gone(core: Core, tx: Transaction, lease: LeaseRow, reason: str) -> LeaseRow:
    """The holder is confirmed gone: end the lease and scrub its slices."""
    for row in core.state.slices_of(lease):
        scrub(tx, row, f"lease {lease.id} is over", remake=core.settings.keep_warm)
    lease = replace(lease, state=LeaseState.RELEASED, ended_at=tx.at, reason=lease.reason or reason)
    tx.put(lease, reason=f"{lease.reason}; holder {lease.holder} is gone")
    core.probe_backoff.clear(lease.id)
    return lease


def withdraw(
    core: Core,
    tx: Transaction,
    lease: LeaseRow,
    state: LeaseState,
    by: str,
    reason: str,
    act: str = "",
) -> LeaseRow:
    """End a lease that nothing was ever attached to: its slices were never used."""
    assert lease.state in NEVER_USED and not lease.holder
    for row in core.state.slices_of(lease):
        if row.lease != lease.id:
            continue
        is_made = row.state == SliceState.LEASED
        to = SliceState.FREE if is_made and row.profile != FULL else row.state
        tx.put(replace(row, state=to, lease=None, course=""), by, reason)
        if row.profile == FULL:
            scrub(tx, replace(row, lease=None, course=""), reason, remake=False)
    lease = replace(lease, state=state, ended_at=tx.at, reason=reason)
    tx.put(lease, by, reason, act)
    return lease


def _end_ticket(core: Core, tx: Transaction, lease: LeaseRow, by: str) -> None:
    ticket = core.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        over = replace(
            ticket, state=TicketState.CANCELLED, reason="cancelled", message="It was given back."
        )
        tx.put(over, by, "its lease was given back")


def due(core: Core) -> list[LeaseRow]:
    """Leases whose server should be stopped: past their end, or being released by the pool."""
    now = core.now()
    return [
        lease
        for lease in core.state.leases.values()
        if lease.is_held
        and (
            (lease.ends_at is not None and lease.ends_at <= now)
            or any(row.lost for row in core.state.slices_of(lease))
        )
    ]


def scrub(
    tx: Transaction, row: SliceRow, reason: str, *, remake: bool, by: str = "pool", act: str = ""
) -> None:
    """Announce the destruction of a slice: from here on it is nobody's.

    What is made anew in a drained one's place is drained too, so that nobody gets the place.
    """
    row = replace(
        row,
        state=SliceState.SCRUBBING,
        lease=None,
        course="",
        attempts=0,
        retry_at=0.0,
        lost=False,
        remake=remake and row.profile != FULL,
        why=reason,
    )
    tx.put(row, by, reason, act)


def is_in_the_way(core: Core, row: SliceRow) -> bool:
    """Whether something still lies where this slice is to be made."""
    placed = core.placed(row)
    return any(
        other.id != row.id and clash(placed, core.placed(other))
        for other in core.state.on_gpu[row.gpu].values()
    )

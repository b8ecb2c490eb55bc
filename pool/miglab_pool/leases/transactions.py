"""Leases: granted, attached, warned, released.  Decisions only, each one ledger transaction.

Nothing here talks to NVML or asks a holder: what must be done follows from the rows (jobs.py).
It is long because each move between the states below is read beside the others.

    running → warned → running      activity, "I am still here", an extension, nobody waits any more
                     → releasing    `reclaim_at` has come

Whether to warn, and whether to take back, is the reclaimer's to decide; only the rules of the
states are here.  The reclaimer never shortens its own warnings: one may be put off, or end.  One by
staff comes sooner where an end that nothing puts off does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from sqlalchemy.dialects.sqlite import insert

from miglab_api.gpus import SliceState
from miglab_api.holders import BadHolder, check_holder
from miglab_api.leases import Fence, LeaseState, LeaseView, WarningKind
from miglab_api.tickets import TicketState
from miglab_api.wording import duration
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.rules import longest_s
from miglab_pool.leases.views import Case, Spent, slice_hours_s
from miglab_pool.leases.waste import count_waste
from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, PauseKind, SliceRow
from miglab_pool.queue.needs import ending, others_waiting
from miglab_pool.refused import Refused
from miglab_pool.reservations import promises
from miglab_pool.schedule import DAY_S
from miglab_pool.state.slices import scrub, withdraw
from miglab_pool.state.store import Store, Subject, locked

USED = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING})
_NEW = insert(tables.activity)
_ADD = _NEW.on_conflict_do_update(
    index_elements=["lease", "day"],
    set_={
        name: tables.activity.c[name] + _NEW.excluded[name]
        for name in ("active_s", "idle_s", "unknown_s")
    },
)


class Leases(Subject):
    """See the module."""

    @locked
    def find(self, number: int) -> LeaseView:
        """One lease, live or over.

        Raises:
            Refused: there is none.
        """
        return lease_answer(self.store, self.store.find(LeaseRow, number))

    def of_server(self, user: str, server: str) -> LeaseView | None:
        """The live lease of one server."""
        view = self.store.current
        mine = [row for row in view.leases.values() if (row.user, row.server) == (user, server)]
        return pool_views.full_lease_view(view, mine[-1]) if mine else None

    def live(self, user: str | None = None) -> list[LeaseView]:
        """The live leases, of one user or of all."""
        view = self.store.current
        mine = (row for row in view.leases.values() if user is None or row.user == user)
        return [pool_views.full_lease_view(view, row) for row in mine]

    def brief(self) -> list[LeaseView]:
        """The live leases, without who waits for them and by how much each may be extended."""
        view = self.store.current
        return [pool_views.lease_view(view, row) for row in view.leases.values()]

    def warned(self) -> frozenset[int]:
        """The leases whose holders are warned, by id."""
        rows = self.store.current.leases.values()
        return frozenset(row.id for row in rows if row.state == LeaseState.WARNED)

    def due(self) -> list[LeaseView]:
        """The leases whose server should be stopped now: a borrow that is over, or a lost slice.

        The pool frees nothing by this: it waits until the holder is gone.
        """
        view = self.store.current
        held = [row for row in view.leases.values() if row.is_held]
        return [
            pool_views.lease_view(view, row)
            for row in held
            if (row.ends_at is not None and row.ends_at <= view.at)
            or any(one.lost for one in view.slices_of(row))
        ]

    # -- for the reclaimer --------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The pool's clock, seconds since the epoch."""
        return self.store.now()

    @property
    def samples(self) -> int:
        """How often the slices were read; grows with every reading that came back."""
        return self.store.samples

    def needed(self, idle_s: Mapping[int, float]) -> Mapping[int, str]:
        """The open leases that end because somebody needs them, and why; by how long each idles."""
        with self.store.lock:  # a published view does not know who has attended since
            view = self.store.view()
        return ending(view, idle_s)

    @locked
    def close_for_maintenance(self, reason: str, by: str) -> None:
        """Grant nothing for this reason; empty: grant again.  What staff paused stays paused."""
        state = self.store.state
        is_ours = state.pause_kind is PauseKind.MAINTENANCE
        if state.paused == reason or (state.paused and not is_ours):
            return
        # granted again, even if of two windows that overlap the other one is still open
        for said in ["", reason] if state.paused and reason else [reason]:
            with self.store.write(durable=True) as tx:
                tx.pause(said, by, PauseKind.MAINTENANCE if said else None)

    def cases(self) -> list[Case]:
        """The leases in use, as the reclaimer looks at them."""
        view = self.store.current
        return [
            Case(
                pool_views.lease_view(view, row, others_wait=others_waiting(view, row)),
                row.attached_at or row.granted_at,
                row.keepalives,
                row.keepalive_until,
            )
            for row in view.leases.values()
            if row.is_in_use and row.holder
        ]

    @locked
    def attach(
        self,
        number: int,
        generation: int,
        holder: str,
        ledger: str = "",
        server_started: str = "",
    ) -> LeaseView:
        """The fence: only the holder that the pool accepts here may be started.

        Raises:
            Refused: ``stale-lease`` or ``bad-holder``; the holder must not be started.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            refusal = _why_not_attach(
                self.store, lease, Fence(generation=generation, ledger=ledger), holder
            )
            if refusal is None and lease.holder == holder:
                return lease_answer(self.store, lease)
            if refusal is None:
                lease = _attached(
                    self.store, tx, replace(lease, server_started=server_started), holder
                )
            else:
                tx.record(lease, "spawner", f"attach of {holder} refused: {refusal}")
        if refusal is not None:
            raise refusal
        return lease_answer(self.store, lease)

    @locked
    def running(self, number: int, fence: Fence | None = None) -> LeaseView:
        """The attached holder was started; a power cut that undoes this has ended it as well.

        Raises:
            Refused: ``stale-lease``; another lease has that number now, or it is over.
        """
        with self.store.write() as tx:
            lease = self.store.find(LeaseRow, number)
            _check_fence(self.store, lease, fence)
            if lease.state == LeaseState.ATTACHED:
                lease = replace(lease, state=LeaseState.RUNNING)
                tx.put(lease, "spawner", "started")
            elif lease.state not in (LeaseState.RUNNING, LeaseState.WARNED):
                raise _stale(lease, f"it is {lease.state}")
        return lease_answer(self.store, lease)

    @locked
    def release(self, number: int, by: str, reason: str, fence: Fence | None = None) -> LeaseView:
        """Ask for a lease back: at once if nothing was ever attached, else once the holder is gone.

        Raises:
            Refused: ``stale-lease``; another lease has that number now.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            _check_fence(self.store, lease, fence)
            lease = release_in(self.store, tx, lease, by, reason)
        return lease_answer(self.store, lease)

    @locked
    def extend(self, number: int, by_s: float, by: str) -> LeaseView:
        """Lengthen the lease's guarantee, within what the site allows.

        Raises:
            Refused: ``no-extension``, with why.
        """
        with self.store.write() as tx:
            lease = self.store.find(LeaseRow, number)
            _check_extension(self.store, lease, by_s)
            until = max(lease.guaranteed_until, tx.at) + by_s
            if lease.state == LeaseState.WARNED:
                lease = replace(
                    lease.without_warning(),
                    keepalive_until=tx.at + self.store.settings.reclaim.still_here_s,
                )
            lease = replace(lease, guaranteed_until=until, extensions=lease.extensions + 1)
            tx.put(lease, by, "extended")
            tx.record(lease, by, f"extended by {by_s:.0f} s", "extend")
        return lease_answer(self.store, lease)

    @locked
    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder.  An idle warning gives way to one of another kind, and to nothing else.

        Args:
            number: the lease.
            kind: what it is about.
            reason: why, in words for the holder; in the ledger too.
            reclaim_at: when it is to be reclaimed.

        Raises:
            Refused: the lease is not in use, or warned already.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            gives_way = lease.warn_kind == WarningKind.IDLE and kind is not WarningKind.IDLE
            if lease.state not in USED and not gives_way:
                raise Refused(
                    "stale-lease", f"Lease {number} is {lease.state}: there is nobody to warn."
                )
            warned = replace(
                lease,
                state=LeaseState.WARNED,
                warned_at=tx.at,
                reclaim_at=max(reclaim_at, tx.at),
                warn_kind=kind.value,
                warn_reason=reason,
            )
            tx.put(warned, "reclaimer", reason)
            if gives_way:
                tx.record(warned, "reclaimer", f"warned anew: {reason}")
        return lease_answer(self.store, warned)

    @locked
    def end_warning(self, number: int, by: str, reason: str) -> LeaseView:
        """The holder keeps the lease; without a warning nothing happens."""
        with self.store.write() as tx:
            lease = self.store.find(LeaseRow, number)
            if lease.state == LeaseState.WARNED:
                lease = lease.without_warning()
                tx.put(lease, by, reason)
        return lease_answer(self.store, lease)

    @locked
    def move_end(self, number: int, reclaim_at: float, reason: str, told: str = "") -> LeaseView:
        """Let a warning end at another time; without a warning nothing happens.

        Args:
            number: the lease.
            reclaim_at: later, as it could not be answered or a clock jumped; or sooner, as an end
                comes that nothing puts off.
            reason: why, for the ledger.
            told: what the holder reads from then on; empty: as before.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            if lease.state == LeaseState.WARNED and lease.reclaim_at != reclaim_at:
                said = told or lease.warn_reason
                lease = replace(lease, reclaim_at=reclaim_at, warn_reason=said)
                tx.put(lease)
                tx.record(lease, "reclaimer", reason)
        return lease_answer(self.store, lease)

    @locked
    def keepalive(self, number: int, by: str) -> LeaseView:
        """The holder is still there: ends an idle warning, and counts for a while, so many times.

        Raises:
            Refused: ``no-keepalive``: said too often without work, or it is not about being idle.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            refusal = _why_no_stay(self.store, lease)
            if refusal is not None:
                tx.record(lease, by, f"still here: {refusal.message}", "refused")
            elif lease.state == LeaseState.WARNED:
                until = tx.at + self.store.settings.reclaim.still_here_s
                lease = replace(
                    lease.without_warning(), keepalives=lease.keepalives + 1, keepalive_until=until
                )
                tx.put(lease, by, "I am still here", action="keepalive")
        if refusal is not None:
            raise refusal
        return lease_answer(self.store, lease)

    @locked
    def worked(self, number: int) -> None:
        """Work was seen: "I am still here" counts anew."""
        with self.store.write() as tx:
            lease = self.store.state.leases.get(number)
            if lease is not None and (lease.keepalives or lease.keepalive_until is not None):
                tx.put(replace(lease, keepalives=0, keepalive_until=None))

    @locked
    def abandon(self, numbers: frozenset[int]) -> None:
        """These releasing leases' servers are not the hub's any more: end their holders."""
        self.store.abandoned = numbers

    def note_activity(self, spent: Iterable[Spent]) -> None:
        """Add what was seen of leases to their day (UTC), for reports of usage."""
        with self.store.write() as tx:
            day = int(tx.at // DAY_S)
            rows = [
                {"day": day} | asdict(one)
                for one in spent
                if self.store.ledger.find(LeaseRow, one.lease) is not None
            ]
            if rows:
                tx.add(_ADD, rows)


def _attached(store: Store, tx: Transaction, lease: LeaseRow, holder: str) -> LeaseRow:
    lease = replace(
        lease,
        state=LeaseState.ATTACHED,
        holder=holder,
        attached_at=tx.at,
        guaranteed_until=pool_views.guaranteed_until(store.view(tx.at), lease),
    )
    tx.put(lease, "spawner", f"holder {holder}")
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state == TicketState.OFFERED:
        tx.put(replace(ticket, state=TicketState.TAKEN), "spawner", "attached")
    return lease


def guarantee_old(store: Store, tx: Transaction) -> None:
    """Leases of before there were guarantees are guaranteed from now on, as if granted now."""
    for lease in list(store.state.leases.values()):
        if not lease.guaranteed_until:
            until = tx.at + longest_s(store.settings, lease)
            tx.put(replace(lease, guaranteed_until=until))


def _why_not_attach(store: Store, lease: LeaseRow, fence: Fence, holder: str) -> Refused | None:
    try:
        check_holder(holder)
    except BadHolder as error:
        return Refused("bad-holder", str(error), 422)
    reason = _why_stale(store, lease, fence, holder)
    if reason:
        return _stale(lease, reason)
    others = (other for other in store.state.leases.values() if other.id != lease.id)
    other = next((one for one in others if one.holder == holder), None)
    if other is not None:
        return Refused("bad-holder", f"{holder} already holds lease {other.id}.")
    return None


def _why_other(store: Store, lease: LeaseRow, fence: Fence) -> str:
    """Why another lease is meant than the one that has the number now; empty: it is this one."""
    if fence.ledger and fence.ledger != store.ledger.identity:
        return "it was granted by another ledger"
    if lease.generation != fence.generation:
        return f"its generation is {lease.generation}, not {fence.generation}"
    return ""


def _why_stale(store: Store, lease: LeaseRow, fence: Fence, holder: str) -> str:
    """Why the lease is not this holder's to attach; empty if it is."""
    reason = _why_other(store, lease, fence)
    if reason:
        return reason
    if lease.holder:
        is_again = lease.is_live and lease.state != LeaseState.RELEASING
        return "" if is_again and lease.holder == holder else "it has or had a holder"
    if lease.state != LeaseState.GRANTED:
        return f"it is {lease.state}{f' ({lease.reason})' if lease.reason else ''}"
    is_ready = all(row.state == SliceState.LEASED for row in store.state.slices_of(lease))
    return "" if is_ready else "its slices are not ready"


def _stale(lease: LeaseRow, reason: str) -> Refused:
    return Refused(
        "stale-lease",
        f"Lease {lease.id} cannot be attached: {reason}. Start the server again for a new one.",
    )


def _check_fence(store: Store, lease: LeaseRow, fence: Fence | None) -> None:
    reason = _why_other(store, lease, fence) if fence is not None else ""
    if reason:
        raise Refused(
            "stale-lease",
            f"Lease {lease.id} is not the one you meant: {reason}. Nothing was changed.",
        )


def _check_extension(store: Store, lease: LeaseRow, by_s: float) -> None:
    settings = store.settings
    if not lease.is_in_use:
        raise Refused("no-extension", f"Lease {lease.id} is {lease.state} and cannot be extended.")
    if lease.warn_kind in (WarningKind.NEEDED, WarningKind.MAINTENANCE, WarningKind.STAFF):
        raise Refused("no-extension", _fixed(lease))
    if lease.is_borrow:
        message = f"A measurement borrows slices for at most {settings.pool.borrow_s:g} s."
        raise Refused("no-extension", message)
    if lease.extensions >= settings.pool.extensions:
        raise Refused(
            "no-extension",
            f"This lease has already been extended {lease.extensions} times, the maximum. "
            "Save your work; afterwards you can ask for a new slice.",
        )
    if by_s > settings.pool.extension_s:
        raise Refused(
            "no-extension", f"One extension adds at most {settings.pool.extension_s:.0f} s.", 422
        )
    until = max(lease.guaranteed_until, store.now()) + by_s
    view = store.view()
    left_s = slice_hours_s(view, lease)
    if left_s is not None and until > view.at + left_s:
        raise Refused(
            "no-extension",
            f"Your slice-hours of these seven days last for {duration(left_s)} more, "
            "which is less than you ask for. Ask for less, or save your work in time.",
        )
    promises.check_end(view, lease, until)


def _fixed(lease: LeaseRow) -> str:
    return f"An extension does not change this end: {lease.warn_reason} Save your work in time."


def release_in(
    store: Store, tx: Transaction, lease: LeaseRow, by: str, reason: str, action: str = ""
) -> LeaseRow:
    """As `release`, as part of a transaction; ``act``: what a person did, see `Transaction.put`."""
    if lease.state == LeaseState.GRANTED:
        count_waste(store, tx, lease.ticket, "cancelled", by)
        lease = withdraw(store, tx, lease, LeaseState.RELEASED, by, reason or "released", action)
        _end_ticket(store, tx, lease, by)
    elif lease.is_live and lease.state != LeaseState.RELEASING:
        lease = start_release(store, tx, lease, by, reason, action)
    return lease


def start_release(
    store: Store, tx: Transaction, lease: LeaseRow, by: str, reason: str, action: str = ""
) -> LeaseRow:
    """Wait for the holder's end."""
    lease = replace(
        lease, state=LeaseState.RELEASING, releasing_at=tx.at, reason=reason, warn_by=by
    )
    tx.put(lease, by, reason, action)
    return lease


def holder_gone(store: Store, tx: Transaction, lease: LeaseRow, reason: str) -> LeaseRow:
    """The holder is confirmed gone: end the lease and scrub its slices."""
    for row in store.state.slices_of(lease):
        scrub(tx, row, f"lease {lease.id} is over", remake=store.settings.tuning.keep_warm)
    lease = replace(lease, state=LeaseState.RELEASED, ended_at=tx.at, reason=lease.reason or reason)
    tx.put(lease, reason=f"{lease.reason}; holder {lease.holder} is gone")
    return lease


def _end_ticket(store: Store, tx: Transaction, lease: LeaseRow, by: str) -> None:
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        over = replace(
            ticket, state=TicketState.CANCELLED, reason="cancelled", message="It was given back."
        )
        tx.put(over, by, "its lease was given back")


def _why_no_stay(store: Store, lease: LeaseRow) -> Refused | None:
    if lease.state != LeaseState.WARNED:
        return None
    if lease.warn_kind != WarningKind.IDLE:
        return Refused("no-keepalive", _fixed(lease))
    if lease.keepalives_left(store.settings):
        return None
    return Refused(
        "no-keepalive",
        f"You have already said so {lease.keepalives} times, and nothing has run since. "
        "Run something on the slice, or save your work: somebody else may need it.",
    )


def lease_answer(store: Store, row: LeaseRow) -> LeaseView:
    """A lease with its slices, those that are gone among them.  The caller holds the lock."""
    slices = (store.ledger.find(SliceRow, number) for number in row.slices)
    rows = [item for item in slices if item is not None]
    return pool_views.full_lease_view(store.current, row, rows)

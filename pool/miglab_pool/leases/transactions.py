"""Leases: attached, extended, warned and released, each step one ledger transaction.

Nothing here talks to NVML or asks about a holder: the worker derives its jobs from the rows.
The module is long so that each move between the states below is read beside the others.

    running → warned → running      activity, "I am still here", an extension, nobody waits any more
                     → releasing    `reclaim_at` has come

The reclaimer decides whether to warn and to reclaim; only the rules of the states are here.  The
reclaimer may postpone or end its own warnings, and never shortens them.  A warning by staff is
shortened if maintenance comes sooner.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from sqlalchemy.dialects.sqlite import insert

from miglab_api.gpus import SliceState
from miglab_api.holders import BadHolder, check_holder
from miglab_api.leases import (
    ENDED_STATES,
    Fence,
    LeaseState,
    LeaseView,
    WarningKind,
)
from miglab_api.line import LeaseEnd
from miglab_api.tickets import Purpose, TicketState
from miglab_api.wording import duration
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.views import ActivitySpan, LeaseCase, remaining_slice_hours_s
from miglab_pool.leases.wasted_slices import count_waste
from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, PauseKind, SliceRow
from miglab_pool.queue.needs import leases_to_end, others_waiting
from miglab_pool.refused import Refused
from miglab_pool.reservations import guarantees
from miglab_pool.schedule import DAY_S
from miglab_pool.state.slices import end_unused_grant, scrub
from miglab_pool.state.store import Store, Subject, locked

MOST_ENDS = 20  # what a student reads who comes back
UNWARNED_USE = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING})
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
        """Return a lease, live or over.

        Raises:
            Refused: there is no such lease.
        """
        return full_view(self.store, self.store.find(LeaseRow, number))

    def lease_of_server(self, user: str, server: str) -> LeaseView | None:
        """Return the live lease of a server; None if it has none."""
        view = self.store.current
        rows = [row for row in view.leases.values() if (row.user, row.server) == (user, server)]
        return pool_views.full_lease_view(view, rows[-1]) if rows else None

    @locked
    def ends_since(
        self, user: str, since: float, purpose: Purpose | None = None
    ) -> tuple[LeaseEnd, ...]:
        """Return the latest leases of a user that have ended since then, the oldest first.

        Those that nobody ever held, such as an offer that lapsed, are none.

        Args:
            user: whose leases.
            since: seconds since the epoch.
            purpose: what they were for; None for all.
        """
        columns = tables.TABLES[LeaseRow.kind].c
        is_asked = (columns.user == user) & columns.attached_at.is_not(None)
        is_asked &= columns.state.in_(ENDED_STATES) & (columns.ended_at > since)
        if purpose is not None:
            is_asked &= columns.purpose == purpose
        rows = self.store.ledger.rows(LeaseRow, is_asked)
        in_order = sorted(rows, key=lambda row: row.ended_at or 0.0)
        return tuple(map(pool_views.lease_end, in_order[-MOST_ENDS:]))

    def live(self, user: str | None = None) -> list[LeaseView]:
        """Return the live leases of a user, or of all users."""
        view = self.store.current
        rows = (row for row in view.leases.values() if user is None or row.user == user)
        return [pool_views.full_lease_view(view, row) for row in rows]

    def brief_views(self) -> list[LeaseView]:
        """Return the live leases, without how many wait for them and their extension limits."""
        view = self.store.current
        return [pool_views.lease_view(view, row) for row in view.leases.values()]

    def warned(self) -> frozenset[int]:
        """Return the numbers of the leases that are warned."""
        rows = self.store.current.leases.values()
        return frozenset(row.id for row in rows if row.state == LeaseState.WARNED)

    def leases_to_stop(self) -> list[LeaseView]:
        """Return the leases whose server should stop now: a borrow that is over, or a lost slice.

        Their slices are freed only once the holder is gone.
        """
        view = self.store.current
        held_rows = [row for row in view.leases.values() if row.is_held]
        return [
            pool_views.lease_view(view, row)
            for row in held_rows
            if (row.ends_at is not None and row.ends_at <= view.at)
            or any(slice_row.lost for slice_row in view.slices_of(row))
        ]

    # -- for the reclaimer --------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The pool's clock, seconds since the epoch."""
        return self.store.now()

    @property
    def samples(self) -> int:
        """How many readings of the slices have come back."""
        return self.store.samples

    def needed_leases(self, idle_s: Mapping[int, float]) -> Mapping[int, str]:
        """Return the open leases that end because somebody needs their slices, and why.

        ``idle_s`` says for how long each lease has been idle.
        """
        with self.store.lock:  # a published view does not know who has attended since
            view = self.store.view()
        return leases_to_end(view, idle_s)

    @locked
    def close_for_maintenance(self, reason: str, actor: str) -> None:
        """Pause grants for a maintenance; an empty reason resumes them.  A pause by staff stays."""
        state = self.store.state
        is_ours = state.pause_kind is PauseKind.MAINTENANCE
        if state.paused == reason or (state.paused and not is_ours):
            return
        # A change of the reason is recorded as a resume and a new pause.
        for pause_reason in ["", reason] if state.paused and reason else [reason]:
            with self.store.write(durable=True) as tx:
                tx.pause(pause_reason, actor, PauseKind.MAINTENANCE if pause_reason else None)

    def lease_cases(self) -> list[LeaseCase]:
        """Return the leases in use, as the reclaimer judges them."""
        view = self.store.current
        return [
            LeaseCase(
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
        """Bind a lease to its holder: only a holder that the pool accepts here may be started.

        Returns:
            The lease, without how many wait for it and its extension limit.

        Raises:
            Refused: ``stale-lease`` or ``bad-holder``; the holder must not be started.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            refusal = _attach_refusal(
                self.store, lease, Fence(generation=generation, ledger=ledger), holder
            )
            if refusal is None and lease.holder == holder:
                return pool_views.lease_view(self.store.current, lease)
            if refusal is None:
                lease = _attach(
                    self.store, tx, replace(lease, server_started=server_started), holder
                )
            else:
                tx.record(lease, "spawner", f"attach of {holder} refused: {refusal}")
        if refusal is not None:
            raise refusal
        return pool_views.lease_view(self.store.current, lease)

    @locked
    def running(self, number: int, fence: Fence | None = None) -> LeaseView:
        """Record that the attached holder runs.  Not durable: a power cut ends the holder as well.

        Returns:
            As `attach`.

        Raises:
            Refused: ``stale-lease``: another lease has that number now, or the lease is over.
        """
        with self.store.write() as tx:
            lease = self.store.find(LeaseRow, number)
            _check_fence(self.store, lease, fence)
            if lease.state == LeaseState.ATTACHED:
                lease = replace(lease, state=LeaseState.RUNNING)
                tx.put(lease, "spawner", "started")
            elif lease.state not in (LeaseState.RUNNING, LeaseState.WARNED):
                raise _stale_refusal(lease, f"it is {lease.state}")
        return pool_views.lease_view(self.store.current, lease)

    @locked
    def release(
        self, number: int, actor: str, reason: str, fence: Fence | None = None
    ) -> LeaseView:
        """Release a lease: at once if nothing was ever attached, else once the holder is gone.

        Raises:
            Refused: ``stale-lease``: another lease has that number now.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            _check_fence(self.store, lease, fence)
            lease = release_lease(self.store, tx, lease, actor, reason)
        return full_view(self.store, lease)

    @locked
    def extend(self, number: int, by_s: float, actor: str) -> LeaseView:
        """Extend the guarantee of a lease, within what the settings and reservations allow.

        Raises:
            Refused: ``no-extension``, with the reason.
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
            tx.put(lease, actor, "extended")
            tx.record(lease, actor, f"extended by {by_s:.0f} s", "extend")
        return full_view(self.store, lease)

    @locked
    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder of a lease.  Only an idle warning is replaced, by one of another kind.

        Args:
            number: the lease.
            kind: the kind of the warning.
            reason: why, in words for the holder; it is in the ledger too.
            reclaim_at: when the lease is to be reclaimed, seconds since the epoch.

        Raises:
            Refused: the lease is not in use, or is warned already.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            is_replaced = lease.warn_kind == WarningKind.IDLE and kind is not WarningKind.IDLE
            if lease.state not in UNWARNED_USE and not is_replaced:
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
            if is_replaced:
                tx.record(warned, "reclaimer", f"warned anew: {reason}")
        return full_view(self.store, warned)

    @locked
    def end_warning(self, number: int, actor: str, reason: str) -> LeaseView:
        """End a lease's warning, so that its holder keeps it; without one, do nothing."""
        with self.store.write() as tx:
            lease = self.store.find(LeaseRow, number)
            if lease.state == LeaseState.WARNED:
                lease = lease.without_warning()
                tx.put(lease, actor, reason)
        return full_view(self.store, lease)

    @locked
    def move_end(
        self, number: int, reclaim_at: float, reason: str, holder_reason: str = ""
    ) -> LeaseView:
        """Change when a warned lease is reclaimed; without a warning, do nothing.

        Args:
            number: the lease.
            reclaim_at: the new time: later, as nobody could answer the warning or a clock jumped,
                or sooner, as maintenance begins.
            reason: why, for the ledger.
            holder_reason: what the holder reads from then on; empty: as before.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            if lease.state == LeaseState.WARNED and lease.reclaim_at != reclaim_at:
                warn_reason = holder_reason or lease.warn_reason
                lease = replace(lease, reclaim_at=reclaim_at, warn_reason=warn_reason)
                tx.put(lease)
                tx.record(lease, "reclaimer", reason)
        return full_view(self.store, lease)

    @locked
    def keepalive(self, number: int, actor: str) -> LeaseView:
        """End an idle warning because the student is still there; it may be repeated a few times.

        Raises:
            Refused: ``no-keepalive``: repeated too often without work, or not an idle warning.
        """
        with self.store.write(durable=True) as tx:
            lease = self.store.find(LeaseRow, number)
            refusal = _keepalive_refusal(self.store, lease)
            if refusal is not None:
                tx.record(lease, actor, f"still here: {refusal.message}", "refused")
            elif lease.state == LeaseState.WARNED:
                until = tx.at + self.store.settings.reclaim.still_here_s
                lease = replace(
                    lease.without_warning(), keepalives=lease.keepalives + 1, keepalive_until=until
                )
                tx.put(lease, actor, "I am still here", action="keepalive")
        if refusal is not None:
            raise refusal
        return full_view(self.store, lease)

    @locked
    def note_work(self, number: int) -> None:
        """Record that work was seen: the count of keepalives begins anew."""
        with self.store.write() as tx:
            lease = self.store.state.leases.get(number)
            if lease is not None and (lease.keepalives or lease.keepalive_until is not None):
                tx.put(replace(lease, keepalives=0, keepalive_until=None))

    @locked
    def abandon(self, numbers: frozenset[int]) -> None:
        """Mark releasing leases whose servers the hub no longer has: their holders are ended."""
        self.store.abandoned = numbers

    def note_activity(self, spans: Iterable[ActivitySpan]) -> None:
        """Add the activity of leases to the current day (UTC), for usage reports."""
        with self.store.write() as tx:
            day = int(tx.at // DAY_S)
            rows = [
                {"day": day} | asdict(span)
                for span in spans
                if self.store.ledger.find(LeaseRow, span.lease) is not None
            ]
            if rows:
                tx.add(_ADD, rows)


def _attach(store: Store, tx: Transaction, lease: LeaseRow, holder: str) -> LeaseRow:
    lease = replace(
        lease,
        state=LeaseState.ATTACHED,
        holder=holder,
        attached_at=tx.at,
        guaranteed_until=pool_views.guarantee_end_at_attach(store.view(tx.at), lease),
    )
    tx.put(lease, "spawner", f"holder {holder}")
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state == TicketState.OFFERED:
        tx.put(replace(ticket, state=TicketState.TAKEN), "spawner", "attached")
    return lease


def _attach_refusal(store: Store, lease: LeaseRow, fence: Fence, holder: str) -> Refused | None:
    try:
        check_holder(holder)
    except BadHolder as error:
        return Refused("bad-holder", str(error), 422)
    reason = _describe_stale(store, lease, fence, holder)
    if reason:
        return _stale_refusal(lease, reason)
    other_leases = (other for other in store.state.leases.values() if other.id != lease.id)
    other = next(
        (other_lease for other_lease in other_leases if other_lease.holder == holder), None
    )
    if other is not None:
        return Refused("bad-holder", f"{holder} already holds lease {other.id}.")
    return None


def _describe_mismatch(store: Store, lease: LeaseRow, fence: Fence) -> str:
    """Return why a fence belongs to another lease with this number; empty if it does not."""
    if fence.ledger and fence.ledger != store.ledger.identity:
        return "it was granted by another ledger"
    if lease.generation != fence.generation:
        return f"its generation is {lease.generation}, not {fence.generation}"
    return ""


def _describe_stale(store: Store, lease: LeaseRow, fence: Fence, holder: str) -> str:
    """Return why a holder may not attach to a lease; empty if it may."""
    reason = _describe_mismatch(store, lease, fence)
    if reason:
        return reason
    if lease.holder:
        is_again = lease.is_live and lease.state != LeaseState.RELEASING
        return "" if is_again and lease.holder == holder else "it has or had a holder"
    if lease.state != LeaseState.GRANTED:
        return f"it is {lease.state}{f' ({lease.reason})' if lease.reason else ''}"
    is_ready = all(row.state == SliceState.LEASED for row in store.state.slices_of(lease))
    return "" if is_ready else "its slices are not ready"


def _stale_refusal(lease: LeaseRow, reason: str) -> Refused:
    return Refused(
        "stale-lease",
        f"Lease {lease.id} cannot be attached: {reason}. Start the server again for a new one.",
    )


def _check_fence(store: Store, lease: LeaseRow, fence: Fence | None) -> None:
    reason = _describe_mismatch(store, lease, fence) if fence is not None else ""
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
        raise Refused("no-extension", _describe_fixed_end(lease))
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
    left_s = remaining_slice_hours_s(view, lease)
    if left_s is not None and until > view.at + left_s:
        raise Refused(
            "no-extension",
            f"Your slice-hours of these seven days last for {duration(left_s)} more, "
            "which is less than you ask for. Ask for less, or save your work in time.",
        )
    guarantees.check_extension(view, lease, until)


def _describe_fixed_end(lease: LeaseRow) -> str:
    return f"An extension does not change this end: {lease.warn_reason} Save your work in time."


def release_lease(
    store: Store, tx: Transaction, lease: LeaseRow, actor: str, reason: str, action: str = ""
) -> LeaseRow:
    """Release a lease in a transaction; ``action``: what a person did, see `Transaction.put`."""
    if lease.state == LeaseState.GRANTED:
        count_waste(store, tx, lease.ticket, "cancelled", actor)
        lease = end_unused_grant(
            store, tx, lease, LeaseState.RELEASED, actor, reason or "released", action
        )
        _cancel_ticket(store, tx, lease, actor)
    elif lease.is_live and lease.state != LeaseState.RELEASING:
        lease = start_release(store, tx, lease, actor, reason, action)
    return lease


def start_release(
    store: Store, tx: Transaction, lease: LeaseRow, actor: str, reason: str, action: str = ""
) -> LeaseRow:
    """Begin to release a lease: it ends once its holder is gone."""
    lease = replace(
        lease, state=LeaseState.RELEASING, releasing_at=tx.at, reason=reason, warn_by=actor
    )
    tx.put(lease, actor, reason, action)
    return lease


def end_released_lease(store: Store, tx: Transaction, lease: LeaseRow, reason: str) -> LeaseRow:
    """End a lease whose holder is confirmed gone, and scrub its slices."""
    for row in store.state.slices_of(lease):
        scrub(tx, row, f"lease {lease.id} is over", remake=store.settings.tuning.keep_warm)
    lease = replace(lease, state=LeaseState.RELEASED, ended_at=tx.at, reason=lease.reason or reason)
    tx.put(lease, reason=f"{lease.reason}; holder {lease.holder} is gone")
    return lease


def _cancel_ticket(store: Store, tx: Transaction, lease: LeaseRow, actor: str) -> None:
    ticket = store.state.tickets.get(lease.ticket or 0)
    if ticket is not None and ticket.state in (TicketState.WAITING, TicketState.OFFERED):
        cancelled_ticket = replace(
            ticket, state=TicketState.CANCELLED, reason="cancelled", message="It was given back."
        )
        tx.put(cancelled_ticket, actor, "its lease was given back")


def _keepalive_refusal(store: Store, lease: LeaseRow) -> Refused | None:
    if lease.state != LeaseState.WARNED:
        return None
    if lease.warn_kind != WarningKind.IDLE:
        return Refused("no-keepalive", _describe_fixed_end(lease))
    if lease.keepalives_left(store.settings):
        return None
    return Refused(
        "no-keepalive",
        f"You have already said so {lease.keepalives} times, and nothing has run since. "
        "Run something on the slice, or save your work: somebody else may need it.",
    )


def full_view(store: Store, row: LeaseRow) -> LeaseView:
    """Return a lease with its slices, including destroyed ones.  The caller holds the lock."""
    slices = (store.ledger.find(SliceRow, number) for number in row.slices)
    rows = [row for row in slices if row is not None]
    return pool_views.full_lease_view(store.current, row, rows)

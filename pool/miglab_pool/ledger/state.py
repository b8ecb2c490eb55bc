"""The live rows in memory, by kind and id, so that a decision reads no disk."""

import dataclasses
from collections import defaultdict
from typing import Any

from miglab_pool.ledger.rows import (
    ROWS,
    GpuRow,
    LeaseRow,
    MessageRow,
    PauseKind,
    ReservationRow,
    Row,
    SliceRow,
    TicketRow,
)

WASTES_KEPT = 2


class State:
    """The live rows by id.  Only `Transaction` writes them; they are read under the pool's lock.

    Attributes:
        on_gpu: the slices on each GPU.
        touched: the GPUs whose rows, slices or leases have changed; whoever looks again clears it.
        changed: the tables that have changed; whoever copies them clears it.
        ended: the leases that have ended, by id; whoever counts them clears it.
        writes: grows with every row that is stored.
        wasted: by user, when slices last went to waste, at most `WASTES_KEPT` times, since a server
            of theirs has last attached to a lease.
    """

    def __init__(self) -> None:
        self.gpus: dict[str, GpuRow] = {}
        self.slices: dict[int, SliceRow] = {}
        self.tickets: dict[int, TicketRow] = {}
        self.leases: dict[int, LeaseRow] = {}
        self.reservations: dict[int, ReservationRow] = {}
        self.messages: dict[int, MessageRow] = {}
        self.on_gpu: dict[str, dict[int, SliceRow]] = defaultdict(dict)
        self.touched: set[str] = set()
        self.changed: set[str] = {f"{row.kind}s" for row in ROWS}
        self.ended: dict[int, LeaseRow] = {}
        self.writes = 0
        self.wasted: dict[str, tuple[float, ...]] = {}
        self.paused = ""
        self.pause_kind: PauseKind | None = None

    def of_kind(self, kind: str) -> dict[Any, Any]:
        """The live rows of a kind, by key."""
        rows: dict[Any, Any] = getattr(self, f"{kind}s")
        return rows

    def store(self, row: Row) -> None:
        """Take in a new or changed row; what is no longer live is dropped."""
        live_rows = self.of_kind(row.kind)
        self.changed.add(f"{row.kind}s")
        self.writes += 1
        self._note_waste(live_rows.get(row.key), row)
        if row.is_live:
            live_rows[row.key] = row
        else:
            live_rows.pop(row.key, None)
        if isinstance(row, SliceRow):
            self._store_on_gpu(row)
        elif isinstance(row, LeaseRow):
            self._touch_lease(row)
        elif isinstance(row, GpuRow):
            self.touched.add(row.uuid)

    def _note_waste(self, before: Row | None, row: Row) -> None:
        if isinstance(row, LeaseRow):
            was_attached = isinstance(before, LeaseRow) and before.attached_at is not None
            if row.attached_at is not None and not was_attached:
                self.wasted.pop(row.user, None)
        elif isinstance(row, TicketRow):
            count = before.wasted if isinstance(before, TicketRow) else 0
            if row.wasted_at is not None and row.wasted > count:
                times = (*self.wasted.get(row.user, ()), row.wasted_at)
                self.wasted[row.user] = times[-WASTES_KEPT:]

    def _store_on_gpu(self, row: SliceRow) -> None:
        self.touched.add(row.gpu)
        if row.is_live:
            self.on_gpu[row.gpu][row.id] = row
        else:
            self.on_gpu[row.gpu].pop(row.id, None)

    def _touch_lease(self, row: LeaseRow) -> None:
        self.touched.update(self.slices[s].gpu for s in row.slices if s in self.slices)
        if row.is_live:
            return
        self.ended[row.id] = row
        ticket = self.tickets.get(row.ticket or 0)
        if ticket is not None and ticket.state == "taken":
            del self.tickets[ticket.id]
            self.changed.add("tickets")

    def attend(self, ticket: TicketRow, at: float) -> TicketRow:
        """Note, in memory only, that somebody still waits for a ticket."""
        ticket = self.tickets[ticket.id] = dataclasses.replace(ticket, attended_at=at)
        self.changed.add("tickets")
        return ticket

    def slices_of(self, lease: LeaseRow) -> list[SliceRow]:
        """The lease's live slices, in the order asked."""
        return [self.slices[number] for number in lease.slices if number in self.slices]

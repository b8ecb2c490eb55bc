"""The pool's clock: the wall clock, which cannot jump between two turns of the pool.

If the host slept, or an administrator or NTP set the clock, the wall clock moves by more than the
time that passed.  `carry_over` then moves the moments from which positions, graces and pauses
count.  Ends that people read off a clock stay: of leases, reservations and maintenance.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState
from miglab_pool.ledger.rows import LeaseRow, SliceRow, TicketRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.state.store import Store

STEP_S = 5.0  # between the two clocks: more than NTP slews within a turn
LATE_S = 10.0  # between two turns, which come every second
CountedRow = TicketRow | LeaseRow | SliceRow


@dataclass(frozen=True)
class Jump:
    """An irregularity of time between two turns.

    Attributes:
        step_s: by how much the wall clock was set; 0: it was not.
        late_s: how long the pool stood still; 0: it did not.
    """

    step_s: float
    late_s: float

    def __bool__(self) -> bool:
        return bool(self.step_s or self.late_s)

    def __str__(self) -> str:
        if self.step_s:
            return f"the wall clock was set by {self.step_s:+.0f} s"
        return f"the pool stood still for {self.late_s:.0f} s"


class PoolClock:
    """A clock that runs with a steady one, and is set to the wall clock once a turn.

    Args:
        wall: seconds since the epoch.
        steady: seconds that never jump; they may stand still while the host sleeps.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_s = wall() - steady()
        self._followed: float | None = None  # when, by the steady one; None: no turn yet

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._steady() + self._ahead_s

    def jump(self) -> Jump:
        """Return the jump since this clock was set last; changes nothing."""
        steady = self._steady()
        step_s = self._wall() - steady - self._ahead_s
        late_s = 0.0 if self._followed is None else steady - self._followed
        return Jump(
            step_s if abs(step_s) > STEP_S else 0.0,
            late_s if late_s > LATE_S else 0.0,
        )

    def follow(self) -> None:
        """Set it to the wall clock."""
        self._followed = self._steady()
        self._ahead_s = self._wall() - self._followed


def carry_over(store: Store, tx: Transaction, step_s: float) -> None:
    """Move the moments from which rows count by a step of the clock; ``tx.at`` is before the step.

    A moment that is still ahead of the clock was noted before the clock was set back while no pool
    ran: it becomes now, and no pause becomes longer than the longest pause.
    """
    for before, after in list(_moved_rows(store, step_s, tx.at + step_s)):
        if after != before:  # else there is nothing to write
            tx.put(after)


def _moved_rows(store: Store, step_s: float, now: float) -> Iterator[tuple[CountedRow, CountedRow]]:
    def past(moment: float) -> float:
        return min(moment + step_s, now)

    def past_if(moment: float | None) -> float | None:
        return None if moment is None else past(moment)

    state = store.state
    for ticket in state.tickets.values():
        if ticket.state != TicketState.TAKEN:
            yield (
                ticket,
                replace(
                    ticket,
                    created_at=past(ticket.created_at),
                    attended_at=past(ticket.attended_at),
                    offered_at=past_if(ticket.offered_at),
                    next_at=past_if(ticket.next_at),
                    since=past_if(ticket.since),
                ),
            )
    for lease in state.leases.values():
        if lease.state == LeaseState.GRANTED:
            yield lease, replace(lease, taken_at=past_if(lease.taken_at))
        elif lease.state == LeaseState.RELEASING:
            yield lease, replace(lease, releasing_at=past_if(lease.releasing_at))
    latest = now + store.settings.tuning.retry_max_s
    for row in state.slices.values():
        if row.retry_at:
            yield row, replace(row, retry_at=min(row.retry_at + step_s, latest))

"""The pool's clock: the wall's, but nothing sets it between two turns.

A host that slept, and an administrator or NTP that sets the clock, move the wall's by more than has
gone by.  What lasts is then told by it no longer; the moments that positions, graces and pauses
count from go with it (`carry_over`).  Ends that a person reads off a clock stay what they are: of
leases, reservations and maintenance.
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
Counting = TicketRow | LeaseRow | SliceRow


@dataclass(frozen=True)
class Jump:
    """What was wrong with time between two turns.

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
    """Goes with a clock that never jumps, and is set to the wall's once a turn.

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
        """What was wrong with time since this clock was set last; changes nothing."""
        steady = self._steady()
        step_s = self._wall() - steady - self._ahead_s
        late_s = 0.0 if self._followed is None else steady - self._followed
        return Jump(
            step_s if abs(step_s) > STEP_S else 0.0,
            late_s if late_s > LATE_S else 0.0,
        )

    def follow(self) -> None:
        """Set it to the wall's."""
        self._followed = self._steady()
        self._ahead_s = self._wall() - self._followed


def carry_over(store: Store, tx: Transaction, step_s: float) -> None:
    """Move what counts by a step of the clock, ``tx.at`` being of before it.

    What is ahead of the clock even so was noted before it was set back while no pool looked: it
    counts from now, and nothing is paused for longer than the longest pause.
    """
    for before, after in list(_moved(store, step_s, tx.at + step_s)):
        if after != before:  # else there is nothing to write
            tx.put(after)


def _moved(store: Store, step_s: float, now: float) -> Iterator[tuple[Counting, Counting]]:
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

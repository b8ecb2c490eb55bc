"""Whose tickets may end somebody's open lease: of who is there, and takes what is made free.

A ticket costs nothing to ask for, and the lease that ends for it is another student's.  So:

- Its holder has to be there: somebody has attended it in the last `ATTENDED_S`.
- When slices that were granted to a ticket, or are being made free for it, go unused because it
  lapses, is cancelled or asks for something else, they count as wasted.  After `MOST_WASTED` of
  them in a day a student's tickets end no lease, and are served behind those of all others, who
  would else be made room for in vain, until a server of the student's has attached to a lease.

It is counted at what the ticket cost, and not by how it ended, so no way of ending it is cheaper;
by the student, so a new ticket or another server does not help; and what clears it is a lease with
a server on it, which is charged to the student as use.  Reads only.
"""

from miglab_pool.ledger.rows import MOST_WASTED, TicketRow
from miglab_pool.schedule import DAY_S
from miglab_pool.state.view import PoolView

ATTENDED_S = 120.0
WHY = (
    "You did not take slices that were made free for you twice in the last day, so others are "
    "served first, and nobody's lease ends for you, until you have used a slice."
)


def has_wasted_much(view: PoolView, user: str) -> bool:
    """Whether a student has let too much go to waste since they last used a slice."""
    since = view.at - DAY_S
    return sum(at > since for at in view.wasted.get(user, ())) >= MOST_WASTED


def may_end_leases(view: PoolView, ticket: TicketRow) -> bool:
    """Whether an open lease may end for a ticket."""
    return view.at - ticket.attended_at <= ATTENDED_S and not has_wasted_much(view, ticket.user)

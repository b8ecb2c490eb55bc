"""What the wait estimates say to one ticket, or to one who has not asked yet."""

from miglab_api.tickets import WaitEstimate
from miglab_pool.state.view import PoolView


def of_ticket(view: PoolView, number: int) -> WaitEstimate | None:
    """How long a ticket will wait from now on; None if that is not known (yet)."""
    is_late = view.at > view.estimates.due.get(number, view.at)
    return _from_now(view, view.estimates.of_tickets.get(number), is_late)


def of_shape(view: PoolView, shape: str) -> WaitEstimate | None:
    """How long somebody would wait who asked for a shape now."""
    return _from_now(view, view.estimates.of_shapes.get(shape), False)


def _from_now(view: PoolView, said: WaitEstimate | None, is_late: bool) -> WaitEstimate | None:
    if said is None:
        return None
    passed_s = max(0.0, view.at - view.estimates.at)
    return WaitEstimate(
        low_s=max(0.0, said.low_s - passed_s),
        likely_s=max(0.0, said.likely_s - passed_s),
        high_s=max(0.0, said.high_s - passed_s),
        basis=said.basis,
        is_late=is_late,
    )

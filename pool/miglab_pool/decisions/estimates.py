"""What the forecast says to one ticket, or to one who has not asked yet."""

from miglab_api.tickets import WaitEstimate
from miglab_pool.state.store import Store


def of_ticket(store: Store, number: int) -> WaitEstimate | None:
    """How long a ticket will wait from now on; None if that is not known (yet)."""
    return _from_now(store, store.forecast.of_tickets.get(number))


def of_shape(store: Store, shape: str) -> WaitEstimate | None:
    """How long somebody would wait who asked for a shape now."""
    return _from_now(store, store.forecast.of_shapes.get(shape))


def _from_now(store: Store, said: WaitEstimate | None) -> WaitEstimate | None:
    if said is None:
        return None
    passed_s = max(0.0, store.now() - store.forecast.at)
    return WaitEstimate(
        low_s=max(0.0, said.low_s - passed_s),
        likely_s=max(0.0, said.likely_s - passed_s),
        high_s=max(0.0, said.high_s - passed_s),
        why=said.why,
    )

"""In which order faults strike, drawn by a seed.  Pure."""

from collections.abc import Sequence
from random import Random


def order_of(seed: int, kinds: Sequence[str], count: int) -> list[str]:
    """So many kinds: each once before any comes again, in an order that the seed draws."""
    order: list[str] = []
    shuffle = Random(seed)  # noqa: S311 -- no secret
    while len(order) < count:
        order += shuffle.sample(kinds, len(kinds))
    return order[:count]

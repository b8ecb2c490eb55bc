"""How often somebody may ask: so many times at once, and then so many a second.  Pure."""

from collections.abc import Callable, Hashable


class TooOften(Exception):
    """Somebody asks more often than they may; nothing was done."""


class TokenBuckets:
    """One bucket for each who asks.

    Args:
        burst: how often one may ask at once.
        per_s: how many more a second.
        clock: seconds that never jump.
    """

    def __init__(self, burst: float, per_s: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_s, self._clock = burst, per_s, clock
        self._full_at: dict[Hashable, float] = {}  # when each bucket is full again; last asked last

    def spend(self, who: Hashable) -> None:
        """Take one.

        Raises:
            TooOften: there is none left.
        """
        now = self._clock()
        while self._full_at and self._full_at[oldest := next(iter(self._full_at))] <= now:
            del self._full_at[oldest]
        full_at = max(now, self._full_at.pop(who, now))
        is_left = (full_at - now) * self._per_s <= self._burst - 1
        self._full_at[who] = full_at + 1 / self._per_s if is_left else full_at
        if not is_left:
            raise TooOften

    def __len__(self) -> int:
        return len(self._full_at)

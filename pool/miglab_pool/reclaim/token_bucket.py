"""How often somebody may ask: so many times at once, and then so many a second.  Pure."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass


class TooOften(Exception):
    """Somebody asks more often than they may; nothing was done."""


@dataclass(slots=True)
class Bucket:
    """One client's.

    Attributes:
        tokens: how often they may ask at once now.
        at: when that was worked out.
    """

    tokens: float
    at: float


class TokenBuckets:
    """One bucket for each who asks.

    Args:
        burst: how often one may ask at once.
        per_s: how many more a second.
        clock: seconds that never jump.
    """

    def __init__(self, burst: float, per_s: float, clock: Callable[[], float]) -> None:
        self._burst, self._per_s, self._clock = burst, per_s, clock
        self._buckets: dict[Hashable, Bucket] = {}

    def spend(self, who: Hashable) -> None:
        """Take one.

        Raises:
            TooOften: there is none left.
        """
        now = self._clock()
        self._forget_full(now)
        bucket = self._buckets.pop(who, None) or Bucket(self._burst, now)
        bucket.tokens, bucket.at = self._filled(bucket, now), now
        self._buckets[who] = bucket  # who asked last comes last
        if bucket.tokens < 1:
            raise TooOften
        bucket.tokens -= 1

    def __len__(self) -> int:
        return len(self._buckets)

    def _filled(self, bucket: Bucket, now: float) -> float:
        return min(self._burst, bucket.tokens + max(0.0, now - bucket.at) * self._per_s)

    def _forget_full(self, now: float) -> None:
        """Keep no more than those who asked lately; the oldest come first."""
        for who, bucket in list(self._buckets.items()):
            if self._filled(bucket, now) < self._burst:
                break
            del self._buckets[who]

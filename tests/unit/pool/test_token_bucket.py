"""How often one may ask."""

import pytest

from miglab_pool.reclaim.token_bucket import TokenBuckets, TooOften


def test_a_burst_then_a_rate() -> None:
    """So many at once, then as time goes by, each client alone; a clock that stands gives none."""
    at = [0.0]
    buckets = TokenBuckets(2, 0.5, lambda: at[0])
    for who in ("ada", "ada", "bob"):
        buckets.spend(who)
    with pytest.raises(TooOften):
        buckets.spend("ada")
    buckets.spend("bob")
    at[0] += 2
    buckets.spend("ada")
    with pytest.raises(TooOften):
        buckets.spend("ada")


def test_who_asks_no_more_is_forgotten() -> None:
    """Names that come once take no memory for ever."""
    at = [0.0]
    buckets = TokenBuckets(2, 0.5, lambda: at[0])
    for number in range(1000):
        buckets.spend(number)
        at[0] += 1
    assert len(buckets) < 10

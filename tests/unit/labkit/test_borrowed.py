"""What a borrow says: how long it waits, in words."""

import pytest

from labkit.run.borrowed import describe_queue


@pytest.mark.parametrize(
    ("ahead", "likely_s", "high_s", "expected"),
    [
        (3, 20.0, 30.0, "1g.5gb: 3 ahead, about 20 s"),
        (1, 300.0, 900.0, "1g.5gb: 1 ahead, about 5 min"),
        (3, 556.8, 556.8, "1g.5gb: 3 ahead, at most 10 min"),
        (0, 0.0, 0.0, "1g.5gb: next, a few seconds"),
        (2, None, None, "1g.5gb: 2 ahead"),
        (None, None, None, "1g.5gb: being made for you"),
    ],
)
def test_a_wait_in_words(
    ahead: int | None, likely_s: float | None, high_s: float | None, expected: str
) -> None:
    """Who is ahead and about how long, or at most; an estimate that has run out is not zero."""
    queue = {"shape": "1g.5gb", "ahead": ahead, "likely_s": likely_s, "high_s": high_s}
    assert describe_queue(queue) == expected

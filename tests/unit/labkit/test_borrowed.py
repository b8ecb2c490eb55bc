"""What a borrow says: how long it waits, in words."""

import pytest

from labkit.run.borrowed import in_words


@pytest.mark.parametrize(
    ("ahead", "likely_s", "words"),
    [
        (3, 20.0, "1g.5gb: 3 ahead, about 20 s"),
        (1, 300.0, "1g.5gb: 1 ahead, about 5 min"),
        (0, 0.0, "1g.5gb: next, a few seconds"),
        (2, None, "1g.5gb: 2 ahead"),
        (None, None, "1g.5gb: being made for you"),
    ],
)
def test_a_wait_in_words(ahead: int | None, likely_s: float | None, words: str) -> None:
    """Who is ahead and about how long; an estimate that has run out is not counted to zero."""
    assert in_words({"shape": "1g.5gb", "ahead": ahead, "likely_s": likely_s}) == words

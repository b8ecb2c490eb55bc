"""Guessed tokens: what they cost the hub, and whom they silence."""

import logging
from typing import Any

import pytest
from tests.refusals import because

from miglab_hub.service.process import OnceAMinute
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.hub_tokens import (
    GUESSES_IN_ALL,
    GUESSES_OF_AN_ADDRESS,
    SERVER_TOKEN,
    WINDOW_S,
    HubTokens,
)
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.management_app import management_app
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.student_app import student_app
from miglab_pool.reclaim.activity import SignalBoard

from .conftest import as_, visiting
from .fakes import ACCESS, BOOK, OWNERS, SECRET

GUESSER = "10.0.0.9"


class CountingTokens(HubTokens):
    """Over a hub that knows `OWNERS`, and counts how often it is asked."""

    def __init__(self, **given: Any) -> None:
        self.at = 0.0
        super().__init__(ACCESS, now=lambda: self.at, **given)
        self.asked: list[str] = []
        self.oauth.user_for_token = self._look_up

    async def _look_up(self, token: str, **_: Any) -> dict[str, Any] | None:
        self.asked.append(token)
        return OWNERS.get(token)


async def guess(tokens: HubTokens, address: str = GUESSER, count: int = 20) -> None:
    """As many invented tokens, each another."""
    for number in range(count):
        await tokens.owner(f"{address}-invented-{number}", address)


async def test_what_the_hub_cannot_have_made_is_not_asked_about() -> None:
    """A server's token has one form; a garbage one costs the hub nothing."""
    tokens = CountingTokens(form=SERVER_TOKEN)
    for garbage in ("", "x" * 32, "0" * 31, "0" * 33, "A" * 32, "é" * 32):
        assert await tokens.owner(garbage, GUESSER) is None
    assert tokens.asked == []
    assert await tokens.owner("0123456789abcdef" * 2, GUESSER) is None
    assert len(tokens.asked) == 1


@pytest.mark.parametrize("is_student", [True, False], ids=["student", "management"])
async def test_an_invented_token_asks_the_hub_once_a_minute(
    runner: PoolRunner, is_student: bool
) -> None:
    """At either listener, however often it is sent."""
    tokens = CountingTokens()
    app = (
        student_app(runner, tokens, SignalBoard())
        if is_student
        else management_app(runner, SignIn(ACCESS, SECRET, BOOK, tokens), default_course="")
    )
    path = "http://lab/api/server" if is_student else "/api/pool"
    async with visiting(app) as client:
        for at in (0.0, 1.0, WINDOW_S - 1, WINDOW_S):
            tokens.at = at
            assert (await client.get(path, headers=as_("0" * 32))).status_code == 401
    assert len(tokens.asked) == 2


async def test_a_known_token_from_a_guessers_address_is_served() -> None:
    """Only tokens that the hub has not known are counted, and refused when they are too many.

    A class behind one address signs in within a minute.
    """
    tokens = CountingTokens()
    for name in OWNERS:
        assert await tokens.owner(name, GUESSER)
    await guess(tokens)
    asked = len(tokens.asked)
    with pytest.raises(DeniedError, check=because("too-often")):
        await tokens.owner("one-more", GUESSER)
    assert len(tokens.asked) == asked
    assert await tokens.owner("alice-server", GUESSER)


async def test_an_address_that_guesses_is_heard_again_later() -> None:
    """In the next minute; other addresses do not wait, nor does one that stands for many."""
    tokens = CountingTokens()
    await guess(tokens)
    await guess(tokens, "127.0.0.1", 30)
    with pytest.raises(DeniedError, check=because("too-often")):
        await tokens.owner("bob-token", GUESSER)
    assert await tokens.owner("bob-token", "10.0.0.8")
    tokens.at = WINDOW_S
    assert await tokens.owner("alice-token", GUESSER)


async def test_all_addresses_together_have_a_limit() -> None:
    """From however many addresses they come, the hub hears so many a minute."""
    tokens = CountingTokens()
    for number in range(GUESSES_IN_ALL // GUESSES_OF_AN_ADDRESS):
        await guess(tokens, f"10.0.1.{number}")
    with pytest.raises(DeniedError, check=because("too-often")):
        await tokens.owner("one-more", "10.0.2.1")
    assert len(tokens.asked) == GUESSES_IN_ALL


def test_a_warning_that_strangers_cause_is_written_once_a_minute() -> None:
    """By its words, whatever the values in them; another is written beside it."""
    at = [0.0]
    often = OnceAMinute(lambda: at[0])

    def is_written(text: str, value: str) -> bool:
        record = logging.LogRecord("x", logging.WARNING, "", 1, text, (value,), None)
        return bool(often.filter(record))

    assert [is_written("no user for %s", name) for name in "ab"] == [True, False]
    assert is_written("silent: %s", "a")
    at[0] = 60.0
    assert is_written("no user for %s", "a")

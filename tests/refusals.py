"""Refusals in tests are told apart by their reason, not by the words that people read."""

from collections.abc import Callable
from typing import Protocol


class HasReason(Protocol):
    """`Refused`, `DeniedError`, `RefusedByBackend`."""

    reason: str


def because(reason: str) -> Callable[[HasReason], bool]:
    """For ``pytest.raises(Refused, check=because("over-quota"))``."""

    def check(error: HasReason) -> bool:
        assert error.reason == reason
        return True

    return check

"""How full the pool was in the last hour: one look a minute, in memory; a restart begins anew."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from miglab_api.tickets import Headcount

MINUTES, LOOK_S = 60, 60.0


@dataclass(frozen=True, slots=True)
class Column:
    """One look, as a strip of height 100 shows it.

    Attributes:
        minute: how far right, from 1 for an hour ago to 60.
        holding: how high the part is that holds slices.
        waiting: how high the part above it is that waits.
    """

    minute: int
    holding: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Strip:
    """The last hour; ``words``: the same in a sentence."""

    columns: tuple[Column, ...]
    words: str


class LastHour:
    """See the module."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Headcount]] = deque(maxlen=MINUTES)

    def note(self, people: Headcount, at: float) -> None:
        """So it is at this moment."""
        self._looks.append((at, people))

    def seen(self, now: float) -> tuple[float, int]:
        """While this is the same, so is the strip: when the last look was, and the minute."""
        return self._looks[-1][0] if self._looks else 0.0, int(now // 60)

    def strip(self, now: float) -> Strip | None:
        """What is drawn; None before the second look."""
        looks = [(at, people) for at, people in self._looks if 0 <= _minutes(at, now) < MINUTES]
        if len(looks) < 2:
            return None
        most = max(max(one.total, one.holding + one.waiting) for _, one in looks) or 1
        columns = tuple(
            Column(60 - _minutes(at, now), 100 * one.holding / most, 100 * one.waiting / most)
            for at, one in looks
        )
        held = _span(one.holding for _, one in looks)
        waited = _span(one.waiting for _, one in looks)
        since = _minutes(looks[0][0], now)
        who = f"{held} people held slices (lower bars) and {waited} waited."
        words = f"In the last {since} minutes, {who}"
        return Strip(columns, words)


def _minutes(since: float, now: float) -> int:
    """By the clock's minutes: the strip stays as it is until the next one."""
    return int(now // 60 - since // 60)


def _span(counts: Iterable[int]) -> str:
    found = list(counts)
    low, high = min(found), max(found)
    return f"{low}" if low == high else f"{low} to {high}"

"""Recent use that fades: the formulas behind a fair turn."""

import math
from dataclasses import dataclass

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
FORGOTTEN_AFTER = 10  # half-lives: then a thousandth is left


@dataclass(frozen=True, slots=True)
class Use:
    """Slices that a lease held.

    Attributes:
        size: its memory slices.
        began: when a server was attached; None if none was (yet).
        ended: when it was over; None while it lives.
        server: the server's name.
    """

    lease: int
    user: str
    course: str
    server: str
    size: int
    began: float | None
    ended: float | None
    shape: str = ""

    def slice_hours(self, since: float, until: float) -> float:
        """What was used between two moments, undecayed."""
        if self.began is None:
            return 0.0
        ended = until if self.ended is None else min(self.ended, until)
        return self.size * max(0.0, ended - max(self.began, since)) / HOUR_S


def decayed(use: Use, now: float, half_life_s: float) -> float:
    """The slice-hours of a lease as they count now.

    The integral of ``size · 2^(-(now - t) / half_life)`` over the time t in which it was held.

    Args:
        use: the lease; one that lives counts until now.
        now: seconds since the epoch.
        half_life_s: after which time use counts half, seconds.
    """
    if use.began is None:
        return 0.0
    ended = now if use.ended is None else use.ended
    return use.size * _integral(use.began - now, ended - now, half_life_s) / HOUR_S


def _integral(begin_s: float, end_s: float, half_life_s: float) -> float:
    """Of ``2^(t / half_life)`` from begin to end."""
    grown = math.exp2(end_s / half_life_s) - math.exp2(begin_s / half_life_s)
    return max(0.0, grown) * half_life_s / math.log(2)

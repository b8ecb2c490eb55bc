"""Recent use that fades: the formulas behind a fair turn."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from miglab_api.tickets import is_borrower
from miglab_pool.model.queue import FairShareUsage
from miglab_pool.rules.queue_order import CHARGE_H

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

    @property
    def is_borrow(self) -> bool:
        """Whether measurements held them, and not a server."""
        return is_borrower(self.server)

    def slice_hours(self, since: float, until: float) -> float:
        """What was used between two moments, undecayed."""
        if self.began is None:
            return 0.0
        ended = until if self.ended is None else min(self.ended, until)
        return self.size * max(0.0, ended - max(self.began, since)) / HOUR_S


def over_by(use: Use, now: float) -> Use:
    """As if it had ended by now, if it ended later: the clock was ahead then."""
    later_s = 0.0 if use.ended is None else max(0.0, use.ended - now)
    if not later_s or use.began is None or use.ended is None:
        return use
    return replace(use, began=use.began - later_s, ended=use.ended - later_s)


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
    """Of ``2^(t / half_life)`` from begin to end; 0 if it begins later than it ends."""
    begin_s = min(begin_s, end_s)
    grown = math.exp2(end_s / half_life_s) - math.exp2(begin_s / half_life_s)
    return max(0.0, grown) * half_life_s / math.log(2)


@dataclass(frozen=True, eq=False)
class UsageTotals:
    """What leases have used lately, at a moment of the ledger.

    Attributes:
        half_life_s: after which time use counts half, seconds.
        summed_at: the moment at which ``sums`` count as they stand.
        sums: of the leases that are over, by ``("course", name)`` and ``("", user)``.
        over: the leases that are over, and still count.
        live: the live leases.
    """

    half_life_s: float
    summed_at: float
    sums: Mapping[tuple[str, str], float]
    over: tuple[Use, ...] = ()
    live: tuple[Use, ...] = ()

    @property
    def all(self) -> list[Use]:
        """Every lease that counts, live ones last."""
        return [*self.over, *self.live]

    def fair_share(
        self, now: float, weights: Mapping[str, float], ageing_s: float
    ) -> FairShareUsage:
        """What courses and users have used lately, for the order of the queue."""
        faded = math.exp2(min(0.0, self.summed_at - now) / self.half_life_s)
        sums = defaultdict(float, {key: value * faded for key, value in self.sums.items()})
        for use in self.live:
            add(sums, use, max(use.size * CHARGE_H, decayed(use, now, self.half_life_s)))
        courses = {name: n / weights.get(name, 1.0) for (what, name), n in sums.items() if what}
        users = {name: value for (what, name), value in sums.items() if not what}
        return FairShareUsage(now, courses, users, weights, ageing_s)


def add(sums: dict[tuple[str, str], float], use: Use, counted: float) -> None:
    """Count a lease's use for its course and its user."""
    sums["course", use.course] += counted
    sums["", use.user] += counted

"""Fair-share usage: what courses and users have used lately, counted with a half-life.  Pure.

Quotas count the same leases, undecayed.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from miglab_api.tickets import is_borrower
from miglab_pool.schedule import DAY_S

CHARGE_H = 1.0  # hours that a grant costs at once: else one course could take all slices at once
HOUR_S = 3600.0
WEEK_S = 7 * DAY_S
FORGOTTEN_AFTER = 10  # half-lives, after which a thousandth is left


@dataclass(frozen=True)
class FairShareUsage:
    """What courses and users have used lately, with the weights and the ageing time.

    Attributes:
        now: seconds since the epoch.
        courses: slice-hours used lately, decayed (see
            `decayed_slice_hours`), divided by the course's weight.
        users: the same of users, unweighted, in all their courses together.
        weights: the courses' weights; 1 for a course that is not named.
        ageing_s: tickets that have waited for so long go before all others.
    """

    now: float = 0.0
    courses: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    ageing_s: float = inf

    def has_aged(self, since: float) -> bool:
        """Whether a ticket of then has waited so long that fair share no longer counts for it."""
        return self.now - since >= self.ageing_s


ALL_EQUAL = FairShareUsage()


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """What fair share and quotas need to know of a lease.

    Attributes:
        size: its memory slices.
        began_at: when a server was attached; None if none was (yet).
        ended_at: when it was over; None while it lives.
        server: the server's name.
        granted_at: from when its slices were nobody else's; None if it was not granted (yet).
    """

    lease: int
    user: str
    course: str
    server: str
    size: int
    began_at: float | None
    ended_at: float | None
    shape: str = ""
    granted_at: float | None = None

    @property
    def is_borrow(self) -> bool:
        """Whether measurements held the slices, and not a server."""
        return is_borrower(self.server)

    @property
    def occupied_s(self) -> float:
        """How long it kept its slices from others: creating them and starting on them included."""
        kept_from = self.began_at if self.granted_at is None else self.granted_at
        return (self.ended_at or 0.0) - (kept_from or 0.0)

    def slice_hours(self, since: float, until: float) -> float:
        """Return the slice-hours that were used between two moments, undecayed."""
        if self.began_at is None:
            return 0.0
        ended = until if self.ended_at is None else min(self.ended_at, until)
        return self.size * max(0.0, ended - max(self.began_at, since)) / HOUR_S


def shifted_to_end_by(use: LeaseUse, now: float) -> LeaseUse:
    """Return the use, moved back in time if it ended after ``now``: the clock was ahead then."""
    later_s = 0.0 if use.ended_at is None else max(0.0, use.ended_at - now)
    if not later_s or use.began_at is None or use.ended_at is None:
        return use
    granted_at = None if use.granted_at is None else use.granted_at - later_s
    return replace(
        use,
        granted_at=granted_at,
        began_at=use.began_at - later_s,
        ended_at=use.ended_at - later_s,
    )


def decayed_slice_hours(use: LeaseUse, now: float, half_life_s: float) -> float:
    """Return the slice-hours of a lease as they count now.

    They are the integral of ``size · 2^(-(now - t) / half_life)`` over the time t in which it was
    held.

    Args:
        use: the lease; one that lives counts until now.
        now: seconds since the epoch.
        half_life_s: the time after which use counts half.
    """
    if use.began_at is None:
        return 0.0
    ended = now if use.ended_at is None else use.ended_at
    return use.size * _integral(use.began_at - now, ended - now, half_life_s) / HOUR_S


def _integral(begin_s: float, end_s: float, half_life_s: float) -> float:
    """Return the integral of ``2^(t / half_life)``; 0 if it begins later than it ends."""
    begin_s = min(begin_s, end_s)
    grown = math.exp2(end_s / half_life_s) - math.exp2(begin_s / half_life_s)
    return max(0.0, grown) * half_life_s / math.log(2)


@dataclass(frozen=True, eq=False)
class LeaseUses:
    """What leases have used lately, as of a moment of the ledger.

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
    over: tuple[LeaseUse, ...] = ()
    live: tuple[LeaseUse, ...] = ()

    @property
    def all(self) -> list[LeaseUse]:
        """Every lease use that counts, live ones last."""
        return [*self.over, *self.live]

    def with_ended(self, ended: Iterable[LeaseUse]) -> "LeaseUses":
        """Return the uses with those of more leases that are over."""
        over = tuple(ended)
        sums = defaultdict(float, self.sums)
        for use in over:
            add_use(sums, use, decayed_slice_hours(use, self.summed_at, self.half_life_s))
        return replace(self, sums=sums, over=(*self.over, *over))

    def fair_share(
        self, now: float, weights: Mapping[str, float], ageing_s: float
    ) -> FairShareUsage:
        """Return what courses and users have used lately, for the order of the queue."""
        faded = math.exp2(min(0.0, self.summed_at - now) / self.half_life_s)
        sums = defaultdict(float, {key: value * faded for key, value in self.sums.items()})
        for use in self.live:
            add_use(
                sums, use, max(use.size * CHARGE_H, decayed_slice_hours(use, now, self.half_life_s))
            )
        courses = {name: n / weights.get(name, 1.0) for (kind, name), n in sums.items() if kind}
        users = {name: value for (kind, name), value in sums.items() if not kind}
        return FairShareUsage(now, courses, users, weights, ageing_s)


def add_use(sums: dict[tuple[str, str], float], use: LeaseUse, slice_hours: float) -> None:
    """Add slice-hours of a lease to its course and its user."""
    sums["course", use.course] += slice_hours
    sums["", use.user] += slice_hours

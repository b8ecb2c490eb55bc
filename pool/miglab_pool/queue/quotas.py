"""Quotas: what a course or student may still have; and until when leases are guaranteed.  Pure.

Quotas count memory slices (a 1g.5gb is 1, a 3g.20gb is 4, a whole A100 is 8) and slice-hours of any
seven days.  Of the quotas for each student, the most specific one counts for each kind of limit;
shared quotas all count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from miglab_api.wording import duration
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.settings import PoolSettings, Quota
from miglab_pool.state.fair_share import HOUR_S, WEEK_S, LeaseUse

LEAST_S = 600.0  # slice-hours that do not last so long count as used up
_STEPS = 30  # halvings of a week: exact to less than a millisecond

Kind = Literal["memory_slices", "slice_hours_week", "lease_s"]
Quotas = Mapping[str, Quota]  # by the name that refusals use
BORROW_OFFER_S = 30.0  # the hub takes such an offer at once


class SliceClaim(NamedTuple):
    """Who asks for how many memory slices, as quotas judge it.

    Attributes:
        server: the server that the slices are for; None if there is none yet.
        size: the memory slices of all slices together.
    """

    user: str
    course: str
    server: str | None
    size: int


@dataclass(frozen=True)
class Limit:
    """A quota's limit of one kind, and how much of it is used.

    Attributes:
        name: the name of the quota.
        quota: the quota that sets it.
        maximum: memory slices, slice-hours, or seconds of a guarantee.
        used: memory slices or slice-hours; 0 for a length.
    """

    name: str
    quota: Quota
    kind: Kind
    maximum: float
    used: float = 0.0

    @property
    def left(self) -> float:
        """How much is left; never negative."""
        return max(0.0, self.maximum - self.used)


def applying_limits(
    quotas: Quotas, claim: SliceClaim, uses: Iterable[LeaseUse], now: float
) -> list[Limit]:
    """Return the limits that apply to a claim, with what is used of them.

    Args:
        quotas: all quotas.
        claim: the claim; what its own server holds is not counted, as the server gives that up.
        uses: live leases, those of the last week, and waiting tickets as if granted.
        now: seconds since the epoch.
    """
    uses = list(uses)
    limits = []
    for name, kind, maximum in _applying_quotas(quotas, claim):
        quota = quotas[name]
        counted = [use for use in uses if _counts(use, quota, claim)]
        limits.append(Limit(name, quota, kind, maximum, _used_amount(kind, counted, claim, now)))
    return limits


def _applying_quotas(quotas: Quotas, claim: SliceClaim) -> list[tuple[str, Kind, float]]:
    """Return name, kind and maximum of each limit that applies to a claim."""
    kinds: tuple[Kind, ...] = ("memory_slices", "slice_hours_week", "lease_s")
    concern = {
        name: quota
        for name, quota in quotas.items()
        if quota.course in ("", claim.course) and quota.user in ("", claim.user)
    }
    applying: list[tuple[str, Kind, float]] = []
    for kind in kinds:
        setting = [quota for quota in concern.values() if quota.limit(kind)]
        personal = [quota for quota in setting if not quota.shared]
        exact = max(
            personal,
            default=None,
            key=lambda quota: (quota.user != "", quota.course != "", -quota.limit(kind)),
        )
        applying += [
            (name, kind, quota.limit(kind))
            for name, quota in concern.items()
            if quota.limit(kind) and (quota.shared or quota is exact)
        ]
    return applying


def _counts(use: LeaseUse, quota: Quota, claim: SliceClaim) -> bool:
    is_theirs = quota.shared or use.user == claim.user
    return is_theirs and quota.course in ("", use.course)


def _used_amount(kind: Kind, uses: Iterable[LeaseUse], claim: SliceClaim, now: float) -> float:
    if kind == "lease_s":
        return 0.0
    if kind == "slice_hours_week":
        return sum(use.slice_hours(now - WEEK_S, now) for use in uses)
    return sum(use.size for use in uses if use.ended_at is None and not _is_own(use, claim))


def _is_own(use: LeaseUse, claim: SliceClaim) -> bool:
    return (use.user, use.server) == (claim.user, claim.server)


# -- verdicts -------------------------------------------------------------------------------------


def describe_excess(
    quotas: Quotas, claim: SliceClaim, uses: Sequence[LeaseUse], now: float
) -> str | None:
    """Return which quota a claim exceeds, and until when, for the student; None if it exceeds none.

    A course that holds all that it may at a time refuses nobody: its students wait in the queue.
    """
    for limit in applying_limits(quotas, claim, uses, now):
        excess = None
        if limit.kind == "memory_slices":
            excess = _describe_live_excess(limit, claim)
        elif limit.kind == "slice_hours_week" and limit.left < claim.size * LEAST_S / HOUR_S:
            excess = _describe_week_excess(limit, claim, uses, now)
        if excess is not None:
            return excess
    return None


def blocking_limit(limits: Iterable[Limit], claim: SliceClaim) -> Limit | None:
    """Return the first shared limit of live slices that keeps a claim waiting, if any."""
    for limit in limits:
        is_shared_live = limit.kind == "memory_slices" and limit.quota.shared
        if is_shared_live and limit.used + claim.size > limit.maximum:
            return limit
    return None


def longest_allowed_s(quotas: Quotas, claim: SliceClaim, default_s: float) -> float:
    """Return the longest guarantee that quotas allow, in seconds; without a quota, the default."""
    if not quotas:
        return default_s
    allowed_s = [
        maximum for _, kind, maximum in _applying_quotas(quotas, claim) if kind == "lease_s"
    ]
    return min(allowed_s, default=default_s)


def slice_hours_left_s(
    quotas: Quotas, claim: SliceClaim, uses: Sequence[LeaseUse], now: float
) -> float | None:
    """Return how many seconds a student's slice-hours last if all their servers go on.

    None for no limit.  Slice-hours that a course has used up end no lease: they only refuse new
    ones.
    """
    other_uses = (use for use in uses if use.ended_at is None and use.user == claim.user)
    held_size = claim.size + sum(use.size for use in other_uses if not _is_own(use, claim))
    return min(
        (
            limit.left / held_size * HOUR_S
            for limit in applying_limits(quotas, claim, uses, now)
            if limit.kind == "slice_hours_week" and not limit.quota.shared
        ),
        default=None,
    )


def _describe_live_excess(limit: Limit, claim: SliceClaim) -> str | None:
    if claim.size > limit.maximum:
        return (
            f"This shape has {claim.size} memory slices; {_limit_subject(limit)} at most "
            f"{limit.maximum:g} at a time ({_quota_name(limit)}). Choose a smaller shape."
        )
    if limit.quota.shared or limit.used + claim.size <= limit.maximum:
        return None
    return (
        f"You hold or wait for {limit.used:g} of the {limit.maximum:g} memory slices that you may "
        f"have at a time ({_quota_name(limit)}), and this shape has {claim.size}. Stop another "
        "server of yours, or choose a smaller shape; once another of yours has ended there is room "
        "again."
    )


def _describe_week_excess(
    limit: Limit, claim: SliceClaim, uses: Sequence[LeaseUse], now: float
) -> str:
    wait_s = seconds_until_enough(limit, claim, uses, now)
    subject = "Your course has" if limit.quota.shared else "You have"
    usage = (
        f"{subject} used {limit.used:.1f} of {limit.maximum:g} slice-hours of the last seven days "
        f"({_quota_name(limit)}). "
    )
    if wait_s is None:
        return usage + "That is too little for this shape at any time: choose a smaller one."
    availability = f"There is enough for this shape again in {duration(wait_s)}"
    return f"{usage}{availability}; until then, start without a GPU."


def seconds_until_enough(
    limit: Limit, claim: SliceClaim, uses: Sequence[LeaseUse], now: float
) -> float | None:
    """Return in how many seconds a limit has enough slice-hours for a claim again.

    Use older than a week no longer counts; no further use is assumed.  None if even an unused week
    is not enough.
    """
    need = claim.size * LEAST_S / HOUR_S
    if limit.maximum < need:
        return None
    counted = [use for use in uses if _counts(use, limit.quota, claim)]
    early, late = 0.0, WEEK_S
    for _ in range(_STEPS):
        middle = (early + late) / 2
        used = sum(use.slice_hours(now + middle - WEEK_S, now) for use in counted)
        early, late = (early, middle) if limit.maximum - used >= need else (middle, late)
    return late


def _limit_subject(limit: Limit) -> str:
    return "your course may hold" if limit.quota.shared else "you may hold"


def _quota_name(limit: Limit) -> str:
    return f"quota “{limit.name}”"


def longest_guarantee_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """Return for how many seconds a lease is guaranteed at most, without extensions.

    Slice-hours that are used up may end the guarantee sooner.
    """
    pool, claim = settings.pool, SliceClaim(row.user, row.course, None, 0)
    if row.is_borrow:
        return min(pool.borrow_s, longest_allowed_s(settings.quotas, claim, pool.borrow_s))
    return longest_allowed_s(settings.quotas, claim, pool.lease_s)


def guarantee_from_grant_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """Return for how many seconds slices are guaranteed from the grant on, before the attach."""
    return offer_s(settings, row) + settings.pool.attach_s + longest_guarantee_s(settings, row)


def offer_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """Return for how many seconds an offer is held; measurements take it at once."""
    longest = settings.pool.offer_s
    return min(longest, BORROW_OFFER_S) if row.is_borrow else longest

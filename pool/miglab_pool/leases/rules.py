"""What a course or student may still have, and until when leases are guaranteed.  Pure.

Counted in memory slices (a 1g.5gb is 1, a 3g.20gb is 4, a whole A100 is 8) and in memory slices
times hours of any seven days.  Of the quotas for each student the one that says most exactly whom
it concerns counts, for each kind of limit; shared quotas all count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from miglab_api.wording import duration
from miglab_pool.ledger.rows import LeaseRow, TicketRow
from miglab_pool.queue.rules import HOUR_S, WEEK_S, LeaseUse
from miglab_pool.settings import PoolSettings, Quota

LEAST_S = 600.0  # hours left that do not last so long are as good as none
_STEPS = 30  # halvings of a week: exact to less than a millisecond

Kind = Literal["memory_slices", "slice_hours_week", "lease_s"]
Quotas = Mapping[str, Quota]  # by the name that a refusal calls them
BORROW_OFFER_S = 30.0  # the hub takes it in the moment it hears of it


class Asked(NamedTuple):
    """What somebody asks for: so many memory slices for a server; None for no server yet."""

    user: str
    course: str
    server: str | None
    size: int


@dataclass(frozen=True)
class Limit:
    """A quota's limit of one kind, and how much of it is used.

    Attributes:
        name: the quota's.
        quota: the quota that sets it.
        used: memory slices or slice-hours; 0 for a length.
    """

    name: str
    quota: Quota
    kind: Kind
    most: float
    used: float = 0.0

    @property
    def left(self) -> float:
        """How much is left; never less than nothing."""
        return max(0.0, self.most - self.used)


def limits(quotas: Quotas, asked: Asked, uses: Iterable[LeaseUse], now: float) -> list[Limit]:
    """The limits that concern somebody in a course, with what is used.

    Args:
        quotas: all there are.
        asked: who; what the very server holds is not counted, as it gives that up.
        uses: leases, live and of the last week, and as live ones the tickets that wait.
        now: seconds since the epoch.
    """
    uses = list(uses)
    found = []
    for name, kind, most in _applying(quotas, asked):
        quota = quotas[name]
        counted = [use for use in uses if _counts(use, quota, asked)]
        found.append(Limit(name, quota, kind, most, _used(kind, counted, asked, now)))
    return found


def _applying(quotas: Quotas, asked: Asked) -> list[tuple[str, Kind, float]]:
    """The quotas that concern somebody, for each kind of limit that they set."""
    kinds: tuple[Kind, ...] = ("memory_slices", "slice_hours_week", "lease_s")
    concern = {
        name: quota
        for name, quota in quotas.items()
        if quota.course in ("", asked.course) and quota.user in ("", asked.user)
    }
    found: list[tuple[str, Kind, float]] = []
    for kind in kinds:
        setting = [quota for quota in concern.values() if quota.limit(kind)]
        own = [quota for quota in setting if not quota.shared]
        exact = max(
            own, default=None, key=lambda one: (one.user != "", one.course != "", -one.limit(kind))
        )
        found += [
            (name, kind, quota.limit(kind))
            for name, quota in concern.items()
            if quota.limit(kind) and (quota.shared or quota is exact)
        ]
    return found


def _counts(use: LeaseUse, quota: Quota, asked: Asked) -> bool:
    is_theirs = quota.shared or use.user == asked.user
    return is_theirs and quota.course in ("", use.course)


def _used(kind: Kind, uses: Iterable[LeaseUse], asked: Asked, now: float) -> float:
    if kind == "lease_s":
        return 0.0
    if kind == "slice_hours_week":
        return sum(use.slice_hours(now - WEEK_S, now) for use in uses)
    return sum(use.size for use in uses if use.ended_at is None and not _is_own(use, asked))


def _is_own(use: LeaseUse, asked: Asked) -> bool:
    return (use.user, use.server) == (asked.user, asked.server)


# -- verdicts -------------------------------------------------------------------------------------


def why_not(quotas: Quotas, asked: Asked, uses: Sequence[LeaseUse], now: float) -> str | None:
    """Why this cannot be asked for now, and until when, in words; None if it can.

    A course that holds all it may at a time is no reason: its students wait in the queue.
    """
    for limit in limits(quotas, asked, uses, now):
        said = None
        if limit.kind == "memory_slices":
            said = _why_not_live(limit, asked)
        elif limit.kind == "slice_hours_week" and limit.left < asked.size * LEAST_S / HOUR_S:
            said = _why_not_week(limit, asked, uses, now)
        if said is not None:
            return said
    return None


def held_by(found: Iterable[Limit], asked: Asked) -> Limit | None:
    """The shared quota of live slices that somebody in the queue waits for, if there is one."""
    for limit in found:
        is_shared_live = limit.kind == "memory_slices" and limit.quota.shared
        if is_shared_live and limit.used + asked.size > limit.most:
            return limit
    return None


def longest_set_s(quotas: Quotas, asked: Asked, default_s: float) -> float:
    """The longest guarantee that quotas allow, whatever was used; without one, the default."""
    if not quotas:
        return default_s
    longest = [most for _, kind, most in _applying(quotas, asked) if kind == "lease_s"]
    return min(longest, default=default_s)


def hours_left_s(
    quotas: Quotas, asked: Asked, uses: Sequence[LeaseUse], now: float
) -> float | None:
    """How long a student's slice-hours last, seconds, if all their servers go on; None: no limit.

    A course's slice-hours end nobody's lease: they only let nobody in any more.
    """
    others = (use for use in uses if use.ended_at is None and use.user == asked.user)
    held = asked.size + sum(use.size for use in others if not _is_own(use, asked))
    return min(
        (
            limit.left / held * HOUR_S
            for limit in limits(quotas, asked, uses, now)
            if limit.kind == "slice_hours_week" and not limit.quota.shared
        ),
        default=None,
    )


def _why_not_live(limit: Limit, asked: Asked) -> str | None:
    if asked.size > limit.most:
        return (
            f"This shape has {asked.size} memory slices; {_whose(limit)} at most "
            f"{limit.most:g} at a time ({_named(limit)}). Choose a smaller shape."
        )
    if limit.quota.shared or limit.used + asked.size <= limit.most:
        return None
    return (
        f"You hold or wait for {limit.used:g} of the {limit.most:g} memory slices that you may "
        f"have at a time ({_named(limit)}), and this shape has {asked.size}. Stop another server "
        "of yours, or choose a smaller shape; once another of yours has ended there is room again."
    )


def _why_not_week(limit: Limit, asked: Asked, uses: Sequence[LeaseUse], now: float) -> str:
    wait_s = more_in_s(limit, asked, uses, now)
    who = "Your course has" if limit.quota.shared else "You have"
    said = (
        f"{who} used {limit.used:.1f} of {limit.most:g} slice-hours of the last seven days "
        f"({_named(limit)}). "
    )
    if wait_s is None:
        return said + "That is too little for this shape at any time: choose a smaller one."
    when = f"There is enough for this shape again in {duration(wait_s)}"
    return f"{said}{when}; until then, start without a GPU."


def more_in_s(limit: Limit, asked: Asked, uses: Sequence[LeaseUse], now: float) -> float | None:
    """In how many seconds enough slice-hours are older than a week, if nothing more is used.

    None if even an unused week is not enough.
    """
    need = asked.size * LEAST_S / HOUR_S
    if limit.most < need:
        return None
    counted = [use for use in uses if _counts(use, limit.quota, asked)]
    early, late = 0.0, WEEK_S
    for _ in range(_STEPS):
        middle = (early + late) / 2
        used = sum(use.slice_hours(now + middle - WEEK_S, now) for use in counted)
        early, late = (early, middle) if limit.most - used >= need else (middle, late)
    return late


def _whose(limit: Limit) -> str:
    return "your course may hold" if limit.quota.shared else "you may hold"


def _named(limit: Limit) -> str:
    return f"quota “{limit.name}”"


def longest_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """For how long somebody's lease is guaranteed, without extensions, seconds.

    Slice-hours that are used up may end it sooner.
    """
    pool, asked = settings.pool, Asked(row.user, row.course, None, 0)
    if row.is_borrow:
        return min(pool.borrow_s, longest_set_s(settings.quotas, asked, pool.borrow_s))
    return longest_set_s(settings.quotas, asked, pool.lease_s)


def guaranteed_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """For how long slices are guaranteed from the grant on, until the attach is known."""
    return offer_s(settings, row) + settings.pool.attach_s + longest_s(settings, row)


def offer_s(settings: PoolSettings, row: TicketRow | LeaseRow) -> float:
    """How long an offer is held; no person has to press a button for a measurement."""
    longest = settings.pool.offer_s
    return min(longest, BORROW_OFFER_S) if row.is_borrow else longest

"""What the quotas mean for the rows of the pool: who may ask, who must wait, when a lease ends."""

from collections.abc import Iterable, Iterator

from miglab_api.offers import QuotaLeft
from miglab_pool.model.queue import Waiting
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import LeaseRow
from miglab_pool.rules import quotas
from miglab_pool.rules.fair_share import HOUR_S, Use
from miglab_pool.rules.quotas import Asked, Limit, Quotas
from miglab_pool.state.store import Core


def why_not(core: Core, asked: Asked, waiting: Iterable[Waiting]) -> str | None:
    """Why a quota refuses this, in words; None if none does."""
    if not core.settings.quotas:
        return None
    now = core.now()
    return quotas.why_not(core.settings.quotas, asked, _uses(core, now, waiting), now)


def let_by(core: Core, line: Iterable[Waiting]) -> Iterator[Waiting]:
    """Those in line whom no course's quota holds back, if all of them are served in this order."""
    totals = _totals(core)
    uses = core.uses.live() if totals else []
    for one in line:
        if _held_by(core, one, totals, uses) is None:
            uses.append(_as_use(core, one))
            yield one


def held_by(core: Core, one: Waiting) -> Limit | None:
    """The course's quota that a ticket waits for; None if it waits for room."""
    totals = _totals(core)
    return _held_by(core, one, totals, core.uses.live()) if totals else None


def ends_at(core: Core, lease: LeaseRow, at: float) -> float | None:
    """When a lease that is attached now ends; None for no limit."""
    uses = core.uses.at(at)
    settings = core.settings
    longest_s = quotas.longest_s(
        settings.quotas, _asked(core, lease), uses, at, settings.pool.longest_lease_s
    )
    return None if longest_s is None else at + longest_s


def check_end(core: Core, lease: LeaseRow, ends_at: float) -> None:
    """Refuse an extension that the student's slice-hours do not cover."""
    now = core.now()
    uses = core.uses.at(now)
    left_s = quotas.hours_left_s(core.settings.quotas, _asked(core, lease), uses, now)
    if left_s is not None and ends_at > now + left_s:
        raise Refused(
            "no-extension",
            f"Your slice-hours of these seven days last for {quotas.in_words(left_s)} more, which "
            "is less than you ask for. Ask for less, or save your work in time.",
        )


def why_held(core: Core, one: Waiting) -> str:
    """What to tell somebody who waits for the course, not for room; empty if for room."""
    limit = held_by(core, one)
    if limit is None:
        return ""
    return (
        f"Your course holds {limit.used:g} of the {limit.most:g} memory slices that it may hold at "
        f"a time (quota “{limit.name}”): you are served when one of its leases ends."
    )


def left(core: Core, user: str, course: str) -> tuple[QuotaLeft, ...]:
    """What a student has left in a course, for the spawn page."""
    if not core.settings.quotas:
        return ()
    now = core.now()
    uses = core.uses.at(now)
    asked = Asked(user, course, None, 1)
    return tuple(
        QuotaLeft(
            quota=limit.name,
            limit=limit.kind,
            is_shared=limit.quota.shared,
            most=limit.most,
            used=limit.used,
            more_in_s=_more_in_s(limit, asked, uses, now),
        )
        for limit in quotas.limits(core.settings.quotas, asked, uses, now)
    )


def _more_in_s(limit: Limit, asked: Asked, uses: list[Use], now: float) -> float | None:
    if limit.kind != "slice_hours_week" or limit.left >= quotas.LEAST_S / HOUR_S:
        return None
    return quotas.more_in_s(limit, asked, uses, now)


def _totals(core: Core) -> Quotas:
    """What whole courses may hold at a time."""
    return {
        name: quota.model_copy(update={"slice_hours_week": 0.0})
        for name, quota in core.settings.quotas.items()
        if quota.shared and quota.live_slices
    }


def _held_by(core: Core, one: Waiting, totals: Quotas, uses: Iterable[Use]) -> Limit | None:
    asked = Asked(one.user, one.course, core.state.tickets[one.ticket].server, one.size)
    return quotas.held_by(quotas.limits(totals, asked, uses, core.now()), asked)


def _uses(core: Core, now: float, waiting: Iterable[Waiting]) -> list[Use]:
    """Leases, and the tickets that wait: who waits for slices holds them as good as already."""
    return [*core.uses.at(now), *(_as_use(core, one) for one in waiting)]


def _as_use(core: Core, one: Waiting) -> Use:
    server = core.state.tickets[one.ticket].server
    return Use(0, one.user, one.course, server, one.size, None, None)


def _asked(core: Core, lease: LeaseRow) -> Asked:
    size = sum(row.size for row in core.state.slices_of(lease))
    return Asked(lease.user, lease.course, lease.server, size)

"""What the quotas mean for the rows of the pool: who may ask, who must wait, when a lease ends."""

from collections.abc import Iterable, Iterator

from miglab_api.offers import QuotaLeft
from miglab_pool.leases.rules import bounded
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.queue import quotas
from miglab_pool.queue.quotas import Asked, Limit, Quotas
from miglab_pool.queue.rules import HOUR_S, Use, Waiting
from miglab_pool.refused import Refused
from miglab_pool.state.once import once
from miglab_pool.state.view import PoolView


def why_not(view: PoolView, asked: Asked, waiting: Iterable[Waiting]) -> str | None:
    """Why a quota refuses this, in words; None if none does."""
    if not view.settings.quotas:
        return None
    now = view.at
    return quotas.why_not(view.settings.quotas, asked, _uses(view, waiting), now)


def let_by(view: PoolView, queued: Iterable[Waiting]) -> Iterator[Waiting]:
    """Those whom no course's quota holds back, if all of them are served in this order."""
    totals = _totals(view)
    if not totals:
        yield from queued
        return
    uses = list(view.usage.live)
    for one in queued:
        if _held_by(view, one, totals, uses) is None:
            uses.append(_as_use(view, one))
            yield one


def held_by(view: PoolView, one: Waiting) -> Limit | None:
    """The course's quota that a ticket waits for; None if it waits for room."""
    totals = _totals(view)
    return _held_by(view, one, totals, list(view.usage.live)) if totals else None


def ends_at(view: PoolView, lease: LeaseRow) -> float | None:
    """When a lease that is attached now ends; None for no limit."""
    at, settings = view.at, view.settings
    asked, uses = _asked(view, lease), view.usage.all
    longest_s = quotas.longest_s(settings.quotas, asked, uses, at, settings.pool.longest_lease_s)
    longest_s = bounded(settings, lease, longest_s)
    return None if longest_s is None else at + longest_s


def check_end(view: PoolView, lease: LeaseRow, ends_at: float) -> None:
    """Refuse an extension that the student's slice-hours do not cover."""
    now = view.at
    uses = view.usage.all
    left_s = quotas.hours_left_s(view.settings.quotas, _asked(view, lease), uses, now)
    if left_s is not None and ends_at > now + left_s:
        raise Refused(
            "no-extension",
            f"Your slice-hours of these seven days last for {quotas.in_words(left_s)} more, which "
            "is less than you ask for. Ask for less, or save your work in time.",
        )


def why_held(view: PoolView, one: Waiting) -> str:
    """What to tell somebody who waits for the course, not for room; empty if for room."""
    limit = held_by(view, one)
    if limit is None:
        return ""
    return (
        f"Your course holds {limit.used:g} of the {limit.most:g} memory slices that it may hold at "
        f"a time (quota “{limit.name}”): you are served when one of its leases ends."
    )


def left(view: PoolView, user: str, course: str) -> tuple[QuotaLeft, ...]:
    """What a student has left in a course, for the spawn page."""
    if not view.settings.quotas:
        return ()
    now = view.at
    uses = view.usage.all
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
        for limit in quotas.limits(view.settings.quotas, asked, uses, now)
    )


def _more_in_s(limit: Limit, asked: Asked, uses: list[Use], now: float) -> float | None:
    if limit.kind != "slice_hours_week" or limit.left >= quotas.LEAST_S / HOUR_S:
        return None
    return quotas.more_in_s(limit, asked, uses, now)


@once
def _totals(view: PoolView) -> Quotas:
    """What whole courses may hold at a time."""
    return {
        name: quota.model_copy(update={"slice_hours_week": 0.0})
        for name, quota in view.settings.quotas.items()
        if quota.shared and quota.live_slices
    }


def _held_by(view: PoolView, one: Waiting, totals: Quotas, uses: Iterable[Use]) -> Limit | None:
    asked = Asked(one.user, one.course, view.tickets[one.ticket].server, one.size)
    return quotas.held_by(quotas.limits(totals, asked, uses, view.at), asked)


def _uses(view: PoolView, waiting: Iterable[Waiting]) -> list[Use]:
    """Leases, and the tickets that wait: who waits for slices holds them as good as already."""
    return [*view.usage.all, *(_as_use(view, one) for one in waiting)]


def _as_use(view: PoolView, one: Waiting) -> Use:
    server = view.tickets[one.ticket].server
    return Use(0, one.user, one.course, server, one.size, None, None)


def _asked(view: PoolView, lease: LeaseRow) -> Asked:
    size = sum(row.size for row in view.slices_of(lease))
    return Asked(lease.user, lease.course, lease.server, size)

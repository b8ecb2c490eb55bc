"""What the quotas mean for the rows of the pool: who may ask, who must wait, when a lease ends."""

from collections.abc import Iterable, Iterator

from miglab_api.offers import QuotaLeft
from miglab_pool.model.queue import Waiting
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import LeaseRow
from miglab_pool.rules import quotas
from miglab_pool.rules.fair_share import HOUR_S, Use
from miglab_pool.rules.quotas import Asked, Limit, Quotas
from miglab_pool.state.store import Store


def why_not(store: Store, asked: Asked, waiting: Iterable[Waiting]) -> str | None:
    """Why a quota refuses this, in words; None if none does."""
    if not store.settings.quotas:
        return None
    now = store.now()
    return quotas.why_not(store.settings.quotas, asked, _uses(store, now, waiting), now)


def let_by(store: Store, line: Iterable[Waiting]) -> Iterator[Waiting]:
    """Those in line whom no course's quota holds back, if all of them are served in this order."""
    totals = _totals(store)
    uses = store.uses.live() if totals else []
    for one in line:
        if _held_by(store, one, totals, uses) is None:
            uses.append(_as_use(store, one))
            yield one


def held_by(store: Store, one: Waiting) -> Limit | None:
    """The course's quota that a ticket waits for; None if it waits for room."""
    totals = _totals(store)
    return _held_by(store, one, totals, store.uses.live()) if totals else None


def ends_at(store: Store, lease: LeaseRow, at: float) -> float | None:
    """When a lease that is attached now ends; None for no limit."""
    uses = store.uses.at(at)
    settings = store.settings
    longest_s = quotas.longest_s(
        settings.quotas, _asked(store, lease), uses, at, settings.pool.longest_lease_s
    )
    return None if longest_s is None else at + longest_s


def check_end(store: Store, lease: LeaseRow, ends_at: float) -> None:
    """Refuse an extension that the student's slice-hours do not cover."""
    now = store.now()
    uses = store.uses.at(now)
    left_s = quotas.hours_left_s(store.settings.quotas, _asked(store, lease), uses, now)
    if left_s is not None and ends_at > now + left_s:
        raise Refused(
            "no-extension",
            f"Your slice-hours of these seven days last for {quotas.in_words(left_s)} more, which "
            "is less than you ask for. Ask for less, or save your work in time.",
        )


def why_held(store: Store, one: Waiting) -> str:
    """What to tell somebody who waits for the course, not for room; empty if for room."""
    limit = held_by(store, one)
    if limit is None:
        return ""
    return (
        f"Your course holds {limit.used:g} of the {limit.most:g} memory slices that it may hold at "
        f"a time (quota “{limit.name}”): you are served when one of its leases ends."
    )


def left(store: Store, user: str, course: str) -> tuple[QuotaLeft, ...]:
    """What a student has left in a course, for the spawn page."""
    if not store.settings.quotas:
        return ()
    now = store.now()
    uses = store.uses.at(now)
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
        for limit in quotas.limits(store.settings.quotas, asked, uses, now)
    )


def _more_in_s(limit: Limit, asked: Asked, uses: list[Use], now: float) -> float | None:
    if limit.kind != "slice_hours_week" or limit.left >= quotas.LEAST_S / HOUR_S:
        return None
    return quotas.more_in_s(limit, asked, uses, now)


def _totals(store: Store) -> Quotas:
    """What whole courses may hold at a time."""
    return {
        name: quota.model_copy(update={"slice_hours_week": 0.0})
        for name, quota in store.settings.quotas.items()
        if quota.shared and quota.live_slices
    }


def _held_by(store: Store, one: Waiting, totals: Quotas, uses: Iterable[Use]) -> Limit | None:
    asked = Asked(one.user, one.course, store.state.tickets[one.ticket].server, one.size)
    return quotas.held_by(quotas.limits(totals, asked, uses, store.now()), asked)


def _uses(store: Store, now: float, waiting: Iterable[Waiting]) -> list[Use]:
    """Leases, and the tickets that wait: who waits for slices holds them as good as already."""
    return [*store.uses.at(now), *(_as_use(store, one) for one in waiting)]


def _as_use(store: Store, one: Waiting) -> Use:
    server = store.state.tickets[one.ticket].server
    return Use(0, one.user, one.course, server, one.size, None, None)


def _asked(store: Store, lease: LeaseRow) -> Asked:
    size = sum(row.size for row in store.state.slices_of(lease))
    return Asked(lease.user, lease.course, lease.server, size)

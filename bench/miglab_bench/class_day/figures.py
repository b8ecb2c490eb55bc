"""What came of a day: one row for each policy, and what the row does not say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from miglab_bench.class_day.assumptions import HOUR_S
from miglab_bench.class_day.plan import PRACTICAL
from miglab_bench.class_day.student import DayStudent

KEPT_S = 120.0  # a reserved slice is there by then
USEFUL_RATIO = 1.5
BORROW_RATIO = 1.2
BORROW_P95_S = 300.0
NOT_SERVED = 0.01
COUNTS = ("never_served", "ended", "interrupted", "ended_for_need", "busy_ended_for_need")


@dataclass(frozen=True)
class PolicyFigures:
    """One policy.

    Attributes:
        useful_slice_hours: memory slices times hours in which something ran that was wanted.
        wait_p50_s: from needing a server to having one, or to giving up; half are shorter.  Under
            borrow, from each cell to its first sample.
        wait_p95_s: nineteen of twenty are shorter.
        unjust_reclaims: servers that somebody else ended while something ran on them, though
            nobody needed what they held.
        reserved_kept: of the slices that were reserved, those that their students had within two
            minutes of asking; 1 if none were.
    """

    students: int
    policy: str
    useful_slice_hours: float
    wait_p50_s: int
    wait_p95_s: int
    unjust_reclaims: int
    reserved_kept: float


@dataclass(frozen=True)
class Cost:
    """What it took.

    Attributes:
        wanted_slice_hours: what would have been useful, had nobody waited.
        held_slice_hours: slices leased, used or not.
        redone_slice_hours: what ran again because variables were lost.
        needs: how often a server was needed.
        never_served: how often the student gave up.
        ended: servers that somebody else ended.
        interrupted: those whose students were not done.
        ended_for_need: those whose guarantee was over and whose slices somebody needed.
        busy_ended_for_need: those of them on which something ran.
    """

    students: int
    policy: str
    wanted_slice_hours: float
    held_slice_hours: float
    redone_slice_hours: float
    needs: int
    never_served: int
    ended: int
    interrupted: int
    ended_for_need: int
    busy_ended_for_need: int


@dataclass(frozen=True)
class DayOutcome:
    """What came of one day."""

    row: PolicyFigures
    cost: Cost


def outcome(policy: str, students: Sequence[DayStudent], sizes: Sequence[int]) -> DayOutcome:
    """The figures of one day.

    Args:
        policy: who ended servers.
        students: after the day.
        sizes: the memory slices of each student's shape.
    """
    tallies = [one.tally for one in students]
    waits_s = sorted(wait for tally in tallies for wait in tally.waits_s)

    def slice_hours(seconds: Iterable[float]) -> float:
        return round(sum(s * size for s, size in zip(seconds, sizes, strict=True)) / HOUR_S, 1)

    figures = PolicyFigures(
        students=len(students),
        policy=policy,
        useful_slice_hours=slice_hours(tally.useful_s for tally in tallies),
        wait_p50_s=round(quantile(waits_s, 0.5)),
        wait_p95_s=round(quantile(waits_s, 0.95)),
        unjust_reclaims=sum(tally.unjust for tally in tallies),
        reserved_kept=_reserved_kept(students),
    )
    cost = Cost(
        students=len(students),
        policy=policy,
        wanted_slice_hours=slice_hours(one.plan.wanted_s for one in students),
        held_slice_hours=slice_hours(tally.held_s for tally in tallies),
        redone_slice_hours=slice_hours(tally.redone_s for tally in tallies),
        needs=len(waits_s),
        **{name: sum(getattr(tally, name) for tally in tallies) for name in COUNTS},
    )
    return DayOutcome(figures, cost)


def _reserved_kept(students: Sequence[DayStudent]) -> float:
    reserving = [one.tally for one in students if one.plan.course == PRACTICAL]
    firsts = [tally.waits_s[0] for tally in reserving if tally.waits_s]
    return round(sum(wait <= KEPT_S for wait in firsts) / len(firsts), 3) if firsts else 1.0


@dataclass(frozen=True)
class Bound:
    """What ours has to reach at one number of students.

    Attributes:
        useful_ratio: our useful slice-hours over those without any reclaim.
        p95_ratio: our 95th percentile of the wait over the culler's.
        holds: at least 1.5, less than 1, nobody cut off who was busy, and every reserved slice
            there.
    """

    students: int
    useful_ratio: float
    p95_ratio: float
    holds: bool


@dataclass(frozen=True)
class BorrowBound:
    """What borrowing has to reach at one number of students.

    Attributes:
        useful_ratio: its useful slice-hours over those of leases under our reclaimer.
        p95_s: nineteen of twenty waits, each for one measurement, are shorter.
        not_served_share: of what was to be measured, what was given up.
        holds: at least 1.2, at most five minutes, less than 1 %.
    """

    students: int
    useful_ratio: float
    p95_s: int
    not_served_share: float
    holds: bool


def bounds(done: Mapping[str, DayOutcome]) -> dict[str, Bound | BorrowBound]:
    """What was asked of miglab and of borrow on one day, as far as what each needs is there.

    Args:
        done: what came of the day under each policy.
    """
    found: dict[str, Bound | BorrowBound] = {}
    rows = {policy: one.row for policy, one in done.items()}
    if {"miglab", "culler", "none"} <= rows.keys():
        ours = rows["miglab"]
        useful = ours.useful_slice_hours / max(rows["none"].useful_slice_hours, 0.1)
        p95 = ours.wait_p95_s / max(rows["culler"].wait_p95_s, 1.0)
        is_just = not ours.unjust_reclaims and ours.reserved_kept == 1
        holds = useful >= USEFUL_RATIO and p95 < 1 and is_just
        found["miglab"] = Bound(ours.students, round(useful, 2), round(p95, 2), holds)
    if {"miglab", "borrow"} <= rows.keys():
        lent, cost = rows["borrow"], done["borrow"].cost
        useful = lent.useful_slice_hours / max(rows["miglab"].useful_slice_hours, 0.1)
        share = cost.never_served / max(cost.needs, 1)
        holds = useful >= BORROW_RATIO and lent.wait_p95_s <= BORROW_P95_S and share < NOT_SERVED
        bound = (round(useful, 2), lent.wait_p95_s, round(share, 4), holds)
        found["borrow"] = BorrowBound(lent.students, *bound)
    return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above; 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

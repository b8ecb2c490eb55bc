"""What came of a day under one policy, and whether that is what was asked of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from miglab_bench.class_day.assumptions import HOUR_S
from miglab_bench.class_day.plan import PRACTICAL
from miglab_bench.class_day.student import DayStudent

KEPT_S = 120.0  # a reserved slice is there by then
USEFUL_RATIO = 1.5
BORROW_RATIO = 1.2
BORROW_P95_S = 300.0
NOT_SERVED = 0.01
COUNTS = ("never_served", "ended", "interrupted", "ended_for_need", "busy_ended_for_need")
KEYS = ("students", "policy")
WAITS = ("wait_p50_s", "wait_p95_s")
ROW = (*KEYS, "useful_slice_hours", *WAITS, "unjust_reclaims", "reserved_kept")


@dataclass(frozen=True)
class DayFigures:
    """One policy's day.

    Attributes:
        useful_slice_hours: memory slices times hours in which something ran that was wanted.
        wait_p50_s: from needing a server to having one, or to giving up; half are shorter.  Under
            borrow, from each cell to its first sample.
        wait_p95_s: nineteen of twenty are shorter.
        unjust_reclaims: servers that somebody else ended while something ran on them, though
            nobody needed what they held.
        reserved_kept: of the slices that were reserved, those that their students had within two
            minutes of asking; 1 if none were.
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
    useful_slice_hours: float
    wait_p50_s: int
    wait_p95_s: int
    unjust_reclaims: int
    reserved_kept: float
    wanted_slice_hours: float = 0.0
    held_slice_hours: float = 0.0
    redone_slice_hours: float = 0.0
    needs: int = 0
    never_served: int = 0
    ended: int = 0
    interrupted: int = 0
    ended_for_need: int = 0
    busy_ended_for_need: int = 0

    @property
    def row(self) -> dict[str, Any]:
        """What came of it."""
        return {name: getattr(self, name) for name in ROW}

    @property
    def cost(self) -> dict[str, Any]:
        """What it took."""
        figures = asdict(self).items()
        return {name: value for name, value in figures if name in KEYS or name not in ROW}


def figures(policy: str, students: Sequence[DayStudent], sizes: Sequence[int]) -> DayFigures:
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

    return DayFigures(
        students=len(students),
        policy=policy,
        useful_slice_hours=slice_hours(tally.useful_s for tally in tallies),
        wait_p50_s=round(quantile(waits_s, 0.5)),
        wait_p95_s=round(quantile(waits_s, 0.95)),
        unjust_reclaims=sum(tally.unjust for tally in tallies),
        reserved_kept=_reserved_kept(students),
        wanted_slice_hours=slice_hours(one.plan.wanted_s for one in students),
        held_slice_hours=slice_hours(tally.held_s for tally in tallies),
        redone_slice_hours=slice_hours(tally.redone_s for tally in tallies),
        needs=len(waits_s),
        **{name: sum(getattr(tally, name) for tally in tallies) for name in COUNTS},
    )


def _reserved_kept(students: Sequence[DayStudent]) -> float:
    reserving = [one.tally for one in students if one.plan.course == PRACTICAL]
    firsts = [tally.waits_s[0] for tally in reserving if tally.waits_s]
    return round(sum(wait <= KEPT_S for wait in firsts) / len(firsts), 3) if firsts else 1.0


def bounds(done: Mapping[str, DayFigures]) -> list[dict[str, Any]]:
    """What was asked of miglab and of borrow on one day, as far as what each needs is there.

    Of miglab: 1.5 times the useful slice-hours of no reclaim, shorter waits (p95) than the
    culler's, nobody cut off who was busy, every reserved slice there.  Of borrow: 1.2 times the
    useful slice-hours of leases, p95 of at most five minutes, less than 1 % given up.

    Args:
        done: what came of the day under each policy.
    """
    found: list[dict[str, Any]] = []
    ours, lent, culler, none = (done.get(name) for name in ("miglab", "borrow", "culler", "none"))
    if ours and culler and none:
        useful = ours.useful_slice_hours / max(none.useful_slice_hours, 0.1)
        p95 = ours.wait_p95_s / max(culler.wait_p95_s, 1.0)
        is_just = not ours.unjust_reclaims and ours.reserved_kept == 1
        holds = useful >= USEFUL_RATIO and p95 < 1 and is_just
        said = {"policy": "miglab", "students": ours.students, "useful_ratio": round(useful, 2)}
        found.append({**said, "p95_ratio": round(p95, 2), "holds": holds})
    if ours and lent:
        useful = lent.useful_slice_hours / max(ours.useful_slice_hours, 0.1)
        share = lent.never_served / max(lent.needs, 1)
        holds = useful >= BORROW_RATIO and lent.wait_p95_s <= BORROW_P95_S and share < NOT_SERVED
        said = {"policy": "borrow", "students": lent.students, "useful_ratio": round(useful, 2)}
        waits = {"p95_s": lent.wait_p95_s, "not_served_share": round(share, 4)}
        found.append({**said, **waits, "holds": holds})
    return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above; 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

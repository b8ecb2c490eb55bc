"""The figures of a storm: one row for each class size and spawner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median

from miglab_bench.measures.ratio import p95
from miglab_bench.storm.waves import Wave


@dataclass(frozen=True)
class StormRow:
    """What the students of one spawner met; of several rounds the median of each figure.

    Attributes:
        failed: how many got no server, or could not end it; of several rounds the sum.
        start_p50_s: from the spawn form to the server's first answer, median.
        start_p95_s: the same, 95th percentile.
        hub_p95_s: one request to the hub that does not wait by design, 95th percentile.
        pool_p95_s: one request to the pool that does not wait, 95th percentile.
        stop_s: from asking for the server's end until it has ended, 95th percentile.
        hub_cpu_s: processor seconds of the hub from the first student's coming to the last's end.
        pool_cpu_s: the same of the pool.
        proxy_cpu_s: the same of the proxy.
    """

    students: int
    spawner: str
    failed: int
    start_p50_s: float
    start_p95_s: float
    hub_p95_s: float
    pool_p95_s: float
    stop_s: float
    hub_cpu_s: float
    pool_cpu_s: float
    proxy_cpu_s: float


def row_of(spawner: str, wave: Wave, cpu_s: Mapping[str, float]) -> StormRow:
    """The figures of one class."""
    starts = [each.start_s for each in wave.visits if each.start_s is not None]
    stops = [each.stop_s for each in wave.visits if each.stop_s is not None]
    hub = [seconds for each in wave.visits for _, seconds in each.requests]
    return StormRow(
        students=len(wave.visits),
        spawner=spawner,
        failed=sum(bool(each.why_not) for each in wave.visits),
        start_p50_s=round(median(starts), 3) if starts else 0.0,
        start_p95_s=round(p95(starts), 3),
        hub_p95_s=round(p95(hub), 3),
        pool_p95_s=round(p95(wave.pool_s), 4),
        stop_s=round(p95(stops), 3),
        hub_cpu_s=round(cpu_s["hub"], 2),
        pool_cpu_s=round(cpu_s["pool"], 2),
        proxy_cpu_s=round(cpu_s["proxy"], 2),
    )


def median_of(rounds: Sequence[StormRow]) -> StormRow:
    """One row for several rounds of the same class and spawner."""
    first = rounds[0]
    kept = {"students": first.students, "spawner": first.spawner}
    middle = {
        field.name: round(median(getattr(each, field.name) for each in rounds), 4)
        for field in fields(StormRow)
        if field.name not in kept
    }
    return StormRow(**{**middle, **kept, "failed": sum(each.failed for each in rounds)})


def why_failed(wave: Wave) -> list[str]:
    """What students were told who got no server, each reason once."""
    return sorted({each.why_not for each in wave.visits if each.why_not})

"""`./lab bench storm`: a class that comes within a minute, through the whole lab, and leaves.

Proxy, hub and pool as `./lab up` starts them, with simulated GPUs without delays and one slice for
each student; only the students' servers are the smallest there are, so that the lab is measured and
not JupyterLab.  A class whose servers JupyterHub's own spawner starts comes to the same hub, before
or after.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Annotated, NoReturn

import typer

from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.tables import say, table_of
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_bench.measures.ratio import p95
from miglab_bench.storm.visitors import VisitTimes, storm

OURS, PLAIN = "miglab", "plain"  # the beginnings of students' names
CLASSES = (50, 200, 440)
HUB_CONFIG = """
from miglab_bench.storm.plain import use_both_spawners

use_both_spawners(c)
"""
SLICES_PER_GPU = 7
FOR_THE_PROBE = 2  # GPUs


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


def bench_storm(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    students: Annotated[
        list[int] | None,
        typer.Option(min=2, help="How many students come; may be given more than once."),
    ] = None,
    within_s: Annotated[
        float, typer.Option(min=1, help="Seconds in which they come, and in which they leave.")
    ] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each spawner is tried.")] = 1,
) -> None:
    """Storm: a class comes within a minute and leaves, beside JupyterHub's own spawner."""
    reasons: set[str] = set()
    found = [
        asdict(row)
        for size in students or CLASSES
        for row in measure(size, within_s, rounds, reasons)
    ]
    how = (
        f"students come evenly within {within_s:.0f} s, one slice each, and leave within as long; "
        f"{rounds} round{'s' if rounds > 1 else ''} of both spawners on one hub, who goes first "
        f"changes each round; servers that only answer; requests that do not wait by design; "
        f"students and lab on the same {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at "
        f"the end"
    )
    said = {"rows": found, "reasons": sorted(reasons), "how": how}
    say(said, table_of(found), *sorted(reasons), how, as_json=as_json)


def measure(students: int, within_s: float, rounds: int, reasons: set[str]) -> list[StormRow]:
    """Let classes of one size come to one hub; their names decide the spawner.

    Args:
        students: how many come at a time.
        within_s: as fast.
        rounds: how often each spawner is tried.
        reasons: gets what students were told who got no server.
    """
    rows: dict[str, list[StormRow]] = {OURS: [], PLAIN: []}
    gpus = students // SLICES_PER_GPU + FOR_THE_PROBE
    with temporary_lab(
        docker=False, shapes=(SHAPE,), patience="", hub_config=HUB_CONFIG, gpus=gpus
    ) as lab:
        signal.signal(signal.SIGTERM, lambda *_: _end_now(lab))
        for number in range(rounds):
            for spawner in (PLAIN, OURS) if number % 2 == 0 else (OURS, PLAIN):
                before = lab.processor_times()
                names = [f"{spawner}-{number}-{each}" for each in range(students)]
                visits, pool_s = storm(lab.settings, names, within_s)
                spent_s = {part: at - before[part] for part, at in lab.processor_times().items()}
                rows[spawner].append(row_of(spawner, visits, pool_s, spent_s))
                reasons |= {each.why_not for each in visits if each.why_not}
    return [median_of(each) for each in rows.values()]


def _end_now(lab: TemporaryLab) -> NoReturn:
    """Leave no process behind; students' threads may sleep for a minute, so they are not joined."""
    lab.process.terminate()
    lab.process.wait()
    os._exit(128 + signal.SIGTERM)


def row_of(
    spawner: str,
    visits: Sequence[VisitTimes],
    pool_s: Sequence[float],
    spent_s: Mapping[str, float],
) -> StormRow:
    """The figures of one class; meanwhile, the processor seconds of hub, pool and proxy."""
    starts = [each.start_s for each in visits if each.start_s is not None]
    stops = [each.stop_s for each in visits if each.stop_s is not None]
    hub = [seconds for each in visits for _, seconds in each.requests]
    return StormRow(
        students=len(visits),
        spawner=spawner,
        failed=sum(bool(each.why_not) for each in visits),
        start_p50_s=round(median(starts), 3) if starts else 0.0,
        start_p95_s=round(p95(starts), 3),
        hub_p95_s=round(p95(hub), 3),
        pool_p95_s=round(p95(pool_s), 4),
        stop_s=round(p95(stops), 3),
        **{f"{part}_cpu_s": round(seconds, 2) for part, seconds in spent_s.items()},
    )


def median_of(rounds: Sequence[StormRow]) -> StormRow:
    """One row for several rounds of the same class and spawner."""
    first = rounds[0]
    middle = {
        name: round(median(getattr(each, name) for each in rounds), 4)
        for name in asdict(first).keys() - {"students", "spawner"}
    }
    return replace(first, **{**middle, "failed": sum(each.failed for each in rounds)})

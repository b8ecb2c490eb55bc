"""`./lab bench slurm-queue`: whether positions and estimates on Slurm come true.

A real slurmctld of two nodes and eight slices.  A class asks at once, then others come one by one;
everybody stays for a random time, minutes shrunk to seconds.  Each position and estimate that the
waiting page would show is kept, and compared with when Slurm really started the job.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated
from unittest import mock

import typer

from miglab_slurm.lab import SlurmSite
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.reader import SlurmReader
from miglab_slurm.records import Tag
from miglab_slurm.submissions import Submissions
from miglab_slurm.views import ticket_of
from miglab_slurm.wait_estimate import LATE_S
from miglab_slurm_bench.cluster import SlurmCluster, require_slurm

LAB, SHAPE, GRES = "bench", "1g.5gb", {"1g.5gb": 4}
SLICES = 8
CLASS = 30
STAY_S, SPREAD, LONGEST_S = 12.0, 0.7, 50.0
LOAD = 1.0
LATE_HERE_S = 4.0
"""Slurm's own lateness on this cluster, whose backfill comes by every 2 s; a site's is `LATE_S`."""
BOUND_PCT = 80.0
EARLY_S = 1.0
"""Slurm tells whole seconds."""


@dataclass(frozen=True)
class WaitView:
    """What one waiting student was shown at one moment.

    Attributes:
        at: seconds since the epoch.
        queue: the jobs that waited then, in the order shown.
        from_stays: whether the estimate is from observed stays, not from time limits.
    """

    job: int
    at: float
    position: int
    queue: tuple[int, ...]
    low_s: float
    high_s: float
    from_stays: bool


@dataclass
class QueueRun:
    """What was shown, and when each job really started."""

    views: list[WaitView] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    readings: int = 0
    took_s: float = 0.0

    def look(self, picture: ClusterPicture, reader: SlurmReader) -> None:
        """Keep what the pages would show of this picture."""
        shape = picture.site.shapes[SHAPE]
        queue = tuple(job.id for job in picture.queue(shape))
        for job in picture.jobs.values():
            if job.has_ended:
                self.over.add(job.id)
            if job.started_at is not None and not job.is_pending:
                self.started.setdefault(job.id, job.started_at)
            ticket = ticket_of(picture, job) if job.tag else None
            if ticket is None or ticket.estimate is None or ticket.position is None:
                continue
            wait = ticket.estimate
            high_s = wait.high_s - LATE_S + LATE_HERE_S
            enough = "stays" in wait.basis
            self.views.append(
                WaitView(job.id, picture.at, ticket.position, queue, wait.low_s, high_s, enough)
            )


def comes_true(view: WaitView, started: float) -> bool:
    """Whether the real start lies in the range.  Pure."""
    return view.low_s - EARLY_S <= started - view.at <= view.high_s


def is_position_right(view: WaitView, started: dict[int, float]) -> bool:
    """Whether as many of those who waited were served before, give or take the same second."""
    started_at, starts_before = (
        started[view.job],
        [started[job] for job in view.queue if job in started],
    )
    earlier = sum(start < started_at for start in starts_before)
    tied = sum(start == started_at for start in starts_before)
    return earlier < view.position <= earlier + tied


def bench_slurm_queue(
    students: Annotated[int, typer.Option(min=CLASS, help="How many students in all.")] = 150,
    seed: Annotated[int, typer.Option(help="Seed of their arrivals and stays.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Positions and estimates on Slurm against the real starts; needs root and Slurm."""
    require_slurm("slurm-queue")
    with SlurmCluster(gres=GRES) as cluster, mock.patch.dict(os.environ, cluster.environment):
        run = asyncio.run(_run(cluster, students, seed))
    results = figures(run, students)
    print(json.dumps(results) if as_json else _sentences(results))
    if results["in_range_pct"] < BOUND_PCT:
        raise typer.Exit(1)


def figures(run: QueueRun, students: int) -> dict[str, float]:
    """The benchmark's figures, of estimates that are from observed stays.  Pure."""
    served = [view for view in run.views if view.job in run.started]
    first = list({view.job: view for view in reversed(served)}.values())
    return {
        "students": students,
        "waited": len(first),
        "in_range_pct": _share([comes_true(o, run.started[o.job]) for o in first if o.from_stays]),
        "in_range_always_pct": _share(
            [comes_true(o, run.started[o.job]) for o in served if o.from_stays]
        ),
        "in_range_by_limits_pct": _share(
            [comes_true(o, run.started[o.job]) for o in first if not o.from_stays]
        ),
        "positions_right_pct": _share([is_position_right(view, run.started) for view in served]),
        "wait_median_s": round(median(run.started[o.job] - o.at for o in first), 1),
        "range_median_s": round(median(o.high_s - o.low_s for o in first if o.from_stays), 1),
        "shown": len(served),
        "queries_per_s": round(2 * run.readings / run.took_s, 2),
        "load": round(os.getloadavg()[0], 1),
    }


async def _run(cluster: SlurmCluster, students: int, seed: int) -> QueueRun:
    site = SlurmSite.model_validate(
        {
            "partition": "lab",
            "run_as": "",
            "every_s": 1.0,
            "attend_grace_s": 3600.0,
            "shapes": {SHAPE: {"gres": "gpu:1g.5gb:1", "time_limit_min": 1}},
        }
    )
    run, reader = QueueRun(), SlurmReader(Submissions(cluster.folder / "jobs.sqlite", LAB), site)
    coming = asyncio.create_task(_come(cluster, reader, students, seed))
    began_at = time.monotonic()
    picture = await reader.picture()
    while not coming.done() or len(run.over) < students:
        run.look(picture, reader)
        picture = await reader.next_picture(picture, 10.0)
    await coming
    run.readings, run.took_s = reader.readings, time.monotonic() - began_at
    await reader.close()
    return run


async def _come(cluster: SlurmCluster, reader: SlurmReader, students: int, seed: int) -> None:
    """A class at once, then one by one, as many as the slices can just serve."""
    rng = random.Random(seed)
    stays = [min(LONGEST_S, STAY_S * rng.lognormvariate(0, SPREAD)) for _ in range(students)]
    gap_s = sum(stays) / students / SLICES / LOAD
    shape = reader.site.shapes[SHAPE]
    for number, stay_s in enumerate(stays):
        if number >= CLASS:
            await asyncio.sleep(rng.expovariate(1 / gap_s))
        tag = Tag(LAB, f"student-{number}", "", "everyone", SHAPE, str(number))
        await asyncio.to_thread(
            cluster.submit, f"exec sleep {stay_s:.1f}", f"--gres={shape.gres}", "--time=1",
            f"--job-name={reader.submissions.intend(tag, 'root', time.time()).name}",
        )  # fmt: skip


def _share(outcomes: Sequence[bool]) -> float:
    return round(100 * sum(outcomes) / len(outcomes), 1) if outcomes else 100.0


def _sentences(results: dict[str, float]) -> str:
    return "\n".join(
        (
            f"{results['waited']} of {results['students']} students waited, "
            f"{results['wait_median_s']} s in the median.",
            f"The start lay in the first range shown for {results['in_range_pct']} % (median width "
            f"{results['range_median_s']} s), in all {results['shown']} for "
            f"{results['in_range_always_pct']} %; in ranges from time limits for "
            f"{results['in_range_by_limits_pct']} %.",
            f"{results['positions_right_pct']} % of the positions were the real order.",
            f"Slurm was asked {results['queries_per_s']} times a second.",
        )
    )

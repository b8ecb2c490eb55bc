"""`./lab bench class`: a day of a class under four policies, with the same students and GPUs."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, product
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from miglab_bench.class_day.assumptions import Day, day_with
from miglab_bench.class_day.figures import bounds
from miglab_bench.class_day.run import DayCase, DayPolicy, run_all
from miglab_bench.harness.tables import say, table_of

SIZES = (30, 120, 400)


def bench_class(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    students: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many students; may be repeated. [30, 120, 400]"),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="The seed of a day's plan; may be repeated. [1]")
    ] = None,
    policy: Annotated[
        list[DayPolicy] | None, typer.Option(help="Only this one; may be repeated.")
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="One assumption, such as stop_share=0.5.")
    ] = None,
) -> None:
    """Class: a simulated day under miglab, with borrowed slices, a culler, and no reclaim."""
    day = _day(values or ())
    cases = [
        DayCase(day, size, each, number)
        for number, size, each in product(seed or (1,), students or SIZES, policy or DayPolicy)
    ]
    jobs = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    said = _figures(cases, jobs)
    how = _how(cases, jobs, time.perf_counter() - began)
    held = {name: [one for one in said["bounds"] if one["policy"] == name] for name in DayPolicy}
    tables = {
        "the day": said["rows"],
        "what it took": said["costs"],
        "bounds": held[DayPolicy.MIGLAB],
        "bounds of borrow": held[DayPolicy.BORROW],
    }
    shown = [table_of(records, title) for title, records in tables.items()]
    say({**said, "assumptions": asdict(day), "how": how}, *shown, how, as_json=as_json)


def _figures(cases: Sequence[DayCase], jobs: int) -> dict[str, list[dict[str, Any]]]:
    """Rows, costs and bounds; the cases of one day stand side by side."""
    done = list(zip(cases, run_all(cases, jobs), strict=True))
    days = groupby(done, key=lambda one: (one[0].seed, one[0].students))
    return {
        "rows": [one.row for _, one in done],
        "costs": [{"seed": case.seed, **one.cost} for case, one in done],
        "bounds": [
            {"seed": seed, **bound}
            for (seed, _), day in days
            for bound in bounds({case.policy: one for case, one in day})
        ],
    }


def _day(values: Sequence[str]) -> Day:
    try:
        return day_with("\n".join(values))
    except ValidationError as error:
        said = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise typer.BadParameter("; ".join(said)) from error
    except ValueError as error:
        raise typer.BadParameter(f"{error}: write name=value, text in quotes") from error


def _how(cases: Sequence[DayCase], jobs: int, took_s: float) -> str:
    gpus = ", ".join(dict.fromkeys(f"{case.gpus} for {case.students}" for case in cases))
    day, seeds = cases[0].day, dict.fromkeys(str(case.seed) for case in cases)
    cpu_s = sum(os.times()[:4])  # ours and that of the processes that are over
    is_usual = "as documented" if day == Day() else "changed"
    return (
        f"how: a day each, seed {', '.join(seeds)}, assumptions {is_usual}, steps of "
        f"{day.step_s:.0f} s; the pool's own queue and ledger over simulated {day.model} "
        f"({gpus} students); "
        f"the reclaimer as set by default; Python {sys.version.split()[0]}; {jobs} processes, "
        f"{took_s:.0f} s, {cpu_s:.0f} s of CPU"
    )

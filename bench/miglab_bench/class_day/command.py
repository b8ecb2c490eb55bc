"""`./lab bench class`: a day of a class under four policies, with the same students and GPUs."""

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from miglab_bench.class_day.assumptions import BadAssumption, Day, changed, read_setting
from miglab_bench.class_day.figures import DayOutcome, bounds
from miglab_bench.class_day.run import POLICIES, DayCase, run_all
from miglab_bench.harness.tables import table_of
from miglab_pool.gpu.simulated.models import models

SIZES = (30, 120, 400)
USAGE = 2
Records = Sequence[Mapping[str, Any]]


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
        list[str] | None, typer.Option(help=f"Only one of {', '.join(POLICIES)}; may be repeated.")
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="One assumption, such as stop_share=0.5.")
    ] = None,
) -> None:
    """Class: a simulated day under miglab, with borrowed slices, a culler, and no reclaim."""
    try:
        if unknown := sorted(set(policy or ()) - set(POLICIES)):
            there = ", ".join(POLICIES)
            raise BadAssumption(f"policy: no {', '.join(unknown)}; there are {there}")
        day = _day(values or ())
    except BadAssumption as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from error
    jobs = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    cases = [
        DayCase(day, number, each, one)
        for one in seed or (1,)
        for number in students or SIZES
        for each in policy or POLICIES
    ]
    outcomes = run_all(cases, jobs)
    rows = [asdict(one.row) for one in outcomes]
    days: dict[tuple[int, int], dict[str, DayOutcome]] = {}  # by seed and students
    for case, one in zip(cases, outcomes, strict=True):
        days.setdefault((case.seed, case.students), {})[case.policy] = one
    costs = [
        {"seed": seed, **asdict(one.cost)}
        for (seed, _), done in days.items()
        for one in done.values()
    ]
    held = [
        {"seed": seed, "policy": name, **asdict(bound)}
        for (seed, _), done in days.items()
        for name, bound in bounds(done).items()
    ]
    how = _how(cases, jobs, time.perf_counter() - began)
    if as_json:
        said = {"rows": rows, "costs": costs, "bounds": held, "assumptions": asdict(day)}
        typer.echo(json.dumps({**said, "how": how}))
        return
    _show(rows, costs, held, how)


def _show(rows: Records, costs: Records, held: Records, how: str) -> None:
    """Tables for people."""
    console = Console()
    ours = [one for one in held if one["policy"] == "miglab"]
    lent = [one for one in held if one["policy"] == "borrow"]
    tables = {"the day": rows, "what it took": costs, "bounds": ours, "bounds of borrow": lent}
    for title, records in tables.items():
        console.print(table_of(records, title))
    console.print(how)


def _day(values: Iterable[str]) -> Day:
    """The assumptions, those of the command line instead of the usual ones."""
    day = Day()
    for text in values:
        day = changed(day, read_setting(text))
    known = models()
    if day.model not in known:
        raise BadAssumption(f"model: no {day.model}; there are {', '.join(known)}")
    missing = set(day.profiles) - known[day.model].geometry.by_name.keys()
    if missing:
        raise BadAssumption(f"profiles: {day.model} has no {', '.join(sorted(missing))}")
    return day


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

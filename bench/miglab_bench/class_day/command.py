"""`./lab bench class`: a day of a class under four policies, with the same students and GPUs."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.class_day.assumptions import BadAssumption, Day, changed, read_setting
from miglab_bench.class_day.figures import borrow_bounds, bounds
from miglab_bench.class_day.run import POLICIES, DayCase, DayOutcome, run_all
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
        _check_policies(policy or ())
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
    costs = [
        {"seed": case.seed, **asdict(one.cost)} for case, one in zip(cases, outcomes, strict=True)
    ]
    held = _bounds(cases, outcomes)
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
        console.print(_table(title, records))
    console.print(how)


def _check_policies(policies: Iterable[str]) -> None:
    if unknown := sorted(set(policies) - set(POLICIES)):
        raise BadAssumption(f"policy: no {', '.join(unknown)}; there are {', '.join(POLICIES)}")


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
    gpus = ", ".join(f"{case.gpus} for {case.students}" for case in dict.fromkeys(_sizes(cases)))
    day, seeds = cases[0].day, dict.fromkeys(str(case.seed) for case in cases)
    cpu_s = sum(os.times()[:4])  # ours and that of the processes that are over
    is_usual = "as documented" if day == Day() else "changed"
    return (
        f"how: a day each, seed {', '.join(seeds)}, assumptions {is_usual}, steps of "
        f"{day.step_s:.0f} s; the pool's own queue and ledger over {day.model} in memory "
        f"({gpus} students); "
        f"the reclaimer as set by default; Python {sys.version.split()[0]}; {jobs} processes, "
        f"{took_s:.0f} s, {cpu_s:.0f} s of CPU"
    )


def _sizes(cases: Sequence[DayCase]) -> list[DayCase]:
    return [dataclasses.replace(case, policy="", seed=0) for case in cases]


def _bounds(cases: Sequence[DayCase], outcomes: Sequence[DayOutcome]) -> list[dict[str, Any]]:
    """What was asked of miglab and of borrow, for each day of which all that it needs is there."""
    found: list[dict[str, Any]] = []
    for seed in dict.fromkeys(case.seed for case in cases):
        done = [one for case, one in zip(cases, outcomes, strict=True) if case.seed == seed]
        held = bounds([one.row for one in done])
        lent = borrow_bounds([one.row for one in done], [one.cost for one in done])
        found += [{"seed": seed, "policy": "miglab", **asdict(bound)} for bound in held]
        found += [{"seed": seed, "policy": "borrow", **asdict(bound)} for bound in lent]
    return found


def _table(title: str, records: Records) -> Table:
    table = Table(title=title)
    for name in records[0] if records else ():
        table.add_column(name.replace("_", " "), justify="right")
    for record in records:
        table.add_row(*(str(value) for value in record.values()))
    return table

"""`./lab bench class`: a day of a class under three policies, with the same students and GPUs."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.class_day.assumptions import BadAssumption, Day, changed, read_file, read_setting
from miglab_bench.class_day.figures import bounds
from miglab_bench.class_day.run import POLICIES, DayCase, run_all
from miglab_pool.gpu.simulated.models import models

SIZES = (30, 120, 400)
USAGE = 2


def bench_class(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    students: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many students; may be repeated. [30, 120, 400]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the day's plan.")] = 1,
    assume: Annotated[
        Path | None, typer.Option(help="TOML or JSON file with other assumptions.")
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="One assumption, such as stop_share=0.5.")
    ] = None,
) -> None:
    """Class: a simulated day under miglab, an idle culler, and no reclaim."""
    try:
        day = _day(assume, values or ())
    except BadAssumption as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from error
    jobs = len(os.sched_getaffinity(0))
    began = time.perf_counter()
    sizes = students or SIZES
    cases = [DayCase(day, number, policy, seed) for number in sizes for policy in POLICIES]
    outcomes = run_all(cases, jobs)
    rows = [asdict(one.row) for one in outcomes]
    costs = [asdict(one.cost) for one in outcomes]
    held = [asdict(one) for one in bounds([one.row for one in outcomes])]
    how = _how(cases, jobs, time.perf_counter() - began)
    if as_json:
        said = {"rows": rows, "costs": costs, "bounds": held, "assumptions": asdict(day)}
        typer.echo(json.dumps({**said, "how": how}))
        return
    console = Console()
    for title, records in (("the day", rows), ("what it took", costs), ("bounds", held)):
        console.print(_table(title, records))
    console.print(how)


def _day(assume: Path | None, values: Iterable[str]) -> Day:
    """The assumptions, those of the command line last."""
    day = Day()
    if assume is not None:
        day = changed(day, read_file(assume))
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
    day, seed = cases[0].day, cases[0].seed
    cpu_s = sum(os.times()[:4])  # ours and that of the processes that are over
    is_usual = "as documented" if day == Day() else "changed"
    return (
        f"how: one day, seed {seed}, assumptions {is_usual}, steps of {day.step_s:.0f} s; the "
        f"pool's own queue and ledger over simulated {day.model} without delays ({gpus} students); "
        f"the reclaimer as set by default; Python {sys.version.split()[0]}; {jobs} processes, "
        f"{took_s:.0f} s, {cpu_s:.0f} s of CPU"
    )


def _sizes(cases: Sequence[DayCase]) -> list[DayCase]:
    return [dataclasses.replace(case, policy="") for case in cases]


def _table(title: str, records: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for name in records[0] if records else ():
        table.add_column(name.replace("_", " "), justify="right")
    for record in records:
        table.add_row(*(str(value) for value in record.values()))
    return table

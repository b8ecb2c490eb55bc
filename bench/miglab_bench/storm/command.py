"""`./lab bench storm`: a class that comes within a minute, through the whole lab, and leaves.

Proxy, hub and pool as `./lab up` starts them, with simulated GPUs without delays and one slice for
each student; only the students' servers are the smallest there are, so that the lab is measured and
not JupyterLab.  A class whose servers JupyterHub's own spawner starts comes to the same hub, before
or after.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from miglab_bench.storm.figures import StormRow, median_of, row_of, why_failed
from miglab_bench.storm.lab import processor_times, running_lab, temporary_settings
from miglab_bench.storm.waves import storm
from miglab_hub.launch.process_group import Siblings
from miglab_hub.settings.lab_toml import Settings

OURS, PLAIN = "miglab", "plain"
CLASSES = (50, 200, 440)


@dataclass(frozen=True)
class Measured:
    """What a storm gives.

    Attributes:
        rows: two for each size of class.
        reasons: what students were told who got no server, each reason once.
    """

    rows: tuple[StormRow, ...]
    reasons: tuple[str, ...]


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
    measured = together(measure(each, within_s, rounds) for each in students or CLASSES)
    how = (
        f"students come evenly within {within_s:.0f} s, one slice each, and leave within as long; "
        f"{rounds} round{'s' if rounds > 1 else ''} of both spawners on one hub, who goes first "
        f"changes each round; servers that only answer; requests that do not wait by design; "
        f"students and lab on the same {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at "
        f"the end"
    )
    if as_json:
        print(json.dumps({**asdict(measured), "how": how}))
        return
    Console().print(_table(measured.rows), *measured.reasons, how, sep="\n")


def measure(students: int, within_s: float, rounds: int) -> Measured:
    """Let classes of one size come to one hub."""
    rows: dict[str, list[StormRow]] = {OURS: [], PLAIN: []}
    reasons: list[str] = []
    with temporary_settings(students) as settings, running_lab(settings) as siblings:
        for number in range(rounds):
            for spawner in (PLAIN, OURS) if number % 2 == 0 else (OURS, PLAIN):
                names = [f"{spawner}-{number}-{each}" for each in range(students)]
                row, told = measure_wave(settings, siblings, spawner, names, within_s)
                rows[spawner].append(row)
                reasons += told
    return Measured(tuple(median_of(each) for each in rows.values()), tuple(reasons))


def measure_wave(
    settings: Settings, siblings: Siblings, spawner: str, names: Sequence[str], within_s: float
) -> tuple[StormRow, list[str]]:
    """Let one class come, whose names decide the spawner.

    Returns:
        The figures, and what those were told who got no server.
    """
    before = processor_times(siblings)
    wave = storm(settings, names, within_s)
    after = processor_times(siblings)
    cpu_s = {name: after[name] - before[name] for name in before}
    return row_of(spawner, wave, cpu_s), why_failed(wave)


def together(all_: Iterable[Measured]) -> Measured:
    """One record for classes of several sizes."""
    found = list(all_)
    reasons = {each for one in found for each in one.reasons}
    return Measured(tuple(row for one in found for row in one.rows), tuple(sorted(reasons)))


def _table(rows: Sequence[StormRow]) -> Table:
    table = Table(title="a class comes and leaves", box=box.SIMPLE, padding=0)
    for field in fields(StormRow):
        width = len(OURS) if field.name == "spawner" else 4
        table.add_column(field.name.replace("_", " "), justify="right", min_width=width)
    for row in rows:
        table.add_row(*(str(value) for value in asdict(row).values()))
    return table

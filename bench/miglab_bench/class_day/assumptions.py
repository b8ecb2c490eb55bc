"""What the simulated day is made of.  Values only; docs/explanation/class-day.md tells of the day.

They were set before the first run, and are the same for every policy.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miglab_bench.measures.placement import MIXES, PROFILES

HOUR_S = 3600.0


class BadAssumption(ValueError):
    """An assumption cannot be read; the message names it."""


@dataclass(frozen=True)
class Spread:
    """A log-normal duration, cut at both ends.

    Attributes:
        median_s: as many are shorter as are longer.
        sigma: of its logarithm; 0 for always the same.
        least_s: none is shorter.
        most_s: none is longer.
    """

    median_s: float
    sigma: float
    least_s: float
    most_s: float


@dataclass(frozen=True)
class Visit:
    """Why students come, and when.

    Attributes:
        share: of all students, those who come.
        from_h: nobody comes before; hours since midnight.
        peak_h: most come then (a triangle).
        to_h: nobody comes later.
        until_h: nobody works longer at the keyboard.
        work: how long one works, breaks included.
        run_share: of those who come, those who start a long run at the end and leave it alone.
    """

    share: float
    from_h: float
    peak_h: float
    to_h: float
    until_h: float
    work: Spread
    run_share: float


@dataclass(frozen=True)
class Day:
    """The assumptions.

    Attributes:
        model: the GPUs.
        students_per_gpu: how scarce they are; rounded up to whole GPUs.
        profiles: what an exercise needs, one slice.
        mix: the share of the students who have that exercise today.
        begins_h: hours since midnight.
        ends_h: when the figures are drawn.
        lecture: all at once.
        afternoon: one by one.
        evening: before the deadline.
        practical: a class of its own, whose slices are reserved from its first minute on.
        reserved_share: how many slices are reserved for it, of so many students; as many come.
        lunch_share: of those in the lecture, those who go on after lunch.
        lunch: how long they are away.
        lunch_work: how long they go on.
        busy: how long a cell runs.
        think: from a cell's end to the next one.
        pause_share: how often a pause follows a cell instead.
        pause: how long it is.
        pause_open_share: pauses in which the page stays connected; else the laptop is shut.
        answer_share: warnings in such a pause that are seen and answered "I am still here".
        run: how long a long run takes.
        silent_share: long runs that print nothing.
        stop_share: who stops the server at the end; all others forget it.
        tab_share: of those who forget it, who leaves the page open.
        tab: until that page's computer falls asleep.
        patience: how long one waits in the queue before trying again later.
        retry: after which time.
        redo_share: of the work so far that must run again on a new server.
        redo_most_s: no more than that.
        cull_timeout_s: jupyterhub-idle-culler's ``--timeout``.
        cull_every_s: its ``--cull-every``; without one it is half the timeout.
        start_s: from a lease to a server that answers.
        runner_s: under borrow, from a lease to the first sample in a new runner.
        again_s: the same in a runner that lingers.
        rebuild_s: what each borrowed cell computes anew first, since nothing stays from the last.
        borrow_s: the longest borrow; a cell that takes longer is run on a leased slice.
        linger_s: how long borrowed slices stay for the next cell.
        step_s: how finely time passes.
        look_s: how often the reclaimer looks.
        report_age_s: how old a server's report is when it does.
    """

    model: str = "A100-40GB"
    students_per_gpu: float = 15.0
    profiles: tuple[str, ...] = PROFILES
    mix: tuple[float, ...] = MIXES["teach"]
    begins_h: float = 8.0
    ends_h: float = 24.0
    lecture: Visit = Visit(0.8, 9.95, 10.0, 10.25, 12.0, Spread(7200, 0, 7200, 7200), run_share=0.0)
    afternoon: Visit = Visit(
        0.5, 13.0, 15.0, 17.5, 19.0, Spread(3600, 0.5, 900, 10800), run_share=0.1
    )
    evening: Visit = Visit(
        0.7, 18.0, 20.5, 23.0, 24.0, Spread(4500, 0.5, 900, 14400), run_share=0.2
    )
    practical: Visit = Visit(
        1.0, 11.0, 11.02, 11.1, 13.0, Spread(5400, 0, 5400, 5400), run_share=0.0
    )
    reserved_share: float = 0.1
    lunch_share: float = 0.4
    lunch: Spread = Spread(3600, 0.25, 1800, 5400)
    lunch_work: Spread = Spread(2400, 0.5, 600, 5400)
    busy: Spread = Spread(60, 1.2, 1, 1800)
    think: Spread = Spread(120, 0.8, 5, 900)
    pause_share: float = 0.05
    pause: Spread = Spread(720, 0.6, 180, 3600)
    pause_open_share: float = 0.7
    answer_share: float = 0.8
    run: Spread = Spread(3600, 0.6, 900, 14400)
    silent_share: float = 0.25
    stop_share: float = 0.2
    tab_share: float = 0.375
    tab: Spread = Spread(5400, 0.8, 600, 28800)
    patience: Spread = Spread(1200, 0.6, 300, 3600)
    retry: Spread = Spread(900, 0.5, 300, 3600)
    redo_share: float = 0.2
    redo_most_s: float = 600.0
    cull_timeout_s: float = 3600.0
    cull_every_s: float = 1800.0
    start_s: float = 3.6
    runner_s: float = 5.0
    again_s: float = 0.5
    rebuild_s: float = 5.0
    borrow_s: float = 1800.0
    linger_s: float = 30.0
    step_s: float = 5.0
    look_s: float = 60.0
    report_age_s: float = 5.0


def changed(day: Day, values: Mapping[str, Any]) -> Day:
    """The day with other values; those of a table change one by one.

    Raises:
        BadAssumption: there is no such assumption, or the value is not of its kind.
    """
    day = _changed(day, values, "")
    if len(day.mix) != len(day.profiles):
        raise BadAssumption("mix: one share for each of the profiles is needed")
    if not 0 <= day.report_age_s < day.look_s:
        raise BadAssumption("report_age_s: must be less than look_s")
    if not 0 < day.step_s <= day.look_s:
        raise BadAssumption("step_s: must be more than 0, and not more than look_s")
    return day


def read_setting(text: str) -> dict[str, Any]:
    """One ``name=value`` or ``table.name=value``; the value as TOML writes it.

    Raises:
        BadAssumption: it is no such thing.
    """
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise BadAssumption(f'"{text}": write name=value, text in quotes') from error


def _changed(before: Any, values: Mapping[str, Any], where: str) -> Any:
    known = {item.name for item in dataclasses.fields(before)}
    if unknown := sorted(values.keys() - known):
        named = ", ".join(where + name for name in unknown)
        raise BadAssumption(f"{named}: unknown; there are {', '.join(sorted(known))}")
    return dataclasses.replace(
        before,
        **{name: _value(getattr(before, name), new, where + name) for name, new in values.items()},
    )


def _value(before: Any, new: Any, where: str) -> Any:
    if dataclasses.is_dataclass(before) and isinstance(new, Mapping):
        return _changed(before, new, f"{where}.")
    if isinstance(before, tuple) and isinstance(new, list):
        return tuple(_value(before[0], one, where) for one in new)
    is_number = isinstance(new, int | float) and not isinstance(new, bool)
    if isinstance(before, int | float) and is_number and new >= 0:
        return float(new)
    if isinstance(before, str) and isinstance(new, str):
        return new
    raise BadAssumption(f"{where}: {new!r} is not of the kind of {before!r}")

"""What the simulated day is made of, and who comes when and does what in it.  Pure.

The values were set before the first run, and are the same for every policy, as is what a seed draws
from them; docs/explanation/class-day.md tells of the day.
"""

import itertools
import math
import random
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, NonNegativeFloat, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass

from miglab_bench.measures.placement import MIXES, PROFILES
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.gpu.simulated.rules import models

HOUR_S = 3600.0
STRICT = ConfigDict(extra="forbid")
CLASS, PRACTICAL = "class", "practical"
"""The courses: everybody's, and one that has reserved slices."""


@checked_dataclass(frozen=True, config=STRICT)
class Spread:
    """A log-normal duration, cut at both ends.

    Attributes:
        median_s: as many are shorter as are longer.
        sigma: of its logarithm; 0 for always the same.
        least_s: none is shorter.
        most_s: none is longer.
    """

    median_s: NonNegativeFloat
    sigma: NonNegativeFloat
    least_s: NonNegativeFloat
    most_s: NonNegativeFloat


@checked_dataclass(frozen=True, config=STRICT)
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

    share: NonNegativeFloat
    from_h: NonNegativeFloat
    peak_h: NonNegativeFloat
    to_h: NonNegativeFloat
    until_h: NonNegativeFloat
    work: Spread
    run_share: NonNegativeFloat


@checked_dataclass(frozen=True, config=STRICT)
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
    students_per_gpu: NonNegativeFloat = 15.0
    profiles: tuple[str, ...] = PROFILES
    mix: tuple[NonNegativeFloat, ...] = MIXES["teach"]
    begins_h: NonNegativeFloat = 8.0
    ends_h: NonNegativeFloat = 24.0
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
    reserved_share: NonNegativeFloat = 0.1
    lunch_share: NonNegativeFloat = 0.4
    lunch: Spread = Spread(3600, 0.25, 1800, 5400)
    lunch_work: Spread = Spread(2400, 0.5, 600, 5400)
    busy: Spread = Spread(60, 1.2, 1, 1800)
    think: Spread = Spread(120, 0.8, 5, 900)
    pause_share: NonNegativeFloat = 0.05
    pause: Spread = Spread(720, 0.6, 180, 3600)
    pause_open_share: NonNegativeFloat = 0.7
    answer_share: NonNegativeFloat = 0.8
    run: Spread = Spread(3600, 0.6, 900, 14400)
    silent_share: NonNegativeFloat = 0.25
    stop_share: NonNegativeFloat = 0.2
    tab_share: NonNegativeFloat = 0.375
    tab: Spread = Spread(5400, 0.8, 600, 28800)
    patience: Spread = Spread(1200, 0.6, 300, 3600)
    retry: Spread = Spread(900, 0.5, 300, 3600)
    redo_share: NonNegativeFloat = 0.2
    redo_most_s: NonNegativeFloat = 600.0
    cull_timeout_s: NonNegativeFloat = 3600.0
    cull_every_s: NonNegativeFloat = 1800.0
    start_s: NonNegativeFloat = 3.6
    runner_s: NonNegativeFloat = 5.0
    again_s: NonNegativeFloat = 0.5
    rebuild_s: NonNegativeFloat = 5.0
    borrow_s: NonNegativeFloat = 1800.0
    linger_s: NonNegativeFloat = 30.0
    step_s: NonNegativeFloat = 5.0
    look_s: NonNegativeFloat = 60.0
    report_age_s: NonNegativeFloat = 5.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.model not in models():
            raise ValueError(f"model: no {self.model}; there are {', '.join(models())}")
        if missing := set(self.profiles) - model_geometry(self.model).by_name.keys():
            raise ValueError(f"profiles: {self.model} has no {', '.join(sorted(missing))}")
        if len(self.mix) != len(self.profiles):
            raise ValueError("mix: one share for each of the profiles is needed")
        if not self.report_age_s < self.look_s:
            raise ValueError("report_age_s: must be less than look_s")
        if not 0 < self.step_s <= self.look_s:
            raise ValueError("step_s: must be more than 0, and not more than look_s")
        return self


def day_with(settings: str) -> Day:
    """Return the day with other values from TOML; in a table only the given keys change.

    Raises:
        ValueError: it is no TOML, there is no such assumption, or the value is not of its kind.
    """
    values = _merged(asdict(Day()), tomllib.loads(settings))
    return TypeAdapter(Day).validate_python(values)


def _merged(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    tables = {
        name: _merged(before[name], new)
        for name, new in values.items()
        if isinstance(new, dict) and isinstance(before.get(name), dict)
    }
    return {**before, **values, **tables}


# -- a student's day -------------------------------------------------------------------------------


class PhaseKind(StrEnum):
    """What a student does for a while: runs a cell, reads and writes, is away from the page."""

    BUSY = "busy"
    THINK = "think"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class StudentPhase:
    """One phase of a student's session.

    Attributes:
        s: for how long.
        is_open: in a pause, whether the page stays connected.
        answers: whether a warning in it is seen and answered.
        is_again: whether it only brings back what was lost.
    """

    kind: PhaseKind
    s: float
    is_open: bool = True
    answers: bool = False
    is_again: bool = False


@dataclass(frozen=True)
class StudentSession:
    """A student comes, works, and leaves.

    Attributes:
        at: seconds since midnight.
        until: nobody works longer; seconds since midnight.
        phases: what is to be done.
        run_s: how long the run is that is left alone at the end; 0 for none.
        is_silent: whether that run prints nothing.
        stops: whether the server is stopped in the end, and not forgotten.
        open_s: how long a page that is left open stays connected; 0 where it is closed.
        patience_s: how long one waits before trying again.
        retry_s: when one tries again.
    """

    at: float
    until: float
    phases: tuple[StudentPhase, ...]
    run_s: float
    is_silent: bool
    stops: bool
    open_s: float
    patience_s: float
    retry_s: float


@dataclass(frozen=True)
class Plan:
    """A student's day.

    Attributes:
        name: the student's.
        profile: of the one slice that is needed.
        sessions: one after the other.
        course: whose student it is.
    """

    name: str
    profile: str
    sessions: tuple[StudentSession, ...]
    course: str = CLASS

    @property
    def wanted_s(self) -> float:
        """How long cells and runs take in all, in seconds."""
        return sum(
            session.run_s + sum(phase.s for phase in session.phases if phase.kind is PhaseKind.BUSY)
            for session in self.sessions
        )


def reserved(day: Day, students: int) -> int:
    """Return how many slices are reserved for the practical."""
    return math.ceil(day.reserved_share * students)


def plans(day: Day, students: int, seed: int) -> list[Plan]:
    """Return the plans of all students; one who does not come has no sessions.

    Those of the practical come on top of them, one for each slice that is reserved.
    """
    student_plans = [_plan(day, number, seed) for number in range(students)]
    for number in range(reserved(day, students)):
        rng = random.Random(f"{seed}/{number}/practical")  # noqa: S311 -- a simulation
        session = _session(rng, day, day.practical, has_lunch=False)
        student_plans.append(Plan(f"practical-{number:03}", day.profiles[0], (session,), PRACTICAL))
    return student_plans


def _plan(day: Day, number: int, seed: int) -> Plan:
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 -- a simulation, not a secret
    profile = rng.choices(day.profiles, day.mix)[0]
    sessions = []
    for visit in (day.lecture, day.afternoon, day.evening):
        if rng.random() < visit.share:
            sessions.append(_session(rng, day, visit, has_lunch=visit is day.lecture))
    return Plan(f"student-{number:03}", profile, tuple(sessions))


def _session(rng: random.Random, day: Day, visit: Visit, *, has_lunch: bool) -> StudentSession:
    at = HOUR_S * rng.triangular(visit.from_h, visit.to_h, visit.peak_h)
    until = HOUR_S * visit.until_h
    phases = list(_phases(rng, day, min(draw(rng, visit.work), until - at)))
    if has_lunch and rng.random() < day.lunch_share:
        lunch = list(_lunch(rng, day))
        until += sum(phase.s for phase in lunch)
        phases += lunch
    return StudentSession(
        at=at,
        until=until,
        phases=tuple(phases),
        run_s=draw(rng, day.run) if rng.random() < visit.run_share else 0.0,
        is_silent=rng.random() < day.silent_share,
        stops=(stops := rng.random() < day.stop_share),
        open_s=(not stops and rng.random() < day.tab_share) * draw(rng, day.tab),
        patience_s=draw(rng, day.patience),
        retry_s=draw(rng, day.retry),
    )


def _lunch(rng: random.Random, day: Day) -> Iterator[StudentPhase]:
    is_open = rng.random() < day.pause_open_share
    yield StudentPhase(PhaseKind.PAUSE, draw(rng, day.lunch), is_open=is_open)
    yield from _phases(rng, day, draw(rng, day.lunch_work))


def _phases(rng: random.Random, day: Day, total_s: float) -> Iterator[StudentPhase]:
    """Yield cells and the phases between them until the time is over."""
    left_s = total_s
    for turn in itertools.count():
        phase = (
            _phase_between_cells(rng, day)
            if turn % 2 == 0
            else StudentPhase(PhaseKind.BUSY, draw(rng, day.busy))
        )
        if phase.s >= left_s:
            return
        left_s -= phase.s
        yield phase


def _phase_between_cells(rng: random.Random, day: Day) -> StudentPhase:
    if rng.random() >= day.pause_share:
        return StudentPhase(PhaseKind.THINK, draw(rng, day.think))
    is_open = rng.random() < day.pause_open_share
    answers = is_open and rng.random() < day.answer_share
    return StudentPhase(PhaseKind.PAUSE, draw(rng, day.pause), is_open, answers)


def draw(rng: random.Random, spread: Spread) -> float:
    """Draw a duration, in seconds."""
    if not spread.median_s:
        return spread.least_s
    duration_s = rng.lognormvariate(math.log(spread.median_s), spread.sigma)
    return min(spread.most_s, max(spread.least_s, duration_s))

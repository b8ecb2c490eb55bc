"""Who comes when and does what: from the seed alone, the same for every policy.  Pure."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from miglab_bench.class_day.assumptions import HOUR_S, Day, Spread, Visit

CLASS, PRACTICAL = "class", "practical"
"""The courses: everybody's, and one that has reserved slices."""


class PhaseKind(StrEnum):
    """What a student does for a while: runs a cell, reads and writes, is away from the page."""

    BUSY = "busy"
    THINK = "think"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class StudentPhase:
    """One thing a student does.

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
        """For how long something is to run."""
        return sum(
            session.run_s + sum(phase.s for phase in session.phases if phase.kind is PhaseKind.BUSY)
            for session in self.sessions
        )


def reserved(day: Day, students: int) -> int:
    """How many slices are reserved for the practical."""
    return math.ceil(day.reserved_share * students)


def plans(day: Day, students: int, seed: int) -> list[Plan]:
    """The days of all students; one who does not come has no sessions.

    Those of the practical come on top of them, one for each slice that is reserved.
    """
    found = [_plan(day, number, seed) for number in range(students)]
    for number in range(reserved(day, students)):
        rng = random.Random(f"{seed}/{number}/practical")  # noqa: S311 -- a simulation
        session = _session(rng, day, day.practical, has_lunch=False)
        found.append(Plan(f"practical-{number:03}", day.profiles[0], (session,), PRACTICAL))
    return found


def _plan(day: Day, number: int, seed: int) -> Plan:
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 -- a simulation, not a secret
    profile = rng.choices(day.profiles, day.mix)[0]
    found = []
    for visit in (day.lecture, day.afternoon, day.evening):
        if rng.random() < visit.share:
            found.append(_session(rng, day, visit, has_lunch=visit is day.lecture))
    return Plan(f"student-{number:03}", profile, tuple(found))


def _session(rng: random.Random, day: Day, visit: Visit, *, has_lunch: bool) -> StudentSession:
    at = HOUR_S * rng.triangular(visit.from_h, visit.to_h, visit.peak_h)
    until = HOUR_S * visit.until_h
    phases = list(_phases(rng, day, min(draw(rng, visit.work), until - at)))
    if has_lunch and rng.random() < day.lunch_share:
        more = list(_lunch(rng, day))
        until += sum(phase.s for phase in more)
        phases += more
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
    """Cells, and what is between them, until the time is over."""
    left_s = total_s
    for turn in itertools.count():
        phase = (
            _between(rng, day)
            if turn % 2 == 0
            else StudentPhase(PhaseKind.BUSY, draw(rng, day.busy))
        )
        if phase.s >= left_s:
            return
        left_s -= phase.s
        yield phase


def _between(rng: random.Random, day: Day) -> StudentPhase:
    if rng.random() >= day.pause_share:
        return StudentPhase(PhaseKind.THINK, draw(rng, day.think))
    is_open = rng.random() < day.pause_open_share
    answers = is_open and rng.random() < day.answer_share
    return StudentPhase(PhaseKind.PAUSE, draw(rng, day.pause), is_open, answers)


def draw(rng: random.Random, spread: Spread) -> float:
    """One duration."""
    if not spread.median_s:
        return spread.least_s
    drawn = rng.lognormvariate(math.log(spread.median_s), spread.sigma)
    return min(spread.most_s, max(spread.least_s, drawn))

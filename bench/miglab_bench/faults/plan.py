"""What a run does, drawn by its seed alone: whatever happens meanwhile, the draws are the same.

Pure.  What an act comes to depends on how its student stands then.
"""

from dataclasses import dataclass
from random import Random

SHAPES = ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")
BEFORE, DURING = 4, 3
AT_S = 0.6
LASTS_S = {"NVML hang": 3.0, "stop and resume": 1.5, "engine restart": 1.0}
OTHERS_LAST_S = 0.3
STEERING = ("drain", "pause", "reserve", "reclaim", "extend")
STEERS = 0.4


@dataclass(frozen=True)
class Act:
    """Something that a student does.

    Attributes:
        student: which.
        number: between 0 and 1: which of the things that make sense then.
        shape: to ask for, if it is that.
    """

    student: int
    number: float
    shape: str


@dataclass(frozen=True)
class FaultPlan:
    """A fault, and what is done around it.

    Attributes:
        before: acts that are under way when it begins.
        at_s: how long they are.
        lasts_s: how long the fault lasts.
        during: acts that begin after it.
        steering: what staff do meanwhile; empty for nothing.
        seed: of what the fault itself draws.
    """

    before: tuple[Act, ...]
    at_s: float
    lasts_s: float
    during: tuple[Act, ...]
    steering: str
    seed: float


def plan_of(seed: int, number: int, kind: str, students: int) -> FaultPlan:
    """The fault of that number in the run of that seed."""
    rng = Random(f"{seed}:{number}")  # noqa: S311 -- no secret
    who = rng.sample(range(students), BEFORE + DURING)
    acts = tuple(Act(one, rng.random(), rng.choice(SHAPES)) for one in who)
    return FaultPlan(
        before=acts[:BEFORE],
        at_s=rng.uniform(0, AT_S),
        lasts_s=rng.uniform(0, LASTS_S.get(kind, OTHERS_LAST_S)),
        during=acts[BEFORE:],
        steering=rng.choice(STEERING) if rng.random() < STEERS else "",
        seed=rng.random(),
    )

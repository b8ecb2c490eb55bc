"""The roster of a course as its staff see it: the students' presence and progress."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from miglab_api.base import Age, Course, User, WireModel
from miglab_api.staff import MINUTES_MAX, TEXT_MAX

EXPERIMENTS_MAX = 100  # of a student in a course; a server reads no more from its home


class Presence(StrEnum):
    """A student's present activity; ``not known`` if nothing reports it."""

    HOLDING = "on a slice"
    IDLE = "idle"
    OFFERED = "offered"
    WAITING = "waiting"
    CPU = "on CPU"
    ABSENT = "absent"
    UNKNOWN = "not known"


class ExperimentStage(StrEnum):
    """The stage of an experiment: claimed, or in the file that is handed in."""

    CLAIMED = "claimed"
    HANDED_IN = "handed in"


class SharedExperiment(WireModel):
    """A student's stage in one experiment, as the student's server says; nobody has checked it.

    Attributes:
        experiment: its key, such as ``T-1``.
        minute: when that stage was reached, minutes since the epoch; never later than its report.
    """

    experiment: Annotated[str, Field(pattern=r"^[\w.+-]{1,40}$")]
    stage: ExperimentStage
    minute: Annotated[int, Field(ge=0, le=10**9)]


class ProgressReport(WireModel):
    """A student's progress, as the server reports it once the student has read the notice.

    Attributes:
        course: the course that the server was started for.
        sign_age_s: since the student last did something in JupyterLab; None if it cannot be told.
    """

    course: Course
    experiments: Annotated[tuple[SharedExperiment, ...], Field(max_length=EXPERIMENTS_MAX)] = ()
    sign_age_s: Age | None = None


class NoticeRead(WireModel):
    """The student has read what a course's staff are shown."""

    course: Course


class RosterRow(WireModel):
    """One student of a course.

    Attributes:
        shape: what they hold, are offered or wait for; empty for nothing.
        since: from when on they hold it or wait for it.
        offered_until: until when what is offered to them is held; None for no offer.
        position: in the queue.
        lease: the number of the lease that they hold; None for none.
        ticket: the number of the ticket that waits, or to which something is offered.
        last_sign_at: when they last did something in JupyterLab; None if that is not known.
        experiments: what they have claimed or handed in, the latest first; None if not known.
        is_outside: whether they hold a slice or wait for one in the course and are not (any more)
            in it, so that no message to the whole course is counted for them; a slice they hold
            ends by the course's rules.
    """

    user: str
    presence: Presence
    shape: str = ""
    since: float | None = None
    offered_until: float | None = None
    position: int | None = None
    lease: int | None = None
    ticket: int | None = None
    last_sign_at: float | None = None
    experiments: tuple[SharedExperiment, ...] | None = None
    is_outside: bool = False


class RosterView(WireModel):
    """A course's students.

    Attributes:
        is_shared: whether the course's servers tell how far their students are.
        is_complete: whether the hub said who is in the course; else those whom it did not name
            are listed only if they hold a slice or wait.
    """

    course: str
    is_shared: bool
    is_complete: bool
    rows: tuple[RosterRow, ...]


class ClassMessage(WireModel):
    """A message to some of a course's students, shown in their JupyterLab.

    Attributes:
        users: as many as there is room for messages on display.
        minutes: how long it is shown.
    """

    users: Annotated[tuple[User, ...], Field(min_length=1)]
    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=r"\S")]
    minutes: Annotated[float, Field(gt=0, le=MINUTES_MAX)] = 60.0

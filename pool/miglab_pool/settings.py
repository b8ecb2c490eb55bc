"""The pool's own tables of lab.toml, and their defaults."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from miglab_api.tickets import ATTEND_S
from miglab_pool.model.closing_times import class_end, window
from miglab_pool.model.course_roles import ASSISTANTS, INSTRUCTORS
from miglab_pool.model.schedule import is_zone

Seconds = Annotated[float, Field(gt=0, le=366 * 24 * 3600)]
Name = Annotated[str, Field(pattern=r"^\w([\w.@ -]*[\w.-])?$", max_length=255)]
ShapeText = Annotated[str, Field(min_length=1, max_length=64)]


class Section(BaseModel):
    """The base of all tables of lab.toml: immutable, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Gpus(Section):
    """[gpus]: which GPUs the lab leases."""

    simulated: bool = Field(
        True, description="Simulated GPUs; false for the real ones listed in `uuids`."
    )
    count: int = Field(2, ge=1, le=64, description="How many simulated GPUs.")
    model: str = Field(
        "A100-40GB",
        description="Model of the simulated GPUs; `miglab sim create --help` lists them.",
    )
    uuids: tuple[str, ...] = Field(
        (),
        strict=False,
        description='UUIDs of the real GPUs to lease ("GPU-…", see `nvidia-smi -L`). No other is '
        "touched.",
    )

    @model_validator(mode="after")
    def _real_or_simulated(self) -> Self:
        if self.simulated and self.uuids:
            raise ValueError("uuids lists real GPUs, but simulated is true: choose one")
        if not (self.simulated or self.uuids):
            raise ValueError("simulated is false, but uuids lists no GPU (see `nvidia-smi -L`)")
        if len(set(self.uuids)) != len(self.uuids):
            raise ValueError("uuids lists a GPU twice")
        return self


class Pool(Section):
    """[pool]: waiting, leases, and how the pool looks after itself."""

    queue_limit: int = Field(
        200, ge=0, le=100_000, description="How many may wait; the next one is refused at once."
    )
    longest_wait_s: Seconds = Field(
        1800, description="Longest wait, seconds; then the ticket is refused, saying so."
    )
    attend_grace_s: Seconds = Field(
        120,
        description="How long a ticket that nobody attends keeps its place, seconds; more than "
        "twice `reclaim.report_s`, and more than 40, so that one lost question costs no place.",
    )
    offer_s: Seconds = Field(
        300,
        description="How long offered slices are held for a ticket, seconds; then they go back. A "
        "student who works without a GPU meanwhile has this long to press the button.",
    )
    attach_s: Seconds = Field(
        180, description="How long a grant may stay without a server, seconds; then it expires."
    )
    lease_s: float = Field(
        0, ge=0, description="Longest lease, seconds; 0 for no limit. Extensions come on top."
    )
    extension_s: Seconds = Field(1800, description="How much one extension adds, seconds.")
    extensions: int = Field(2, ge=0, le=1000, description="How often a student may extend a lease.")
    fair_half_life_s: Seconds = Field(
        172_800,
        description="When several wait: after how long the use of a slice counts half, seconds. "
        "Who used less lately, course first and then student, goes first.",
    )
    ageing_s: float = Field(
        900,
        ge=0,
        le=366 * 24 * 3600,
        description="Who has waited so long, seconds, goes before all who have not, whatever they "
        "used. Keep it below `longest_wait_s`; 0 for first come, first served.",
    )
    reserve_lead_s: float = Field(
        900,
        ge=0,
        le=86400,
        description="How long before a reservation begins its places are set aside, seconds: "
        "nobody else gets a new lease there, who runs there runs on. As long as the longest lease "
        "with its extensions, and they are surely free when it begins.",
    )
    holders_s: Seconds = Field(
        2, description="Time between two looks for servers that ended unannounced, seconds."
    )
    reconcile_s: Seconds = Field(
        15, description="Time between two comparisons of ledger, GPUs and servers, seconds."
    )

    @property
    def longest_lease_s(self) -> float | None:
        """`lease_s`; None for no limit."""
        return self.lease_s or None


class Reclaim(Section):
    """[reclaim]: when an unused slice is taken back, and when the lab is closed."""

    enabled: bool = Field(
        True,
        description="Take unused slices back, and all at the end of a class and for maintenance. "
        "Without, only `pool.lease_s` ends a lease.",
    )
    dry_run: bool = Field(
        False, description="Decide and report (`miglab pool reclaim --explain`, log), do nothing."
    )
    every_s: Seconds = Field(5, description="Time between two looks at all leases, seconds.")
    idle_s: Seconds = Field(
        7200, description="Longest time unused while nobody waits for it, seconds; then a warning."
    )
    idle_wanted_s: Seconds = Field(
        900, description="The same while somebody waits for what it would free, seconds."
    )
    holding_factor: float = Field(
        2,
        ge=1,
        le=1000,
        description="So many times as long while a process or memory is on the slice: that would "
        "be lost.",
    )
    warning_s: Seconds = Field(
        300, description="From a warning to the reclaim, seconds; a restart begins it anew."
    )
    keepalive_s: Seconds = Field(
        1800, description='How long one "I am still here" holds off the next warning, seconds.'
    )
    keepalives: int = Field(
        2,
        ge=0,
        le=1000,
        description='How often "I am still here" counts before something must run again.',
    )
    unused_s: Seconds = Field(
        3600,
        description="How long looking at the page, or work beside an empty slice, counts as use, "
        "seconds; whatever a student's server reports, it shields an empty slice no longer.",
    )
    stale_s: Seconds = Field(
        90,
        description="A report older than this is not known any more, seconds. Unknown is never "
        "idle.",
    )
    report_s: float = Field(
        15,
        ge=2,
        le=3600,
        description="Time between two reports of a student's server, seconds, at most 5 while it "
        "is warned. Keep it well below `stale_s`.",
    )
    cpu_busy_pct: float = Field(
        10, gt=0, le=10_000, description="CPU use from which a server works, percent of one core."
    )
    gpu_busy_pct: float = Field(
        1,
        gt=0,
        lt=100,
        description="GPU activity above which a slice computes, percent; only where the hardware "
        "tells it (Hopper, or a whole GPU).",
    )
    timezone: str = Field(
        "UTC",
        description="Time zone of `maintenance`, of the courses' `ends` and of the weeks in "
        "reports of usage: `Europe/Berlin`.",
    )
    maintenance: tuple[str, ...] = Field(
        (),
        strict=False,
        description='When the lab is closed: `"tue 06:00-08:00"`, `"2026-11-24 06:00-08:00"`. '
        "Leases are taken back at its start, none is granted until its end.",
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.idle_wanted_s > self.idle_s:
            raise ValueError("idle_wanted_s is longer than idle_s: it is for when others wait")
        if self.report_s >= self.stale_s:
            raise ValueError("report_s is not below stale_s: nothing would ever be known")
        if not is_zone(self.timezone):
            raise ValueError(f'timezone "{self.timezone}" is not known; write "Europe/Berlin"')
        for text in self.maintenance:
            window(text, self.timezone)
        return self


class Course(Section):
    """[courses.NAME]: what the members of the JupyterHub group NAME may ask for."""

    title: str = Field(
        "", max_length=200, description="Name on the spawn page. Empty: the group's."
    )
    shapes: tuple[ShapeText, ...] = Field(
        strict=False,
        min_length=1,
        description="Shapes the course offers: `1g.5gb`, `2x1g.5gb`, `3g.20gb`, `full`, `cpu` "
        "or a need such as `at least 9 GiB`.",
    )
    default: ShapeText = Field(
        "cpu", description="The shape chosen at first; `cpu`, or one of `shapes`."
    )
    members: tuple[Name, ...] = Field(
        (),
        strict=False,
        description="Students put into the group at start. The authenticator may add others.",
    )
    roster: str = Field(
        "",
        description="CSV file with a line for each person: a column `user`, and if you like a "
        "column `role` (`student`, `assistant`, `instructor`); read at start. Relative paths start "
        "at the folder of lab.toml.",
    )
    instructors: tuple[Name, ...] = Field(
        (),
        strict=False,
        description="Who sees and steers the course's tickets, leases and reservations. The hub "
        "group `NAME-instructors` adds others.",
    )
    assistants: tuple[Name, ...] = Field(
        (),
        strict=False,
        description="Who sees the course's tickets and leases, sends messages and extends. The "
        "hub group `NAME-assistants` adds others.",
    )
    gpus: tuple[int | str, ...] = Field(
        (),
        strict=False,
        description="GPUs of this course alone: UUIDs, or indices of simulated ones, from 0. No "
        "other course gets leases there, and its instructors may drain and cut them.",
    )
    ends: tuple[str, ...] = Field(
        (),
        strict=False,
        description='When its classes end and its leases are taken back: `"tue 12:00"`, '
        '`"mon-fri 18:00"`, `"2026-11-24 12:00"`; in `reclaim.timezone`.',
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="The course's share of the slices when several courses wait: one of weight 2 "
        "may use twice as much as one of weight 1.",
    )

    @property
    def people(self) -> tuple[str, ...]:
        """Everybody of the course, each once: students, and who teaches it."""
        return tuple(dict.fromkeys((*self.members, *self.assistants, *self.instructors)))

    @model_validator(mode="after")
    def _default_is_offered(self) -> Self:
        if self.default not in (*self.shapes, "cpu"):
            raise ValueError(
                f'default "{self.default}" is not among shapes: {", ".join(self.shapes)}'
            )
        for text in self.ends:
            class_end(text, "UTC")
        return self


class Quota(Section):
    """[quotas.NAME]: a limit for each student, for one student, or for a whole course.

    Counted in memory slices: a 1g.5gb is 1, a 3g.20gb is 4, a whole A100 is 8.
    """

    course: str = Field(
        "",
        description="The course it concerns; what is held in other courses does not count. "
        "Empty: all courses together.",
    )
    user: str = Field(
        "",
        description="The only student it concerns; takes the place of what holds for each. "
        "Empty: each student.",
    )
    shared: bool = Field(
        False, description="All whom it concerns use it together, not each for themselves."
    )
    live_slices: int = Field(
        0,
        ge=0,
        description="Memory slices held at a time; 0 for no limit. A student who asks for "
        "more is refused, a course that holds as many waits.",
    )
    slice_hours_week: float = Field(
        0,
        ge=0,
        description="Memory slices times hours in any seven days; 0 for no limit. A "
        "student's lease ends when they are used up; a course's keep new leases out.",
    )
    lease_s: float = Field(
        0,
        ge=0,
        description="Longest lease, seconds; takes over from `pool.lease_s`; 0 for none "
        "of its own. Extensions come on top.",
    )

    def limit(self, kind: Literal["live_slices", "slice_hours_week", "lease_s"]) -> float:
        """Its limit of one kind; 0 for none."""
        return float(getattr(self, kind))

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.live_slices or self.slice_hours_week or self.lease_s):
            raise ValueError("it limits nothing: set live_slices, slice_hours_week or lease_s")
        if self.shared and (self.user or self.lease_s):
            raise ValueError("a shared quota concerns no single user and no length of leases")
        return self


class Tuning(Section):
    """What no lab has had to set; not in lab.toml.  Durations are in seconds.

    Attributes:
        probe_s: how soon a holder whose lease is being released is asked after again.
        remove_after_s: how long a stopped container may outlive its lease's release request
            before the pool removes it itself.
        stuck_s: an NVML call that lasts longer marks its GPU unknown.
        retry_s: the first pause after a failed NVML call; it doubles up to ``retry_max_s``.
        quarantine_after: how many failed destroys quarantine a slice until somebody looks at it.
        keep_warm: whether a scrubbed slice is made anew at once if nobody waits.
    """

    probe_s: float = 0.5
    remove_after_s: float = 30.0
    stuck_s: float = 30.0
    retry_s: float = 1.0
    retry_max_s: float = 60.0
    quarantine_after: int = 8
    keep_warm: bool = True


class PoolSettings(Section):
    """The tables that the pool reads, as lab.toml has them, and what follows from them."""

    gpus: Gpus = Gpus()
    pool: Pool = Pool()
    reclaim: Reclaim = Reclaim()
    courses: dict[Name, Course] = Field(min_length=1)
    quotas: dict[Name, Quota] = Field(default_factory=dict)
    tuning: Tuning = Field(Tuning(), exclude=True)

    @field_validator("courses", mode="after")
    @classmethod
    def _named(cls, courses: dict[str, Course]) -> dict[str, Course]:
        """Courses without a title are called by the group's name."""
        return {
            name: course if course.title else course.model_copy(update={"title": name})
            for name, course in courses.items()
        }

    @model_validator(mode="after")
    def _courses_agree(self) -> Self:
        check_names(self.courses)
        _ = self.assigned
        return self

    @model_validator(mode="after")
    def _quotas_name_courses(self) -> Self:
        for name, quota in self.quotas.items():
            if quota.course and quota.course not in self.courses:
                raise ValueError(
                    f'quotas.{name}.course "{quota.course}" is not among the courses: '
                    f"{', '.join(self.courses)}"
                )
        return self

    @model_validator(mode="after")
    def _places_outlive_a_lost_report(self) -> Self:
        """Who waits asks in a start, or from JupyterLab; one lost question costs no place."""
        grace_s, report_s = self.pool.attend_grace_s, self.reclaim.report_s
        least_s = 2 * max(report_s, ATTEND_S)
        if grace_s <= least_s:
            raise ValueError(
                f"pool.attend_grace_s {grace_s:g} is too short: a start asks after its place every "
                f"{ATTEND_S:g} s, JupyterLab every {report_s:g} s (reclaim.report_s), and one "
                f"question may be lost; set attend_grace_s above {least_s:g}"
                + (", or report_s lower" if report_s > ATTEND_S else "")
            )
        return self

    @cached_property
    def assigned(self) -> dict[str, str]:
        """The course of each GPU that one course alone gets leases on.

        By UUID; a simulated GPU, which has none before it is made, by its index as text.
        """
        return assigned_gpus(self.courses, self.gpus)

    def assigned_course(self, uuid: str, index: int) -> str:
        """The course that a GPU is assigned to; empty for none: every course gets leases there."""
        return self.assigned.get(uuid) or self.assigned.get(str(index), "")


def check_names(courses: Iterable[str]) -> None:
    """Refuse a course whose group would make its members another course's staff.

    Raises:
        ValueError: naming both.
    """
    known = set(courses)
    for name in sorted(known):
        for ending in (INSTRUCTORS, ASSISTANTS):
            if name + ending in known:
                raise ValueError(
                    f'courses: "{name}{ending}" is the hub group of the {ending[1:]} of "{name}", '
                    "so its students would be just that: give that course another name"
                )


def assigned_gpus(courses: Mapping[str, Course], gpus: Gpus) -> dict[str, str]:
    """The course of each assigned GPU, by UUID or by index as text.

    Raises:
        ValueError: there is no such GPU, or it is assigned to two courses.
    """
    found: dict[str, str] = {}
    for name, course in courses.items():
        for given in course.gpus:
            key = _key(name, given, gpus)
            if key in found:
                other = f'"{found[key]}"' if found[key] != name else "the same course"
                raise ValueError(f"courses.{name}.gpus: GPU {given} is assigned to {other} already")
            found[key] = name
    return found


def _key(course: str, given: int | str, gpus: Gpus) -> str:
    """A real GPU's UUID; a simulated one's index, as it has no UUID before it is made."""
    where = f"courses.{course}.gpus: {given!r}"
    if gpus.simulated and not isinstance(given, int):
        raise ValueError(f"{where}: simulated GPUs are named by their index, from 0")
    if gpus.simulated and given not in range(gpus.count):
        raise ValueError(f"{where}: there is none, only 0 to {gpus.count - 1}")
    if not gpus.simulated and given not in gpus.uuids:
        raise ValueError(f"{where}: not among gpus.uuids; real GPUs are named by their UUID")
    return str(given)

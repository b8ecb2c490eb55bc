"""The pool's own tables of lab.toml, and their defaults.

The module is long because it declares: one field a setting, with the help that
the docs' page of settings is made of.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from miglab_api.offers import BORROW, CPU
from miglab_pool.course_roles import ASSISTANTS, INSTRUCTORS
from miglab_pool.schedule import Schedule


@dataclass(frozen=True)
class NotASetting:
    """Marks a field that is no key of lab.toml: no operator would change it, but tests do."""


NOT_A_SETTING = NotASetting()
Seconds = Annotated[float, Field(gt=0, le=366 * 24 * 3600)]
Name = Annotated[str, Field(pattern=r"^\w([\w.@ -]*[\w.-])?$", max_length=255)]
ShapeText = Annotated[str, Field(min_length=1, max_length=64)]
T = TypeVar("T")
TomlTuple = Annotated[tuple[T, ...], Field(strict=False)]
"""A tuple; TOML has only lists."""


class Section(BaseModel):
    """The base of all tables of lab.toml: immutable, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Gpus(Section):
    """[gpus]: which GPUs the lab leases."""

    simulate: TomlTuple[str] = Field(
        ("A100-40GB", "A100-40GB"),
        max_length=256,
        description="Simulated GPUs: the model of each, at most 256; `miglab sim create --help` "
        "lists the models. Leave it out, or empty, to use real GPUs.",
    )
    uuids: TomlTuple[str] = Field(
        (),
        description='UUIDs of the real GPUs to lease ("GPU-…", see `nvidia-smi -L`). The lab '
        "touches no other GPU. If it lists any, none is simulated.",
    )
    whole: TomlTuple[int | str] = Field(
        (),
        description="GPUs that are leased whole, as the shape `full`, with MIG off: by UUID, or "
        "simulated ones by index. Every other GPU that can do MIG is wanted with MIG on, and "
        "takes no lease while it is off. A GPU that cannot do MIG is leased whole in any case.",
    )
    answer_s: Seconds = Field(
        20,
        description="How many seconds a GPU may take to answer a reading. One that takes longer "
        "is *unknown* and gets no new leases until it answers.",
    )
    change_s: Seconds = Field(
        60,
        description="How many seconds creating or destroying a slice may take, all steps "
        "together. After that the GPU is *unknown*, too, and nothing is asked of it until that "
        "call has come back.",
    )

    @model_validator(mode="after")
    def _check_gpus(self) -> Self:
        if self.uuids and self.simulate and "simulate" in self.model_fields_set:
            raise ValueError("uuids lists real GPUs, and simulate simulated ones: choose one")
        if not (self.simulate or self.uuids):
            raise ValueError(
                "there is no GPU: list real ones in uuids (see `nvidia-smi -L`), or the models of "
                'simulated ones in simulate, such as ["A100-40GB"]'
            )
        if len(set(self.uuids)) != len(self.uuids):
            raise ValueError("uuids lists a GPU twice")
        for gpu in self.whole:
            self.resolve_gpu(gpu, "gpus.whole")
        if self.change_s < self.answer_s:
            raise ValueError(
                f"change_s ({self.change_s:g}) is less than answer_s ({self.answer_s:g}), and "
                "creating a slice takes several calls: make it at least as long"
            )
        return self

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are simulated."""
        return not self.uuids

    def resolve_gpu(self, gpu: int | str, setting: str) -> str:
        """Return a real GPU's UUID, or a simulated one's index, as its UUID is not known yet.

        Args:
            gpu: the UUID or index in lab.toml.
            setting: the setting's name, for the error.

        Raises:
            ValueError: there is no such GPU.
        """
        label = f"{setting}: {gpu!r}"
        if self.simulated and not isinstance(gpu, int):
            raise ValueError(f"{label}: simulated GPUs are named by their index, from 0")
        if self.simulated and gpu not in range(len(self.simulate)):
            raise ValueError(f"{label}: there is none, only 0 to {len(self.simulate) - 1}")
        if not self.simulated and gpu not in self.uuids:
            raise ValueError(f"{label}: not among gpus.uuids; real GPUs are named by their UUID")
        return str(gpu)

    def wants_whole(self, uuid: str, index: int) -> bool:
        """Whether a GPU is to have MIG off, and to be leased whole."""
        return (index if self.simulated else uuid) in self.whole


class Pool(Section):
    """[pool]: waiting, leases, and how the pool looks after itself."""

    queue_limit: int = Field(
        200,
        ge=0,
        le=100_000,
        description="How many tickets may wait at once; a further request is refused at once.",
    )
    longest_wait_s: Seconds = Field(
        1800,
        description="After so many seconds of waiting, students are asked whether they still "
        "wait. Unanswered for ten minutes, they step aside: they keep their age for 12 hours and "
        "return with one click. Measurements that wait for a borrowed slice are refused then.",
    )
    offer_s: Seconds = Field(
        300,
        description="How many seconds offered slices are held for a ticket; then they go to the "
        "next one. A student who works on CPU in the meantime has this long to press the button.",
    )
    keep_days: float = Field(
        400,
        ge=0,
        description="How many days the ledger keeps its log, and tickets that led to no lease; "
        "then they are deleted. Leases stay. 0 keeps everything.",
    )
    keep_staff_days: float = Field(
        1200, ge=0, description="The same for what staff did by hand. 0 keeps everything."
    )
    lease_s: float = Field(
        14400,
        ge=0,
        le=366 * 24 * 3600,
        description="For how many seconds a lease is guaranteed. After that it is open: it goes "
        "on as long as nobody needs its slices, and ends `reclaim.warning_s` after somebody does. "
        "0: leases are open from the beginning, and whoever waits ends the one that is idle "
        "longest, in the middle of a class too.",
    )
    extension_s: Seconds = Field(
        1800, description="How many seconds one extension adds to the guarantee."
    )
    extensions: int = Field(
        2, ge=0, le=1000, description="How often a student may extend a lease's guarantee."
    )
    borrow_s: Seconds = Field(
        1800,
        description="Longest time for which a measurement borrows slices, in seconds; it ends "
        "sooner when a reservation needs the slot.",
    )
    ageing_s: float = Field(
        900,
        ge=0,
        le=366 * 24 * 3600,
        description="Whoever has waited for this many seconds goes before everybody who has not, "
        "whatever they have used. Keep it below `longest_wait_s`; 0 means first come, first "
        "served.",
    )
    reserve_lead_s: float = Field(
        900,
        ge=0,
        le=86400,
        description="How many seconds before a reservation begins its slots are kept: nobody else "
        "gets a new lease there, and leases there that are no longer guaranteed are warned and "
        "end. It must be longer than `reclaim.warning_s`, or the class finds its slices late.",
    )
    reservations_each: int = Field(
        60,
        ge=1,
        le=1000,
        description="How many reservations that are not over one person may have made for a "
        "course; a further one is refused. A weekly reservation counts once.",
    )
    # A ticket that nobody attends keeps its position for so long: more than twice `report_s` and
    # more than 40, so that one lost question, of a start or of JupyterLab, costs no position.
    attend_grace_s: Annotated[Seconds, NOT_A_SETTING] = 120
    # A grant may exist for so long without a server; then it expires.
    attach_s: Annotated[Seconds, NOT_A_SETTING] = 180
    # Borrowed slices stay for the next measurement, unless somebody waits for them.
    borrow_linger_s: Annotated[float, NOT_A_SETTING, Field(ge=0, le=3600)] = 30
    # After so long, the use of a slice counts half.
    fair_half_life_s: Annotated[Seconds, NOT_A_SETTING] = 172_800
    # A guarantee that has to end for a reservation ends so long before it begins.
    clear_s: Annotated[Seconds, NOT_A_SETTING] = 120
    # A lease that could only be guaranteed for less, because of a reservation, is not granted.
    least_s: Annotated[Seconds, NOT_A_SETTING] = 900
    # Between two checks for servers that have ended unannounced.
    holders_s: Annotated[Seconds, NOT_A_SETTING] = 2
    # Between two comparisons of ledger, GPUs and servers.
    reconcile_s: Annotated[Seconds, NOT_A_SETTING] = 15


class Reclaim(Section):
    """[reclaim]: when an idle slice is reclaimed."""

    enabled: bool = Field(
        True,
        description="Whether to reclaim idle slices, slices whose guarantee is over once somebody "
        "needs them, and all slices for maintenance. If false, no lease is ended, and no "
        "reservation is certain.",
    )
    dry_run: bool = Field(
        False,
        description="Only decide and report (`miglab pool reclaim --explain`, log), but reclaim "
        "nothing.",
    )
    idle_s: Seconds = Field(
        7200,
        description="How many seconds a slice may be idle while nobody waits for it; then its "
        "student is warned.",
    )
    idle_wanted_s: Seconds = Field(
        900, description="How many seconds a slice may be idle while somebody waits for it."
    )
    warning_s: Seconds = Field(
        300,
        description="Seconds from a warning to the reclaim; after a restart of the pool they "
        "begin anew.",
    )
    still_here_s: Seconds = Field(
        1800,
        description='For how many seconds one "I am still here" prevents the next warning. It '
        "works twice; then something must run before it works again.",
    )
    unused_s: Seconds = Field(
        3600,
        description="For how many seconds an open page, or work beside an empty slice, counts as "
        "use. After that, neither a report nor silence protects an empty slice.",
    )
    # How often "I am still here" works before something must run again.
    keepalives: Annotated[int, NOT_A_SETTING, Field(ge=0, le=1000)] = 2
    # Between two rounds in which all leases are checked.
    every_s: Annotated[Seconds, NOT_A_SETTING] = 5
    # So many times as long may a slice be idle with a process or memory on it, which would be lost.
    holding_factor: Annotated[float, NOT_A_SETTING, Field(ge=1, le=1000)] = 2
    # Older reports no longer count, and their server's state is unknown, which is never idle.
    stale_s: Annotated[Seconds, NOT_A_SETTING] = 90
    # Between two reports of a student's server; at most 5 during a warning.
    report_s: Annotated[float, NOT_A_SETTING, Field(ge=2, le=3600)] = 15
    # Above it a server counts as active, in percent of one core.
    cpu_busy_pct: Annotated[float, NOT_A_SETTING, Field(gt=0, le=10_000)] = 10
    # Above it a slice counts as active, where the hardware reports it (Hopper, or a whole GPU).
    gpu_busy_pct: Annotated[float, NOT_A_SETTING, Field(gt=0, lt=100)] = 1

    @property
    def acts(self) -> bool:
        """Whether leases are ended."""
        return self.enabled and not self.dry_run

    @model_validator(mode="after")
    def _check_idle_limits(self) -> Self:
        if self.idle_wanted_s > self.idle_s:
            raise ValueError(
                "idle_wanted_s is longer than idle_s: it is for when others are waiting"
            )
        return self


class Course(Section):
    """[courses.NAME]: what the members of the JupyterHub group NAME may ask for."""

    title: str = Field(
        "",
        max_length=200,
        description="The course's name on the spawn page. If it is empty, the name of the group "
        "is shown.",
    )
    shapes: TomlTuple[ShapeText] = Field(
        min_length=1,
        description="Shapes that the course offers: `1g.5gb`, `2x1g.5gb`, `3g.20gb`, `full`, "
        "`cpu` or a need such as `at least 9 GiB`.",
    )
    lends: TomlTuple[ShapeText] = Field(
        (),
        description="Shapes that labkit borrows while it measures, the usual one first. If there "
        'is one, the spawn page offers "Borrow a slice when measuring": a server that holds '
        "no slice in between.",
    )
    default: ShapeText = Field(
        "cpu",
        description="The shape that is selected at first: `cpu`, one of `shapes`, or `borrow` "
        "where the course lends slices.",
    )
    members: TomlTuple[Name] = Field(
        (),
        description="Students who are put into the group when the lab starts. The authenticator "
        "may add others.",
    )
    roster: str = Field(
        "",
        description="CSV file with one line per person: a column `user` and optionally a column "
        "`role` (`student`, `assistant`, `instructor`). It is read when the lab starts. A "
        "relative path starts at the folder of lab.toml.",
    )
    instructors: TomlTuple[Name] = Field(
        (),
        description="People who can see and steer the course's tickets, leases and reservations. "
        "The hub group `NAME-instructors` adds others.",
    )
    assistants: TomlTuple[Name] = Field(
        (),
        description="People who can see the course's tickets and leases, send messages and extend "
        "leases. The hub group `NAME-assistants` adds others.",
    )
    shares_progress: bool = Field(
        False,
        description="Students' servers tell the course's staff which experiments were claimed or "
        "handed in and when, and when the student was last active, for the Class page. Students "
        "read a notice before the first report. Never sent: predictions, texts, verdicts, code.",
    )
    gpus: TomlTuple[int | str] = Field(
        (),
        description="GPUs for this course alone: UUIDs, or the indices of simulated GPUs, from 0. "
        "No other course gets leases on them, and the course's instructors may drain and "
        "partition them.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="The course's share of the slices when several courses wait: a course of "
        "weight 2 may use twice as much as one of weight 1.",
    )

    @property
    def people(self) -> tuple[str, ...]:
        """Everybody of the course once: students, assistants and instructors."""
        return tuple(dict.fromkeys((*self.members, *self.assistants, *self.instructors)))

    @model_validator(mode="after")
    def _check_default(self) -> Self:
        if self.default == BORROW and not self.lends:
            raise ValueError('default "borrow" needs shapes to borrow: lends = ["1g.5gb"]')
        if self.default not in (*self.shapes, CPU, BORROW):
            raise ValueError(
                f'default "{self.default}" is not among shapes: {", ".join(self.shapes)}'
            )
        if CPU in self.lends:
            raise ValueError('"cpu" is no slice, so nobody can borrow it')
        return self


class Quota(Section):
    """[quotas.NAME]: a limit for each student, for one student, or for a whole course.

    It counts memory slices: a 1g.5gb is 1, a 3g.20gb is 4, a whole A100 is 8.
    """

    course: str = Field(
        "",
        description="The course to which the quota applies; slices held in other courses do not "
        "count. If it is empty, the quota covers all courses together.",
    )
    user: str = Field(
        "",
        description="The only student to whom the quota applies; it replaces the quota for each "
        "student. If it is empty, the quota applies to each student.",
    )
    shared: bool = Field(
        False,
        description="Whether everybody to whom the quota applies uses it together. If false, each "
        "student has a quota of their own.",
    )
    memory_slices: int = Field(
        0,
        ge=0,
        description="Memory slices held at a time; 0 for no limit. A student who asks for more is "
        "refused; when a course holds this many, its students wait.",
    )
    slice_hours_week: float = Field(
        0,
        ge=0,
        description="Memory slices times hours in any seven days; 0 for no limit. When a student "
        "has used them up, the student's lease is no longer guaranteed; when a course has, it "
        "gets no new leases.",
    )
    lease_s: float = Field(
        0,
        ge=0,
        description="For how many seconds a lease is guaranteed, in place of `pool.lease_s`; 0 "
        "if the quota does not limit it. Extensions are added on top.",
    )

    def limit(self, kind: Literal["memory_slices", "slice_hours_week", "lease_s"]) -> float:
        """Its limit of one kind; 0 for none."""
        return float(getattr(self, kind))

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if not (self.memory_slices or self.slice_hours_week or self.lease_s):
            raise ValueError("it limits nothing: set memory_slices, slice_hours_week or lease_s")
        if self.shared and (self.user or self.lease_s):
            raise ValueError("a shared quota concerns no single user and no length of leases")
        return self


class Tuning(Section):
    """What no lab has had to set; not in lab.toml.  Durations are in seconds.

    Attributes:
        probe_s: how soon a holder whose lease is being released is asked after again.
        remove_after_s: how long a stopped container may outlive its lease's release request
            before the pool removes it itself.
        retry_s: the first pause after a failed NVML call; it doubles up to ``retry_max_s``.
        quarantine_after: how many failed destroys quarantine a slice until somebody looks at it.
        keep_warm: whether a scrubbed slice is made anew at once if nobody waits.
    """

    probe_s: float = 0.5
    remove_after_s: float = 30.0
    retry_s: float = 1.0
    retry_max_s: float = 60.0
    quarantine_after: int = 8
    keep_warm: bool = True


class PoolSettings(Section):
    """The tables of lab.toml that the pool reads, and values derived from them."""

    gpus: Gpus = Gpus()
    pool: Pool = Pool()
    reclaim: Reclaim = Reclaim()
    courses: dict[Name, Course] = Field(min_length=1)
    quotas: dict[Name, Quota] = Field(default_factory=dict)
    tuning: Tuning = Field(Tuning(), exclude=True)

    @property
    def maintenance_windows(self) -> tuple[Schedule, ...]:
        """When the lab is closed."""
        return ()

    @field_validator("courses", mode="after")
    @classmethod
    def _default_titles(cls, courses: dict[str, Course]) -> dict[str, Course]:
        """Courses without a title are called by the group's name."""
        return {
            name: course if course.title else course.model_copy(update={"title": name})
            for name, course in courses.items()
        }

    @model_validator(mode="after")
    def _check_course_names(self) -> Self:
        for name in sorted(self.courses):  # a group that would make its members another's staff
            for ending in (INSTRUCTORS, ASSISTANTS):
                if name + ending in self.courses:
                    raise ValueError(
                        f'courses: "{name}{ending}" is the hub group of the {ending[1:]} of '
                        f'"{name}", so its students would be just that: give that course another '
                        "name"
                    )
        _ = self.assigned
        return self

    @model_validator(mode="after")
    def _check_quota_courses(self) -> Self:
        for name, quota in self.quotas.items():
            if quota.course and quota.course not in self.courses:
                raise ValueError(
                    f'quotas.{name}.course "{quota.course}" is not among the courses: '
                    f"{', '.join(self.courses)}"
                )
        return self

    @cached_property
    def assigned(self) -> dict[str, str]:
        """The course of each GPU that one course alone gets leases on.

        By UUID; a simulated GPU, which has none before it is made, by its index as text.

        Raises:
            ValueError: there is no such GPU, or it is assigned to two courses.
        """
        course_by_key: dict[str, str] = {}
        for name, course in self.courses.items():
            for gpu in course.gpus:
                key = self.gpus.resolve_gpu(gpu, f"courses.{name}.gpus")
                if key in course_by_key:
                    other = (
                        f'"{course_by_key[key]}"'
                        if course_by_key[key] != name
                        else "the same course"
                    )
                    raise ValueError(
                        f"courses.{name}.gpus: GPU {gpu} is assigned to {other} already"
                    )
                course_by_key[key] = name
        return course_by_key

    def assigned_course(self, uuid: str, index: int) -> str:
        """The course that a GPU is assigned to; empty for none: every course gets leases there."""
        return self.assigned.get(uuid) or self.assigned.get(str(index), "")

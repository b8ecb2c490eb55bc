"""What lab.toml says of a lab on Slurm: how each shape is asked for, how a server is run.  Pure.

Names of gres types, partitions, accounts and QOS differ from site to site, so all are written down.
Slurm owns the slices there, so the tables by which the pool owns them have no meaning; to accept
them silently would promise limits that nobody keeps.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from miglab_api.offers import CPU
from miglab_hub.settings.lab_toml import Settings
from miglab_hub.settings.tables import is_local_only
from miglab_slurm.records import hosts_of

Word = Annotated[str, Field(pattern=r"^[\w.@:,/+-]*$", max_length=200)]


class SlurmTable(BaseModel):
    """The base of the site's tables: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SlurmOptions(SlurmTable):
    """[slurm.options]: further options of `sbatch`, for all shapes; a shape's own replace them.

    No others are passed on: they could break what the lab relies on (`--requeue`, `--comment`,
    `--array`), or choose nodes in a way by which it cannot count what is free.
    """

    constraint: Annotated[
        str, Field(pattern=r"^([\w.:-]+(&[\w.:-]+)*|[\w.:-]+(\|[\w.:-]+)*)?$")
    ] = Field(
        "",
        description="Features of the nodes, joined by `&` (all of them) or by `|` (any of them): "
        "`a100&mig`. Other nodes do not count as free.",
    )
    exclude: Annotated[str, Field(pattern=r"^[\w.,\[\]-]*$")] = Field(
        "", description="Nodes on which no job runs, in Slurm's short form: `gpu[1-2,7]`."
    )
    licenses: Word = Field("", description="Licences that each job takes, with counts: `matlab:1`.")
    qos: Word = Field("", description="QOS of the jobs. If it is empty, Slurm chooses.")
    reservation: Word = Field(
        "", description="Slurm reservation in which the jobs run; empty for none."
    )
    wckey: Word = Field(
        "", description="Workload characterization key, where your accounts demand one."
    )

    def with_defaults(self, defaults: "SlurmOptions") -> "SlurmOptions":
        """These, and the defaults of those that are empty here."""
        return defaults.model_copy(update={key: value for key, value in self if value})

    def admits(self, node: str, features: Collection[str]) -> bool:
        """Whether a job with these options may run on a node, as Slurm decides it."""
        if node in hosts_of(self.exclude):
            return False
        required = set(re.split(r"[&|]", self.constraint)) - {""}
        if "|" in self.constraint:
            return bool(required & set(features))
        return required <= set(features)


class SlurmShape(SlurmTable):
    """[slurm.shapes.SHAPE]: how to ask Slurm for a shape."""

    gres: Annotated[str, Field(pattern=r"^([\w.-]+:[\w.+-]+:[1-9]\d*)?$")] = Field(
        "",
        description="What `sbatch --gres` takes, with a count: `gpu:1g.5gb:1`. The type's name is "
        "your site's own. Leave it empty for `cpu`.",
    )
    partition: Word = Field(
        "", description="Partition of its jobs. If it is empty, that of `[slurm]` is used."
    )
    account: Word = Field(
        "", description="Account of its jobs. If it is empty, that of `[slurm]` is used."
    )
    time_limit_min: Annotated[int, Field(ge=1, le=7 * 24 * 60)] = Field(
        120, description="Time limit of the job, in minutes; then Slurm ends the server."
    )
    cpus: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="CPU cores of the job.")
    memory_mib: Annotated[int, Field(ge=0)] = Field(
        0, description="Host memory of the job, in MiB; 0 for the partition's default."
    )
    gpu_memory_gib: Annotated[float, Field(ge=0, le=1024)] = Field(
        0, description="Memory of each slice, in GiB; the spawn page shows it."
    )
    sm_count: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="SMs of each slice; the spawn page shows them."
    )
    good_for: str = Field(
        "", description="What the shape is good for: one sentence for students, on the spawn page."
    )
    launch: str = Field(
        "",
        description="What precedes the server's command, for example to run it in a container: "
        "`apptainer exec --nv /apps/lab.sif`. If it is empty, that of `[slurm]` is used.",
    )

    options: SlurmOptions = SlurmOptions()

    @property
    def gres_type(self) -> str:
        """The gres without its count: ``gpu:1g.5gb``."""
        return self.gres.rpartition(":")[0]

    @property
    def count(self) -> int:
        """How many slices."""
        return int(self.gres.rpartition(":")[2]) if self.gres else 0


class SlurmCourse(SlurmTable):
    """What a course may ask for; the same names as in `[courses]` of lab.toml."""

    title: str = ""
    shapes: tuple[str, ...] = ()
    default: str = CPU


class SlurmTables(SlurmTable):
    """[slurm]: your site's Slurm; used if `servers.spawner` is `slurm`."""

    partition: Word = Field("", description="Partition for shapes that name none.")
    account: Word = Field("", description="Account for shapes and courses that name none.")
    accounts: dict[str, Word] = Field(
        default_factory=dict,
        description='Account of each course: `{vision = "vision-2026"}`. If the shape has an '
        "account, that is used instead.",
    )
    launch: str = Field(
        "", description="What precedes the server's command, for shapes without `launch`."
    )
    prologue: str = Field(
        "",
        description="Shell commands to run before the server, such as `module load jupyter`; the "
        "node's `/etc/profile` is read first, as in a login shell.",
    )
    python: str = Field(
        "python3",
        description="Python that runs the server on the node, or in the container if `launch` "
        "starts one.",
    )
    run_as: str = Field(
        "sudo -u {username}",
        description="What precedes `sbatch`, `scancel` and `squeue`, so that they run as the "
        "student; `runuser -u {username} --` if the hub runs as root. If it is empty, all jobs "
        "belong to the hub's account, and only Slurm's cgroups keep students apart.",
    )
    unix_group: str = Field(
        "",
        max_length=200,
        description="Unix group whose members may run servers under the account that is called "
        "like their sign-in name. If it is empty, only those in `unix_accounts` may. Not used if "
        "`run_as` is empty.",
    )
    unix_accounts: dict[str, str] = Field(
        default_factory=dict,
        description='Unix account of a sign-in name: `{"ada@example.edu" = "ada"}`.',
    )
    least_uid: Annotated[int, Field(ge=1)] = Field(
        1000,
        description="Smallest uid of an account that may run servers. Those below, and root, are "
        "refused.",
    )
    home: str = Field(
        "",
        description="Folder on the nodes in which servers start; `{username}` stands for the "
        "student. If it is empty, servers start in the account's home. The lab creates the folder "
        "if `run_as` is empty.",
    )
    notebooks: str = Field(
        "",
        description="Folder of notebooks, by its path on the nodes; empty for none. At each start, "
        "new ones are copied to `notebooks` in the home; an edited one is never overwritten.",
    )
    operator: bool = Field(
        False,
        description="Whether the lab's own account may extend and cancel anybody's jobs (Slurm's "
        "AdminLevel Operator, or root). If so, staff can extend servers, and students can as often "
        "as `pool.extensions` says.",
    )
    every_s: Annotated[float, Field(ge=0.5, le=60)] = Field(
        3.0,
        description="Seconds between two looks at Slurm: one `squeue`, `sinfo` and `scontrol` for "
        "all students together.",
    )
    command_timeout_s: Annotated[float, Field(ge=1, le=120)] = Field(
        15.0,
        description="Longest time for a Slurm command, in seconds; then Slurm counts as silent.",
    )
    offer_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        120.0,
        description="How many seconds a job that has started waits for its student to come back; "
        "then it ends by itself.",
    )
    attend_grace_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        120.0,
        description="How many seconds a job stays in Slurm's queue while no start of its server "
        "waits for it, for example after the hub has died; then it is cancelled.",
    )
    options: SlurmOptions = SlurmOptions()
    shapes: dict[str, SlurmShape] = Field(
        default_factory=dict,
        description='How to ask Slurm for each shape: one table `[slurm.shapes."SHAPE"]` each.',
    )

    @model_validator(mode="after")
    def _names_what_it_uses(self) -> Self:
        for name, shape in self.shapes.items():
            if name != CPU and not shape.gres:
                raise ValueError(f'shape "{name}" names no gres: write gres = "gpu:TYPE:COUNT"')
            if not (shape.partition or self.partition):
                raise ValueError(f'shape "{name}" names no partition, and neither does the site')
        return self

    def partition_of(self, shape: SlurmShape) -> str:
        """The partition in which a shape runs."""
        return shape.partition or self.partition

    def account_of(self, shape: SlurmShape, course: str) -> str:
        """The Slurm account of its jobs; empty for the one that Slurm chooses."""
        return shape.account or self.accounts.get(course, "") or self.account

    def further_options(self, shape: SlurmShape) -> SlurmOptions:
        """What the site adds to a shape's jobs."""
        return shape.options.with_defaults(self.options)

    def options_of(self, shape: SlurmShape, course: str) -> list[str]:
        """The options of `sbatch` that say where and as whom; empty ones are left to Slurm."""
        values = {
            "partition": self.partition_of(shape),
            "gres": shape.gres,
            "account": self.account_of(shape, course),
            "time": str(shape.time_limit_min),
            **self.further_options(shape).model_dump(),
        }
        options = [f"--{name}={value}" for name, value in values.items() if value]
        return ["--nodes=1", "--ntasks=1", *options]

    @property
    def partitions(self) -> tuple[str, ...]:
        """Every partition of the table, once."""
        return tuple(sorted({self.partition_of(shape) for shape in self.shapes.values()}))


class SlurmSite(SlurmTables):
    """All that the spawner is told: the site's tables, and its courses."""

    courses: dict[str, SlurmCourse] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _courses_have_their_shapes(self) -> Self:
        if self.courses and CPU not in self.shapes:
            raise ValueError(
                f'a server without a GPU is a job as well: add the shape "{CPU}" to the shapes of '
                "[slurm]"
            )
        for name, course in self.courses.items():
            if unknown := sorted(set(course.shapes) - set(self.shapes)):
                raise ValueError(
                    f"courses.{name}.shapes: [slurm] does not say how to ask for "
                    f"{', '.join(unknown)}; it has {', '.join(self.shapes) or 'no shape'}"
                )
        return self


class SlurmSettings(Settings):
    """All of lab.toml where this package is installed: `[slurm]` as well, and what follows."""

    slurm: SlurmTables = SlurmTables()

    @model_validator(mode="after")
    def _slurm_is_described(self) -> Self:
        if not self.is_on_slurm:
            return self
        _ = self.slurm_site
        if problems := "; ".join(self._settings_without_effect()):
            raise ValueError(f'servers.spawner is "slurm", and there {problems}')
        may_read = self.slurm.run_as or self.accept_risk.students_can_read_secrets
        if not may_read and not is_local_only(self.lab):
            raise ValueError(
                "other machines reach this lab, and with slurm.run_as empty every student's job "
                "runs as the lab's own account and can read its secrets: let jobs run as the "
                'student (run_as = "sudo -u {username}"), or set '
                "accept_risk.students_can_read_secrets = true"
            )
        return self

    @property
    def slurm_site(self) -> SlurmSite:
        """The site's tables with the lab's courses, as the spawner takes them.

        Raises:
            ValueError: they do not agree; the message names the key.
        """
        if not self.slurm.shapes:
            raise ValueError(
                'servers.spawner is "slurm", but [slurm] describes no shape: add a table such as '
                '[slurm.shapes."1g.5gb"] with gres = "gpu:1g.5gb:1" and a partition, and '
                "[slurm.shapes.cpu]"
            )
        courses = {
            name: SlurmCourse(title=course.title, shapes=course.shapes, default=course.default)
            for name, course in self.courses.items()
        }
        try:
            site = SlurmSite(**self.slurm.model_dump(), courses=courses)
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["ctx"]["error"])) from error
        return site

    @property
    def slurm_jobs(self) -> Path:
        """The lab's identity on Slurm, its key, the jobs that it submitted, and their stays."""
        return self.state / "slurm-jobs.sqlite"

    @property
    def service_module(self) -> str:
        """What stands for the pool on Slurm."""
        return "miglab_slurm.service" if self.is_on_slurm else super().service_module

    @property
    def further_databases(self) -> tuple[Path, ...]:
        """The lab's jobs."""
        return (self.slurm_jobs,)

    def _settings_without_effect(self) -> Iterator[str]:
        """What is set that Slurm does instead, and how Slurm does it."""
        if self.quotas:
            yield (
                "[quotas] has no effect: limit people and courses by QOS and associations "
                "(sacctmgr)"
            )
        if self.limits:
            yield "[limits] has no effect: set cpus and memory_mib of each shape in [slurm.shapes]"
        if self.lab.maintenance:
            yield (
                "lab.maintenance has no effect: announce it to Slurm (scontrol create "
                "reservation flags=maint,ignore_jobs nodes=…)"
            )
        if any(course.gpus for course in self.courses.values()):
            yield "courses.NAME.gpus has no effect: give the course a partition or reservation"
        if any(course.weight != 1 for course in self.courses.values()):
            yield "courses.NAME.weight has no effect: give the course's account shares (sacctmgr)"
        if self.servers.home_gib or self.servers.disk_gib:
            yield "servers.home_gib and disk_gib have no effect: use the file system's own quotas"


def on_slurm(settings: Settings) -> SlurmSettings:
    """The settings, which `load` has read as this package's."""
    assert isinstance(settings, SlurmSettings)
    return settings

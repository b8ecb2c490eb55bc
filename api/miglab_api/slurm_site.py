"""What a site says of its Slurm: how each shape is asked for, and how a server is run there.

Names of gres types, partitions, accounts and QOS differ from site to site, so all are written down.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from miglab_api.offers import CPU

Word = Annotated[str, Field(pattern=r"^[\w.@:,/+-]*$", max_length=200)]


class SlurmTable(BaseModel):
    """The base of the site's tables: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SlurmShape(SlurmTable):
    """[slurm.shapes.SHAPE]: how a shape is asked for."""

    gres: Annotated[str, Field(pattern=r"^([\w.-]+:[\w.-]+:[1-9]\d*)?$")] = Field(
        "",
        description="What `sbatch --gres` takes, with a count: `gpu:1g.5gb:1`. Type names are the "
        "site's own. Empty for `cpu`.",
    )
    partition: Word = Field("", description="Partition. Empty: the one of `[slurm]`.")
    account: Word = Field("", description="Account. Empty: the one of `[slurm]`.")
    qos: Word = Field("", description="QOS. Empty: Slurm's own choice.")
    reservation: Word = Field("", description="Reservation whose nodes it may use. Empty: none.")
    time_limit_min: Annotated[int, Field(ge=1, le=7 * 24 * 60)] = Field(
        120, description="Time limit of the job, minutes; then Slurm ends the server."
    )
    cpus: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="CPU cores.")
    memory_mib: Annotated[int, Field(ge=0)] = Field(
        0, description="Memory of the host, MiB. 0: the partition's default."
    )
    gpu_memory_gib: Annotated[float, Field(ge=0, le=1024)] = Field(
        0, description="Memory of each slice, GiB, as the spawn page says it."
    )
    sm_count: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="SMs of each slice, as the spawn page says it."
    )
    good_for: str = Field("", description="What it is good for, in one sentence for students.")
    launch: str = Field(
        "",
        description="Words before the server's command, such as a container's: "
        "`apptainer exec --nv /apps/lab.sif`. Empty: the one of `[slurm]`.",
    )

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
    """[slurm]: the site's Slurm, where `students.spawner` is `slurm`."""

    partition: Word = Field("", description="Partition of shapes that name none.")
    account: Word = Field("", description="Account of shapes and courses that name none.")
    accounts: dict[str, Word] = Field(
        default_factory=dict,
        description='Accounts of courses: `{vision = "vision-2026"}`. A shape\'s own account goes '
        "before.",
    )
    launch: str = Field("", description="Words before the server's command, for every shape.")
    prologue: str = Field(
        "",
        description="Lines of shell before the server, such as `module load jupyter`.",
    )
    python: str = Field(
        "python3", description="A Python of the node (in the container, where there is one)."
    )
    run_as: str = Field(
        "sudo -u {username}",
        description="Words before `sbatch` and `scancel`, by which they run as the student. "
        "`runuser -u {username} --` for a hub that is root. Empty: every job is the hub's own, and "
        "nothing but Slurm's cgroups keeps students apart.",
    )
    home: str = Field(
        "",
        description="Folder in which servers start, on the nodes; `{username}` stands for the "
        "student. Empty: the account's home. Where `run_as` is empty, the lab makes it.",
    )
    notebooks: str = Field(
        "",
        description="Folder of notebooks, as the nodes see it. New ones are copied into "
        "`notebooks` of the home at each start; an edited one is never overwritten. Empty: none.",
    )
    operator: bool = Field(
        False,
        description="Whether the lab's own account may lengthen jobs and cancel any (Slurm's "
        "AdminLevel Operator, or root). Staff can then extend servers, and students as often as "
        "`pool.extensions` says.",
    )
    every_s: Annotated[float, Field(ge=0.5, le=60)] = Field(
        3.0, description="One `squeue` and one `sinfo` every so many seconds, for all students."
    )
    command_timeout_s: Annotated[float, Field(ge=1, le=120)] = Field(
        15.0, description="Longest time for a Slurm command, seconds; then Slurm counts as silent."
    )
    offer_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        120.0,
        description="How long a job that runs waits for its student to come back, seconds; then it "
        "ends by itself.",
    )
    attend_grace_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        120.0,
        description="How long a job that no start attends keeps its place, seconds.",
    )
    shapes: dict[str, SlurmShape] = Field(
        default_factory=dict,
        description='How each shape is asked for: a table `[slurm.shapes."SHAPE"]` each.',
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


def site_of(table: Mapping[str, Any]) -> SlurmSite:
    """The site's table, checked.

    Raises:
        ValueError: a key that does not exist, or something missing; the message names it.
    """
    return SlurmSite.model_validate(dict(table))

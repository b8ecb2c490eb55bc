"""What a site says of its Slurm: how each shape is asked for, and how a server is run there.

Names of gres types, partitions, accounts and QOS differ from site to site, so all are written down.
"""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from miglab_api.offers import CPU

Word = Annotated[str, Field(pattern=r"^[\w.@:,/+-]*$", max_length=200)]


class SlurmTable(BaseModel):
    """The base of the site's tables: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SlurmShape(SlurmTable):
    """[slurm.shapes.SHAPE]: how to ask Slurm for a shape."""

    gres: Annotated[str, Field(pattern=r"^([\w.-]+:[\w.-]+:[1-9]\d*)?$")] = Field(
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
    qos: Word = Field("", description="QOS of its jobs. If it is empty, Slurm chooses.")
    reservation: Word = Field(
        "", description="Slurm reservation in which its jobs run; empty for none."
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
        description="Shell commands to run before the server, such as `module load jupyter`.",
    )
    python: str = Field(
        "python3",
        description="Python that runs the server on the node, or in the container if `launch` "
        "starts one.",
    )
    run_as: str = Field(
        "sudo -u {username}",
        description="What precedes `sbatch` and `scancel`, so that they run as the student; "
        "`runuser -u {username} --` if the hub runs as root. If it is empty, all jobs belong to "
        "the hub's account, and only Slurm's cgroups keep students apart.",
    )
    unix_group: Word = Field(
        "",
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

    def options_of(self, shape: SlurmShape, course: str) -> list[str]:
        """The options of `sbatch` that say where and as whom; empty ones are left to Slurm."""
        values = {
            "partition": self.partition_of(shape),
            "gres": shape.gres,
            "account": shape.account or self.accounts.get(course, "") or self.account,
            "qos": shape.qos,
            "reservation": shape.reservation,
            "time": str(shape.time_limit_min),
        }
        given = [f"--{name}={value}" for name, value in values.items() if value]
        return ["--nodes=1", "--ntasks=1", *given]

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

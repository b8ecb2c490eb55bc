"""What a site says of its Slurm: how each shape is asked for, and how a server is run there.

Names of gres types, partitions, accounts and QOS differ from site to site, so all are written down.

Which Unix account a student's jobs run as: whoever signs in may have chosen the name, and the hub
may run commands as anybody.  So only a name of the usual form, of an account that is there, is no
system account and is in the site's group.
"""

import grp
import os
import pwd
import re
from pwd import struct_passwd
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from miglab_api.offers import CPU
from miglab_spawner.backends import RefusedByBackend

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


FORM = re.compile(r"[a-z_][a-z0-9_-]*")


class NoAccountError(RefusedByBackend):
    """A user may run nothing on the cluster; ``why`` is for the operator."""

    def __init__(self, why: str) -> None:
        said = "You have no account on the cluster. Tell your instructor."
        super().__init__("account-refused", said, 403)
        self.why = why


def account_of(site: SlurmTables, user: str) -> struct_passwd:
    """The account of a user's jobs: the hub's own where `run_as` is empty.

    Raises:
        NoAccountError: there is none, or it may run no jobs.
    """
    if not site.run_as:
        return pwd.getpwuid(os.geteuid())
    name = site.unix_accounts.get(user, user)
    if not FORM.fullmatch(name):
        raise NoAccountError(f"{name!r} is no name of an account: it must match {FORM.pattern}")
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise NoAccountError(f"there is no Unix account {name}") from None
    if account.pw_uid < max(1, site.least_uid):
        raise NoAccountError(f"{name} has uid {account.pw_uid}, below slurm.least_uid")
    if user not in site.unix_accounts and not _is_in(site.unix_group, account):
        where = f"the group {site.unix_group}" if site.unix_group else "a group: see unix_group"
        raise NoAccountError(f"{name} is neither in slurm.unix_accounts nor in {where}")
    return account


def members_of(group: str) -> tuple[str, ...]:
    """Who is listed as a member of a Unix group; empty where there is no such group."""
    try:
        return tuple(grp.getgrnam(group).gr_mem)
    except KeyError:
        return ()


def _is_in(group: str, account: struct_passwd) -> bool:
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return False
    return number in os.getgrouplist(account.pw_name, account.pw_gid)

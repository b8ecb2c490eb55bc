"""Whether a limit on one person's jobs lets a server without a GPU run beside a job that waits.

slurmctld is asked while the job waits, as the job's own account, from which it hides none of its
own limits.  A limit counts if both jobs would: that of the account if both have one, that of a QOS
if they have the same one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pwd import struct_passwd

from miglab_api.offers import CPU
from miglab_slurm.commands import as_account, run
from miglab_slurm.lab import SlurmShape, SlurmSite
from miglab_slurm.records import SlurmJob, text_in

AFTER_THE_SERVER = (
    "A limit on your jobs lets no {shape} start beside a server without a GPU. If you start one, "
    "others may be served before you. JupyterLab tells you when a {shape} is free; the server "
    "without a GPU ends before you get it, so save your work then: what is in memory is lost."
)
WAITS_AS_WELL = (
    "You already run as many jobs as you may, so a server without a GPU would wait as well. Stop "
    "another server of yours first."
)
NO_FURTHER_JOB = (
    "A limit on your jobs lets you submit no further one, so no server without a GPU can start "
    "while you wait for {shape}."
)


@dataclass(frozen=True)
class PersonalRoom:
    """How much a person may use besides what they use now; None where nothing limits it.

    Attributes:
        jobs: that run at a time.
        submissions: jobs that run or wait.
        cpus: of the jobs that run.
    """

    jobs: int | None = None
    submissions: int | None = None
    cpus: int | None = None

    def limited_by(self, other: "PersonalRoom") -> "PersonalRoom":
        """The room under two limits."""
        return PersonalRoom(
            _smaller(self.jobs, other.jobs),
            _smaller(self.submissions, other.submissions),
            _smaller(self.cpus, other.cpus),
        )


async def meanwhile_notice(site: SlurmSite, job: SlurmJob, account: struct_passwd) -> str:
    """What a limit means for a server without a GPU that is started while a job waits.

    Returns:
        Words for the student; empty where no limit is in the way.

    Raises:
        BackendError: Slurm does not answer.
    """
    shape = site.shapes.get(job.tag.shape) if job.tag is not None else None
    if job.tag is None or shape is None or CPU not in site.shapes:
        return ""
    without_gpu, course = site.shapes[CPU], job.tag.course
    as_student = as_account(site.run_as, account.pw_name)
    query = ["squeue", "-h", "-j", str(job.id), "-O", "QOS:100,Account:100"]
    fields = (await run([*as_student, *query], site.command_timeout_s)).split()
    if len(fields) != 2 or not text_in(fields[0]):
        return ""  # it waits no more, or Slurm keeps no accounts and so no limits
    show_limits = ["scontrol", "show", "assoc_mgr", f"users={account.pw_name}", "flags=assoc,qos"]
    text = await run([*as_student, *show_limits], site.command_timeout_s)
    room = PersonalRoom()
    if site.account_of(shape, course) == site.account_of(without_gpu, course):
        room = room.limited_by(room_of_account(text, account.pw_name, fields[1]))
    if site.further_options(shape).qos == site.further_options(without_gpu).qos:
        is_same_partition = site.partition_of(shape) == site.partition_of(without_gpu)
        qos = None if is_same_partition else fields[0]  # a partition's own QOS counts there
        room = room.limited_by(room_of_qos(text, account.pw_uid, qos))
    return words_for(room, job.tag.shape, shape, without_gpu)


def words_for(room: PersonalRoom, name: str, shape: SlurmShape, without_gpu: SlurmShape) -> str:
    """The words for so much room; ``shape`` is the one that waits, of this name."""
    jobs, submissions, cpus = room.jobs, room.submissions, room.cpus
    if submissions is not None and submissions < 1:
        return NO_FURTHER_JOB.format(shape=name)
    if (jobs is not None and jobs < 1) or (cpus is not None and cpus < without_gpu.cpus):
        return WAITS_AS_WELL
    if (jobs is not None and jobs < 2) or (
        cpus is not None and cpus < without_gpu.cpus + shape.cpus
    ):
        return AFTER_THE_SERVER.format(shape=name)
    return ""


def room_of_account(text: str, user: str, account: str) -> PersonalRoom:
    """The room of a user in an account; from the output of `scontrol show assoc_mgr`."""
    room = PersonalRoom()
    record = re.compile(
        rf"ClusterName=.* Account={re.escape(account)} UserName={re.escape(user)}\("
    )
    for block in re.split(r"^(?=ClusterName=|QOS=)", text, flags=re.MULTILINE):
        if record.match(block):
            room = room.limited_by(
                PersonalRoom(_room(block, "MaxJobs"), _room(block, "MaxSubmitJobs"))
            )
    return room


def room_of_qos(text: str, uid: int, qos: str | None) -> PersonalRoom:
    """The room of a user in one QOS, or in all in which they have jobs; from the same output."""
    room = PersonalRoom()
    for name, block in _qos_blocks(text):
        users = block.partition("User Limits")[2]
        limits = re.search(rf"^ +(?:\S+\()?{uid}\)?\n((?: {{8}}.*\n?)+)", users, re.MULTILINE)
        if limits is not None and qos in (None, name):
            tres = re.search(r"MaxTRESPU=(\S*)", limits[1])
            room = room.limited_by(
                PersonalRoom(
                    _room(limits[1], "MaxJobsPU"),
                    _room(limits[1], "MaxSubmitJobsPU"),
                    _room(tres[1].replace(",", " ") if tres else "", "cpu"),
                )
            )
    return room


def _qos_blocks(text: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^QOS=(.*)\(\d+\)\n((?: .*\n?)*)", text, re.MULTILINE):
        yield match[1], match[2]


def _room(text: str, name: str) -> int | None:
    """What a limit leaves, written ``MaxJobs=3(1)``; None for no limit: ``N(1)``, or nothing."""
    match = re.search(rf"(?:^|\s){name}=(\d+)\((\d+)\)", text)
    return max(0, int(match[1]) - int(match[2])) if match else None


def _smaller(*rooms: int | None) -> int | None:
    return min((number for number in rooms if number is not None), default=None)

"""Slurm's reasons, refusals and endings in a student's words; tables, and no decision."""

import re
from dataclasses import dataclass

from miglab_api.wording import duration
from miglab_slurm.commands import CommandFailed
from miglab_slurm.states import LOST, NOT_SHOWN, PREPARED, words_of
from miglab_spawner.backends import RefusedByBackend

_TELL = "Tell your instructor."
FOR_ROOM = frozenset({"", "Resources", "Priority"})
"""It waits for room, in its turn."""
_COUNTS_SERVERS = re.compile(
    r"(QOSMax(Jobs?|Cpu|Mem|Memory|Node)PerUser|AssocMax(Jobs|Cpu|Mem|Node))"
)
"""A limit of one person into which a server without a GPU counts as well."""

_WAITS = {
    ("ReqNodeNotAvail, May be reserved",): "Others have reserved the nodes with this slice before "
    "your time limit would end. Your position is kept.",
    ("ReqNodeNotAvail", "Nodes required", "NodeDown"): "The nodes with this slice are down or "
    "being serviced, so nobody knows when it will start. Your position is kept.",
    ("PartitionDown", "PartitionInactive"): "The partition is closed, so nothing starts in it. "
    f"{_TELL}",
    ("Reservation",): "It starts when your course's reservation begins.",
    ("Licenses",): "All licences of your course are in use. It starts when one is given back.",
    ("BeginTime",): "It may start in a few minutes; Slurm set a time before which it does not.",
    ("QOSMax", "AssocMax"): "You already use all that one person may. It starts when another "
    "server or job of yours ends.",
    ("MaxGRESPerAccount",): "Your course uses all that it may. It starts when somebody stops.",
    ("QOSGrp", "AssocGrp"): "Your course uses all that it may at a time. It starts when somebody "
    "stops.",
    ("QOS", "Assoc"): "A limit of your account or course holds it back.",
    ("JobHeld",): f"Somebody holds it back by hand. {_TELL}",
    ("Dependency",): f"It waits for another job. {_TELL}",
    ("Cleaning",): "The previous job is being cleaned up; it starts right after.",
}
"""How Slurm's Reason begins, and what that means for whoever waits; the first that fits counts."""
NEVER = ("PartitionTimeLimit", "PartitionConfig", "PartitionNodeLimit", "BadConstraints",
         "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed")  # fmt: skip
"""Slurm accepted it, and it can never run."""

_REFUSALS = {
    ("impossible-shape", f"No node of this site has such a slice. Choose another. {_TELL}"): (
        "requested node configuration is not available",
    ),
    ("account-refused", f"Your Slurm account may not use this partition. {_TELL}"): (
        "invalid account", "not permitted",
    ),
    ("account-refused", f"Your Slurm account may not use this QOS. {_TELL}"): ("invalid qos",),
    ("account-refused", f"Your Slurm account may not submit jobs. {_TELL}"): ("access/permission",),
    ("account-refused", f"You have no account on the cluster. {_TELL}"): (
        "user unknown", "invalid user", "does not exist", "unknown user",
    ),
    ("over-quota", "You or your course already use all that you may. Stop another server, or "
     "wait."): ("submitjob",),
    ("over-limit", f"This is more than one person may use here. Choose a smaller shape. {_TELL}"): (
        "accounting/qos policy",
    ),
    ("bad-site-table", f"The site's time limit is longer than Slurm allows. {_TELL}"): (
        "time limit",
    ),
    ("no-partition", f"The partition does not exist. {_TELL}"): ("invalid partition",),
    ("partition-down", f"The partition is closed now. {_TELL}"): (
        "partition not available", "required partition",
    ),
    ("account-refused", f"You may not use the reservation. {_TELL}"): ("requested reservation",),
    ("no-reservation", f"The reservation does not exist now. {_TELL}"): ("reservation",),
}  # fmt: skip
"""A refusal's reason and its words, and what `sbatch` says then; the first that fits counts."""

SOONER = (
    "Slurm ends this server sooner than planned, because another job goes first or an operator "
    "said so. Your files are kept; what is in memory is lost."
)
AT_LIMIT = (
    "Your server reaches its time limit, and Slurm ends it. Your files are kept; start again for "
    "a new one."
)


@dataclass(frozen=True)
class WaitWords:
    """Why a job waits for something else than room; both empty where it waits for room.

    Attributes:
        message: for the student.
        never: whether it can never run.
        is_limit: whether a limit of the student or course holds it, which holds other shapes too.
        counts_servers: whether the student's server without a GPU counts into that limit.
    """

    message: str = ""
    never: bool = False
    is_limit: bool = False
    counts_servers: bool = False


def why_it_waits(reason: str) -> WaitWords:
    """Slurm's Reason in plain words."""
    if reason in FOR_ROOM:
        return WaitWords()
    if reason.startswith(NEVER):
        return WaitWords(f"Slurm can never start this job ({reason}). {_TELL}", never=True)
    plain = reason.replace("_", " ")  # as some versions and commands print it
    for starts, message in _WAITS.items():
        if plain.startswith(starts):
            is_limit = reason.startswith(("QOS", "Assoc", "MaxGRES"))
            counts_servers = _COUNTS_SERVERS.match(reason) is not None
            return WaitWords(message, is_limit=is_limit, counts_servers=counts_servers)
    return WaitWords(f"Slurm holds it back: {reason}.")


def refusal_of(failed: CommandFailed) -> RefusedByBackend:
    """`sbatch`'s no, in words and with a reason."""
    answer = str(failed).lower()
    for (reason, message), signs in _REFUSALS.items():
        if any(sign in answer for sign in signs):
            return RefusedByBackend(reason, message, 400)
    last = str(failed).splitlines()[-1]
    return RefusedByBackend("slurm-refused", f"Slurm refused the job: {last}. {_TELL}", 400)


def why_it_is_not_there(state: str) -> str:
    """What a job does that waits no more and does not run yet, in words."""
    flags = words_of(state)
    if flags & PREPARED:
        return "You have your slice. Its node is being made ready, and your server starts then."
    if NOT_SHOWN in flags:
        return (
            "The cluster's scheduler does not show your job now. It is looked for; you need do "
            "nothing."
        )
    return f"Slurm says that your job is {state.lower()}; your server starts when it runs."


def why_it_ended(state: str, limit_min: int) -> str:
    """Why a server's job is over, in words; empty where it was stopped or ended by itself."""
    limit = duration(60.0 * limit_min)
    return {
        "CANCELLED": "Your server was ended by the cluster's operator or by hand. Your files are "
        "kept; start it again to go on.",
        "TIMEOUT": f"Your server reached its time limit of {limit}, so Slurm ended it. Your files "
        "are kept; start it again to go on.",
        "DEADLINE": "Your server reached its deadline, so Slurm ended it. Your files are kept.",
        "NODE_FAIL": "The node of your server failed. Your files are kept; start it again.",
        "BOOT_FAIL": "The node of your server failed. Your files are kept; start it again.",
        "PREEMPTED": "Slurm gave your slice to a job that goes first. Your files are kept; start "
        "again to rejoin the queue.",
        LOST: "Slurm has lost your server's job, and the server no longer answers. Your files are "
        "kept; start it again.",
        "OUT_OF_MEMORY": "Your server used more memory of the host than it may, so it was ended. "
        "Your files are kept.",
        "FAILED": "Your server ended with an error. Your files are kept; start it again. If it "
        "happens again, tell your instructor.",
    }.get(state, "")

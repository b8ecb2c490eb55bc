"""Jobs as `squeue -O` tells them, and how Slurm's commands print; text in, frozen records out.

A comment or reason may hold any character, line breaks too, so fields and records are parted by a
random mark that is made for each call: nobody can write it beforehand.  The output is the same from
22.05 on but for ``gres:gpu:…`` (22.05) and ``gres/gpu:…`` (24.11); JSON changes with each release.
Times are seconds since the epoch: the commands run with ``SLURM_TIME_FORMAT=%s``.
"""

import hashlib
import hmac
import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from miglab_slurm.states import LEAVING, PREPARED, RUNS, JobPhase, phase_of, words_of

JOB_FIELDS = (
    "JobID", "State", "Reason", "SubmitTime", "StartTime", "EndTime", "PriorityLong",
    "tres-per-node", "UserName", "NodeList", "Partition", "RestartCnt", "Cluster", "Name",
    "Comment", "tres-per-job", "tres-per-task", "tres-per-socket", "NumNodes", "NumTasks",
    "ArrayTaskID", "SchedNodes",
)  # fmt: skip
NONE = frozenset({"", "N/A", "(null)", "none", "None", "NONE", "Unknown"})
_NO_GRES = frozenset({"cpu", "mem", "node", "billing"})
"""What stands beside gres where a command lists all that a job asks for."""

log = logging.getLogger(__name__)
Row = Mapping[str, str]


@dataclass(frozen=True)
class Listing:
    """One call of a command that lists: its fields, and the mark that parts them.

    Attributes:
        mark: random; begins with a letter, because `-O` takes digits and a dot for a width.
    """

    fields: tuple[str, ...]
    mark: str = field(default_factory=lambda: f"m{secrets.token_hex(12)}")

    @property
    def option(self) -> str:
        """The argument of ``-O``, untruncated."""
        ends = ["f"] * (len(self.fields) - 1) + ["r"]
        return ",".join(
            f"{name}:{self.mark}{end}" for name, end in zip(self.fields, ends, strict=True)
        )

    def rows(self, text: str) -> Iterator[dict[str, str]]:
        """The records of an output; what is no whole record is left out."""
        for record in text.split(f"{self.mark}r")[:-1]:
            parts = [part.strip() for part in record.split(f"{self.mark}f")]
            if len(parts) == len(self.fields):
                yield dict(zip(self.fields, parts, strict=True))


@dataclass(frozen=True)
class Tag:
    """Whose a job is.

    Attributes:
        lab: its name.
        ticket: random, made for this one submission.
    """

    lab: str
    user: str
    server: str
    course: str
    shape: str
    ticket: str

    def secret(self, cookie_secret: bytes) -> str:
        """A job's secret: known to the hub, also after its restart, and to the job's script."""
        key = hashlib.sha256(b"miglab-slurm-handover" + cookie_secret).digest()
        message = json.dumps(self.__dict__, sort_keys=True).encode()
        return hmac.new(key, message, hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class SignedTag:
    """What a job's comment says: anybody can write any, so it is believed only if it is signed.

    Attributes:
        lab_id: identity of the lab that submitted it; its name may be another lab's as well.
    """

    tag: Tag
    lab_id: str
    signature: str

    def as_comment(self) -> str:
        """The comment of the job."""
        fields = {"miglab": 2, **self.__dict__, "tag": None, **self.tag.__dict__}
        del fields["tag"]
        return json.dumps(fields, separators=(",", ":"))


@dataclass(frozen=True)
class SlurmJob:
    """One job.

    Attributes:
        gres: gres without count to count, on all its nodes together; one that was asked for
            without a type is there without one: ``gpu``.
        account: the Unix account that it runs as.
        comment: whatever its submitter wrote.
        cluster: the name of the cluster that lists it.
        name: of the job; the lab's own are signed.
        tag: whose server it is; only `Submissions` says so, of what this lab submitted.
        restarts: how often Slurm has put it back into the queue.
        tasks: how many jobs it stands for: those of an array that wait, and may run side by side.
        planned_nodes: where Slurm plans to start it; empty while it has no plan.
        submitted_at: seconds since the epoch, as all times here; None where Slurm says none.
    """

    id: int
    state: str
    reason: str
    submitted_at: float
    started_at: float | None
    ends_at: float | None
    priority: int
    gres: Mapping[str, int]
    account: str
    nodes: str
    partition: str
    restarts: int = 0
    comment: str = ""
    cluster: str = ""
    name: str = ""
    tag: Tag | None = None
    tasks: int = 1
    planned_nodes: frozenset[str] = frozenset()

    @property
    def identity(self) -> tuple[int, str, str, float, str]:
        """What tells it from a later job of its number; a requeue changes it as well."""
        return self.id, self.cluster, self.account, self.submitted_at, self.name

    def asks_for(self, gres_type: str) -> int:
        """How many slices of a type it asks for, or may get: without a type it takes any."""
        untyped = self.gres.get(gres_type.partition(":")[0], 0)
        return self.gres.get(gres_type, untyped)

    @property
    def has_ended(self) -> bool:
        """Whether it is known that nothing of it runs any more; see `states`."""
        return phase_of(self.state) is JobPhase.OVER

    @property
    def has_left(self) -> bool:
        """Whether it runs no more; it may be on its way out still."""
        return self.has_ended or bool(words_of(self.state) & LEAVING)

    @property
    def holds(self) -> bool:
        """Whether it has what it asked for; one of a server's may be offered to it still."""
        return not self.is_pending and not self.has_left

    @property
    def is_pending(self) -> bool:
        """Whether it waits."""
        return phase_of(self.state) is JobPhase.WAITING

    @property
    def is_running(self) -> bool:
        """Whether its script runs."""
        return bool(self.state) and words_of(self.state) <= RUNS

    @property
    def is_prepared(self) -> bool:
        """Whether it has its slices, and its node is being made ready for it."""
        return not self.has_left and bool(words_of(self.state) & PREPARED)


def jobs_of(listing: Listing, text: str) -> dict[int, SlurmJob]:
    """The jobs in the output of `squeue`; what is no job is left out."""
    rows = [row for row in listing.rows(text) if row["JobID"].isdecimal()]
    return {int(row["JobID"]): _job(row) for row in unique_rows(rows, "JobID")}


def hosts_of(text: str) -> Iterator[str]:
    """The names in Slurm's short form: ``n[1-2,07],login``."""
    for short in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        head, is_short, after_bracket = short.partition("[")
        if not is_short:
            yield short
            continue
        ranges, _, tail = after_bracket.partition("]")
        for number_range in ranges.split(","):
            first, _, last = number_range.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield from hosts_of(f"{head}{number:0{len(first)}d}{tail}")


def unique_rows(rows: Sequence[Row], *key: str) -> Iterator[Row]:
    """The rows whose key comes once: of two that claim to be the same, neither is believed."""

    def key_of(row: Row) -> Hashable:
        return tuple(row[name] for name in key)

    counts = Counter(map(key_of, rows))
    for twice in (row_key for row_key, count in counts.items() if count > 1):
        log.warning("Slurm lists %s twice: both are left out", twice)
    return (row for row in rows if counts[key_of(row)] == 1)


def gres_of(text: str) -> Mapping[str, int]:
    """Gres as any version and command writes it, to counts.

    ``gpu:1g.5gb:4(IDX:0-3),gpu:3g.20gb:0(IDX:N/A)``, ``gres/gpu:1g.5gb:1``, ``gpu:1g.5gb:4(S:0)``,
    ``cpu=1,gres/gpu:1g.5gb=1``.
    """
    counts: dict[str, int] = {}
    for part in re.sub(r"\((?!null)[^)]*\)", "", text).split(","):
        match = re.fullmatch(r"(?:gres[:/])?(.+)[:=](\d+)", part.strip())
        if match and match[1] not in _NO_GRES:
            counts[match[1]] = counts.get(match[1], 0) + int(match[2])
    return MappingProxyType(counts)


def claim_of(comment: str) -> SignedTag | None:
    """What a comment claims; None where it is none of a lab of ours."""
    try:
        fields = json.loads(comment)
        if fields.pop("miglab") != 2 or not all(isinstance(text, str) for text in fields.values()):
            return None
        lab_id, signature = fields.pop("lab_id"), fields.pop("signature")
        return SignedTag(Tag(**fields), lab_id, signature)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _job(row: Mapping[str, str]) -> SlurmJob:
    return SlurmJob(
        id=int(row["JobID"]),
        state=row["State"].upper(),
        reason="" if row["Reason"] in NONE else row["Reason"],
        submitted_at=time_in(row["SubmitTime"]) or 0.0,
        started_at=time_in(row["StartTime"]),
        ends_at=time_in(row["EndTime"]),
        priority=int(row["PriorityLong"]) if row["PriorityLong"].isdecimal() else 0,
        gres=_asked_gres(row),
        account=row["UserName"],
        nodes="" if row["NodeList"] in NONE else row["NodeList"],
        partition=row["Partition"],
        restarts=int(row["RestartCnt"]) if row["RestartCnt"].isdecimal() else 0,
        comment=row["Comment"],
        cluster="" if row["Cluster"] in NONE else row["Cluster"],
        name=row["Name"],
        tasks=_array_tasks(row["ArrayTaskID"]),
        planned_nodes=frozenset(hosts_of(text_in(row["SchedNodes"]))),
    )


def _asked_gres(row: Row) -> Mapping[str, int]:
    """The slices of a job on all its nodes, whichever options asked for them.

    ``--gres`` and ``--gpus-per-node`` count for each node, ``--gpus-per-task`` for each task,
    ``--gpus`` for the job.  Two options that name one type describe the same slices.
    """
    nodes, tasks = number_in(row["NumNodes"]) or 1, number_in(row["NumTasks"]) or 1
    times = {
        "tres-per-job": 1,
        "tres-per-node": nodes,
        "tres-per-socket": nodes,  # one socket of each at least: nothing lists how many
        "tres-per-task": tasks,
    }
    counts: dict[str, int] = {}
    for name, factor in times.items():
        for gres_type, count in gres_of(row[name]).items():
            counts[gres_type] = max(counts.get(gres_type, 0), count * factor)
    return MappingProxyType(counts)


def _array_tasks(text: str) -> int:
    """How many of an array's tasks wait, and may run side by side: ``0-3,7,10-20:5%2``."""
    ids, _, at_a_time = text.partition("%")
    ranges = re.findall(r"(\d+)(?:-(\d+)(?::(\d+))?)?", ids)
    count = sum(
        (int(last or first) - int(first)) // int(step or 1) + 1 for first, last, step in ranges
    )
    return max(1, min(count, number_in(at_a_time) or count))


def text_in(text: str) -> str:
    """A field; empty where it says that there is nothing."""
    return "" if text in NONE else text


def number_in(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def time_in(text: str) -> float | None:
    return float(text) if text.isdecimal() else None

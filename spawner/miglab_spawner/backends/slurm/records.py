"""Jobs and nodes as `squeue -O` and `sinfo -O` tell them; text in, frozen records out.

Both print one line each, fields parted by ``|``, the free text last, the same from 22.05 on but for
``gres:gpu:…`` (22.05) and ``gres/gpu:…`` (24.11).  JSON changes with every release, this does not.
Times are seconds since the epoch: the commands run with ``SLURM_TIME_FORMAT=%s``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

JOB_FIELDS = (
    "JobID", "State", "Reason", "SubmitTime", "StartTime", "EndTime", "PriorityLong",
    "tres-per-node", "UserName", "NodeList", "Partition", "Comment",
)  # fmt: skip
NODE_FIELDS = (
    "NodeList", "NodeAddr", "StateComplete", "Gres", "GresUsed", "Partition", "Available", "Reason",
)  # fmt: skip
NONE = frozenset({"", "N/A", "(null)", "none", "None", "NONE", "Unknown"})
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
_TAKES_JOBS = frozenset({"idle", "mixed", "allocated"})
_HARMLESS = frozenset({"planned", "cloud", "dynamic_norm", "dynamic_future"})


@dataclass(frozen=True)
class Tag:
    """Whose a job is, from its comment; a student can write any: what it claims is checked."""

    lab: str
    user: str
    server: str
    course: str
    shape: str
    ticket: str

    def as_comment(self) -> str:
        """The comment of the job."""
        return json.dumps({"miglab": 1, **self.__dict__}, separators=(",", ":"))


@dataclass(frozen=True)
class SlurmJob:
    """One job.

    Attributes:
        gres: gres without count to count, on each node.
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
    tag: Tag | None

    @property
    def has_ended(self) -> bool:
        """Whether Slurm itself says that nothing of it runs any more."""
        return self.state in ENDED

    @property
    def is_pending(self) -> bool:
        """Whether it waits."""
        return self.state == "PENDING"

    @property
    def is_running(self) -> bool:
        """Whether its script runs."""
        return self.state == "RUNNING"


@dataclass(frozen=True)
class Node:
    """One node.

    Attributes:
        total: gres without count to count.
        used: the same, for what running jobs hold.
        state: its parts, in lower case: ``{"mixed", "drain"}``.
        partitions: partition to whether it takes jobs.
        reason: what the operator wrote who drained it; empty for nothing.
    """

    name: str
    address: str
    state: frozenset[str]
    total: Mapping[str, int]
    used: Mapping[str, int]
    partitions: Mapping[str, bool]
    reason: str

    @property
    def takes_jobs(self) -> bool:
        """Whether a new job could start here now: up, answering, not drained, nothing completing.

        One job that is completing blocks its whole node, though its slice shows as free.
        """
        return self.will_take_jobs and "completing" not in self.state

    @property
    def will_take_jobs(self) -> bool:
        """Whether one could start here now, or in a moment, when what is completing is gone."""
        passing = {"reserved", "completing"}
        return bool(self.state & _TAKES_JOBS) and self.state - _TAKES_JOBS - _HARMLESS <= passing

    @property
    def is_reserved(self) -> bool:
        """Whether somebody's reservation holds it now."""
        return "reserved" in self.state

    def free(self, gres_type: str) -> int:
        """How many slices of a type nobody holds."""
        return max(0, self.total.get(gres_type, 0) - self.used.get(gres_type, 0))


def columns(fields: tuple[str, ...]) -> str:
    """The argument of ``-O`` for these fields, untruncated."""
    return ",".join(f"{field}:|" for field in fields)


def jobs_of(text: str) -> dict[int, SlurmJob]:
    """The jobs in the output of `squeue`; a line that is no job is left out."""
    rows = _rows(text, JOB_FIELDS)
    return {int(row["JobID"]): _job(row) for row in rows if row["JobID"].isdecimal()}


def nodes_of(text: str) -> dict[str, Node]:
    """The nodes in the output of `sinfo -N`, which has a line for each node and partition."""
    nodes: dict[str, Node] = {}
    for row in _rows(text, NODE_FIELDS):
        before = nodes.get(row["NodeList"])
        partitions = dict(before.partitions) if before else {}
        partitions[row["Partition"].rstrip("*")] = row["Available"] == "up"
        nodes[row["NodeList"]] = _node(row, partitions)
    return nodes


def gres_of(text: str) -> Mapping[str, int]:
    """Gres as any version and command writes it, to counts.

    ``gpu:1g.5gb:4(IDX:0-3),gpu:3g.20gb:0(IDX:N/A)``, ``gres/gpu:1g.5gb:1``, ``gpu:1g.5gb:4(S:0)``.
    """
    counts: dict[str, int] = {}
    for part in re.sub(r"\((?!null)[^)]*\)", "", text).split(","):
        found = re.fullmatch(r"(?:gres[:/])?(.+):(\d+)", part.strip())
        if found:
            counts[found[1]] = counts.get(found[1], 0) + int(found[2])
    return MappingProxyType(counts)


def tag_of(comment: str) -> Tag | None:
    """The tag in a job's comment; None where it is no tag of ours."""
    try:
        said = json.loads(comment)
        if said.pop("miglab") != 1 or not all(isinstance(word, str) for word in said.values()):
            return None
        return Tag(**said)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _rows(text: str, fields: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        parts = line.split("|", len(fields) - 1)
        if len(parts) == len(fields):
            parts[-1] = parts[-1].removesuffix("|")
            yield dict(zip(fields, (part.strip() for part in parts), strict=True))


def _job(row: Mapping[str, str]) -> SlurmJob:
    return SlurmJob(
        id=int(row["JobID"]),
        state=row["State"].upper(),
        reason="" if row["Reason"] in NONE else row["Reason"],
        submitted_at=_time(row["SubmitTime"]) or 0.0,
        started_at=_time(row["StartTime"]),
        ends_at=_time(row["EndTime"]),
        priority=int(row["PriorityLong"]) if row["PriorityLong"].isdecimal() else 0,
        gres=gres_of(row["tres-per-node"]),
        account=row["UserName"],
        nodes="" if row["NodeList"] in NONE else row["NodeList"],
        partition=row["Partition"],
        tag=tag_of(row["Comment"]),
    )


def _node(row: Mapping[str, str], partitions: Mapping[str, bool]) -> Node:
    flagged = row["StateComplete"].lower()
    state = set(re.split(r"[+\s]", flagged.rstrip("*~#!%$@^-")))
    if flagged.endswith("*"):
        state.add("not_responding")
    return Node(
        name=row["NodeList"],
        address=row["NodeAddr"],
        state=frozenset(state),
        total=gres_of(row["Gres"]),
        used=gres_of(row["GresUsed"]),
        partitions=MappingProxyType(dict(partitions)),
        reason="" if row["Reason"] in NONE else row["Reason"],
    )


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None

"""Jobs and nodes as `squeue -O` and `sinfo -O` tell them; text in, frozen records out.

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
    "Comment",
)  # fmt: skip
NODE_FIELDS = (
    "NodeList", "NodeAddr", "StateComplete", "Gres", "GresUsed", "Partition", "Available", "Reason",
)  # fmt: skip
NEVER = 2.0**32  # an end that Slurm does not tell
NONE = frozenset({"", "N/A", "(null)", "none", "None", "NONE", "Unknown"})
_TAKES_JOBS = frozenset({"idle", "mixed", "allocated"})
_HARMLESS = frozenset({"planned", "cloud", "dynamic_norm", "dynamic_future"})

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
        said = json.dumps(self.__dict__, sort_keys=True).encode()
        return hmac.new(key, said, hashlib.sha256).hexdigest()


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
        said = {"miglab": 2, **self.__dict__, "tag": None, **self.tag.__dict__}
        del said["tag"]
        return json.dumps(said, separators=(",", ":"))


@dataclass(frozen=True)
class SlurmJob:
    """One job.

    Attributes:
        gres: gres without count to count, on each node.
        account: the Unix account that it runs as.
        comment: whatever its submitter wrote.
        cluster: the name of the cluster that lists it.
        name: of the job; the lab's own are signed.
        tag: whose server it is; only `Submissions` says so, of what this lab submitted.
        restarts: how often Slurm has put it back into the queue.
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

    @property
    def operators_command(self) -> str:
        """What its operator would type: to end a drain, or to begin one."""
        is_out = self.state & {"drain", "drained", "draining", "down"}
        end = "resume" if is_out else "drain reason=…"
        return f"scontrol update nodename={self.name} state={end}"

    def free(self, gres_type: str) -> int:
        """How many slices of a type nobody holds."""
        return max(0, self.total.get(gres_type, 0) - self.used.get(gres_type, 0))


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation, begun or not.

    Attributes:
        nodes: those that it takes whole.
        node_list: all of them, as Slurm writes them.
        whose: for people.
    """

    name: str
    begins_at: float
    ends_at: float
    nodes: frozenset[str]
    node_list: str
    whose: str
    state: str


def jobs_of(listing: Listing, text: str) -> dict[int, SlurmJob]:
    """The jobs in the output of `squeue`; what is no job is left out."""
    rows = [row for row in listing.rows(text) if row["JobID"].isdecimal()]
    return {int(row["JobID"]): _job(row) for row in once(rows, "JobID")}


def nodes_of(listing: Listing, text: str) -> dict[str, Node]:
    """The nodes in the output of `sinfo -N`, which has a record for each node and partition."""
    nodes: dict[str, Node] = {}
    for row in once(list(listing.rows(text)), "NodeList", "Partition"):
        before = nodes.get(row["NodeList"])
        partitions = dict(before.partitions) if before else {}
        partitions[row["Partition"].rstrip("*")] = row["Available"] == "up"
        nodes[row["NodeList"]] = _node(row, partitions)
    return nodes


def reservations_of(text: str) -> tuple[SlurmReservation, ...]:
    """The reservations in the output of `scontrol -o show reservation`: only operators write it."""
    lines = (dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines())
    return tuple(
        SlurmReservation(
            words["ReservationName"],
            _time(words.get("StartTime", "")) or 0.0,
            _time(words.get("EndTime", "")) or NEVER,
            frozenset() if "CoreIDs" in words else frozenset(hosts_of(words.get("Nodes", ""))),
            words.get("Nodes", ""),
            ", ".join(
                f"{key.lower()} {words[key]}"
                for key in ("Users", "Groups", "Accounts")
                if words.get(key, "") not in NONE
            ),
            words.get("State", ""),
        )
        for words in lines
        if "ReservationName" in words
    )


def hosts_of(text: str) -> Iterator[str]:
    """The names in Slurm's short form: ``n[1-2,07],login``."""
    for short in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        head, is_short, rest = short.partition("[")
        if not is_short:
            yield short
            continue
        ranges, _, tail = rest.partition("]")
        for each in ranges.split(","):
            first, _, last = each.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield from hosts_of(f"{head}{number:0{len(first)}d}{tail}")


def once(rows: Sequence[Row], *key: str) -> Iterator[Row]:
    """The rows whose key comes once: of two that claim to be the same, neither is believed."""

    def key_of(row: Row) -> Hashable:
        return tuple(row[name] for name in key)

    counts = Counter(map(key_of, rows))
    for twice in (each for each, count in counts.items() if count > 1):
        log.warning("Slurm lists %s twice: both are left out", twice)
    return (row for row in rows if counts[key_of(row)] == 1)


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


def claim_of(comment: str) -> SignedTag | None:
    """What a comment claims; None where it is none of a lab of ours."""
    try:
        said = json.loads(comment)
        if said.pop("miglab") != 2 or not all(isinstance(word, str) for word in said.values()):
            return None
        lab_id, signature = said.pop("lab_id"), said.pop("signature")
        return SignedTag(Tag(**said), lab_id, signature)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


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
        restarts=int(row["RestartCnt"]) if row["RestartCnt"].isdecimal() else 0,
        comment=row["Comment"],
        cluster="" if row["Cluster"] in NONE else row["Cluster"],
        name=row["Name"],
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

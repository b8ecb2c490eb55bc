"""The cluster as the instructors' page shows it.  Pure: a picture and memory in, rows out.

Names are shown of one's own courses alone; everything of Slurm's own is read-only, with the command
by which its operator would change it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from miglab_api.leases import LeaseView
from miglab_pool.reclaimer.activity_states import Activity
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.records import Node
from miglab_slurm.service.leases import SlurmLeases
from miglab_slurm.service.servers import all_servers
from miglab_slurm.views import tag_of_ours, ticket_of

REPORTS_WITHIN_S = 120.0
SILENT = "does not report"


@dataclass(frozen=True)
class NodeRow:
    """One node.

    Attributes:
        gres: type, used, total.
        reason: what its operator wrote.
        command: by which its operator would end the drain; empty where there is none.
    """

    name: str
    state: str
    gres: tuple[tuple[str, int, int], ...]
    reason: str = ""
    command: str = ""


@dataclass(frozen=True)
class HolderRow:
    """A server of one's own course."""

    lease: LeaseView
    node: str
    activity: str
    may_end: bool
    may_extend: bool


@dataclass(frozen=True)
class WaitingRow:
    """A place in the queue of one's own course."""

    job: int
    user: str
    course: str
    shape: str
    position: int | None
    reason: str
    may_end: bool


@dataclass(frozen=True)
class ShapeRow:
    """One shape: how many could start now, how many there are, how many wait."""

    name: str
    free: int
    total: int
    waiting: int
    never: str


@dataclass(frozen=True)
class ClusterView:
    """The page's data."""

    nodes: tuple[NodeRow, ...]
    shapes: tuple[ShapeRow, ...]
    holders: tuple[HolderRow, ...]
    waiting: tuple[WaitingRow, ...]
    without_gpu: int
    others: Mapping[str, int]

    @property
    def has_silent(self) -> bool:
        """Whether a server has not reported that has had the time to."""
        return any(row.activity == SILENT for row in self.holders)


def node_rows(nodes: Iterable[Node]) -> tuple[NodeRow, ...]:
    """Every node, with its slices by type."""
    return tuple(_node(node) for node in sorted(nodes, key=lambda node: node.name))


def _node(node: Node) -> NodeRow:
    gres = tuple(
        (type_, node.used.get(type_, 0), total) for type_, total in sorted(node.total.items())
    )
    is_drained = bool({"drain", "drained", "draining"} & node.state)
    resume = f"scontrol update nodename={node.name} state=resume"
    drain = f"scontrol update nodename={node.name} state=drain reason=…"
    command = resume if is_drained or "down" in node.state else drain
    return NodeRow(node.name, ", ".join(sorted(node.state)), gres, node.reason, command)


def shape_rows(picture: ClusterPicture) -> tuple[ShapeRow, ...]:
    """Every shape with a slice."""
    return tuple(
        ShapeRow(
            name,
            picture.free(shape),
            picture.total(shape),
            len(picture.queue(shape)),
            picture.why_never(shape),
        )
        for name, shape in picture.site.shapes.items()
        if shape.gres
    )


def waiting_rows(
    picture: ClusterPicture, stays_s: Mapping[str, Sequence[float]]
) -> list[WaitingRow]:
    """Every place in the queue, and every offer."""
    found = []
    for user, _, jobs in all_servers(picture):
        if (job := jobs.waiting) is None:
            continue
        ticket, tag = ticket_of(picture, job, stays_s), tag_of_ours(job)
        reason = ticket.message or ticket.state.value
        found.append(
            WaitingRow(job.id, user, tag.course, tag.shape, ticket.position, reason, may_end=False)
        )
    return sorted(found, key=lambda row: (row.shape, row.position or 0, row.job))


def holder_rows(
    leases: SlurmLeases, activities: Mapping[int, Activity], now: float
) -> list[HolderRow]:
    """Every server with a slice."""

    def seen(lease: LeaseView) -> str:
        activity = activities.get(lease.id, Activity.UNKNOWN)
        is_new = now - lease.granted_at < REPORTS_WITHIN_S
        return activity.value if is_new or activity is not Activity.UNKNOWN else SILENT

    return [
        HolderRow(
            lease,
            leases.records[lease.id].job.nodes,
            seen(lease),
            may_end=False,
            may_extend=False,
        )
        for lease in leases.live()
    ]


def strangers(picture: ClusterPicture, shown: Iterable[int]) -> Mapping[str, int]:
    """Slices that others hold, by type: other labs, other courses, other users of the cluster."""
    known = set(shown)
    held: Counter[str] = Counter()
    for job in picture.jobs.values():
        if job.gres and not job.is_pending and not job.has_ended and job.id not in known:
            held.update(job.gres)
    return held

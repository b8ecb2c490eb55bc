"""The cluster at one moment: what is free, who waits in which order, what can never run.

Pure: every page and every decision is a function of a picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from miglab_slurm.records import Node, SlurmJob, SlurmReservation
from miglab_slurm.site import SlurmShape, SlurmSite
from miglab_slurm.words import why_it_waits

DOWN = "Its nodes are down or being serviced."
BUSY = "It may have to wait: others wait for the same nodes."
RESERVED = "Others have reserved its nodes before its time limit would end."


@dataclass(frozen=True, eq=False)
class ClusterPicture:
    """Jobs and nodes of the site's partitions.

    Attributes:
        asked_at: when Slurm was asked, by the loop's clock.
        at: the same, seconds since the epoch.
        jobs: also those that have ended, for as long as Slurm remembers them.
        reservations: also those that have not begun.
        stays_s: how long slices of a type were held, the last ones that the reader saw.
    """

    asked_at: float
    at: float
    site: SlurmSite
    jobs: Mapping[int, SlurmJob] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reservations: tuple[SlurmReservation, ...] = ()
    stays_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def nodes_of(self, shape: SlurmShape) -> list[Node]:
        """The nodes of a shape's partition."""
        partition = self.site.partition_of(shape)
        return [node for node in self.nodes.values() if partition in node.partitions]

    def open_nodes(self, shape: SlurmShape) -> list[Node]:
        """The nodes on which a job of this shape could start now, were its slice free."""
        return [node for node in self.serving_nodes(shape) if node.takes_jobs]

    def serving_nodes(self, shape: SlurmShape) -> list[Node]:
        """The same, and those that are held up for a moment by a job on its way out."""
        return [node for node in self.up_nodes(shape) if not self._is_reserved(node, shape)]

    def up_nodes(self, shape: SlurmShape) -> list[Node]:
        """Those that are neither down nor drained, whoever has reserved them."""
        partition = self.site.partition_of(shape)
        nodes = self.nodes_of(shape)
        return [node for node in nodes if node.will_take_jobs and node.partitions[partition]]

    def _is_reserved(self, node: Node, shape: SlurmShape) -> bool:
        """Whether somebody else has reserved a node before a job that began now would be over."""
        until = self.at + shape.time_limit_min * 60
        return (node.is_reserved and not shape.reservation) or any(
            node.name in each.nodes and each.begins_at < until and self.at < each.ends_at
            for each in self.reservations
            if each.name != shape.reservation
        )

    def why_nothing_starts(self, shape: SlurmShape) -> str:
        """Why no job of this shape can start now, whatever is free; empty if one could."""
        up = [
            node
            for node in self.up_nodes(shape)
            if node.total.get(shape.gres_type, 0) >= shape.count
        ]
        if not up:
            return DOWN
        if all(self._is_reserved(node, shape) for node in up):
            return RESERVED
        return "" if shape.gres or self.starts_at_once(shape) else BUSY

    def free(self, shape: SlurmShape) -> int:
        """How many jobs of this shape could start now: each has all its slices on one node."""
        return sum(node.free(shape.gres_type) // shape.count for node in self.open_nodes(shape))

    def total(self, shape: SlurmShape) -> int:
        """How many jobs of this shape the partition holds when all of it is free and up."""
        return sum(
            node.total.get(shape.gres_type, 0) // shape.count for node in self.nodes_of(shape)
        )

    def why_never(self, shape: SlurmShape) -> str:
        """Why a job of this shape cannot run, in words; empty if it can."""
        if not self.nodes_of(shape):
            partition = self.site.partition_of(shape)
            return f"Slurm has no partition “{partition}”, or no node in it."
        if self.is_closed(shape):
            return "The partition is closed now."
        if shape.gres and not self.total(shape):
            return "No node of this site has such a slice."
        return ""

    def is_closed(self, shape: SlurmShape) -> bool:
        """Whether the nodes of its partition take no jobs now, of any shape."""
        partition = self.site.partition_of(shape)
        nodes = self.nodes_of(shape)
        return bool(nodes) and not any(node.partitions[partition] for node in nodes)

    def queue(self, shape: SlurmShape) -> list[SlurmJob]:
        """Those who wait for this shape's slices, or for no GPU either, in Slurm's own order.

        Who is held back by a limit of their own holds up nobody, and is left out.
        """
        partition = self.site.partition_of(shape)
        waiting = (
            job
            for job in self.jobs.values()
            if job.is_pending
            and partition in job.partition.split(",")
            and (shape.gres_type in job.gres if shape.gres else not job.gres)
            and not why_it_waits(job.reason).message
        )
        return sorted(waiting, key=lambda job: (-job.priority, job.id))

    def starts_at_once(self, shape: SlurmShape) -> bool:
        """Whether a job of this shape that is submitted now starts now.

        Backfill plans whole nodes for those who wait, whatever slice they wait for: who comes later
        starts at once only where their time limit ends before the first planned start.
        """
        if not self.open_nodes(shape) or (
            shape.gres and self.free(shape) <= len(self.queue(shape))
        ):
            return False
        ends = self.at + shape.time_limit_min * 60
        names = {node.name for node in self.nodes_of(shape)}
        shared = {
            name for node in self.nodes.values() if node.name in names for name in node.partitions
        }
        return all(
            job.started_at is not None and job.started_at >= ends
            for job in self.jobs.values()
            if job.is_pending
            and shared & set(job.partition.split(","))
            and not why_it_waits(job.reason).message
        )

    def holders(self, shape: SlurmShape) -> list[SlurmJob]:
        """The jobs that hold slices of this shape's type on nodes that serve it.

        One that is completing holds none: Slurm counts its slice as free already.
        """
        names = {node.name for node in self.serving_nodes(shape)}
        return [
            job
            for job in self.jobs.values()
            if job.nodes in names
            and not job.has_ended
            and job.state != "COMPLETING"
            and shape.gres_type in job.gres
        ]

    def own(self, user: str | None = None, server: str | None = None) -> Iterator[SlurmJob]:
        """The lab's jobs that Slurm has not ended; of one user, of one server."""
        for job in self.jobs.values():
            if (
                job.tag is not None
                and not job.has_ended
                and user in (None, job.tag.user)
                and server in (None, job.tag.server)
            ):
                yield job

"""The cluster at one moment, and what it says: what is free, who waits and how long, what is held.

Pure: every page and every decision is a function of a picture.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from miglab_api.wording import duration
from miglab_slurm.counting import UNKNOWN_RULES, SlurmRules
from miglab_slurm.lab import SlurmShape, SlurmSite
from miglab_slurm.nodes import Node, SlurmReservation
from miglab_slurm.records import SlurmJob, Tag, hosts_of
from miglab_slurm.room import ShapeRoom
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
        rules: how Slurm counts what a job takes of a node.
    """

    asked_at: float
    at: float
    site: SlurmSite
    jobs: Mapping[int, SlurmJob] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reservations: tuple[SlurmReservation, ...] = ()
    stays_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rules: SlurmRules = UNKNOWN_RULES

    def room(self, shape: SlurmShape) -> ShapeRoom:
        """How many jobs of a shape fit on a node."""
        return ShapeRoom(shape, self.site.partition_of(shape), self.rules)

    def nodes_of(self, shape: SlurmShape) -> list[Node]:
        """The nodes of a shape's partition on which the site lets it run."""
        options = self.site.further_options(shape)
        nodes = self._partition_of(shape)
        return [node for node in nodes if options.admits(node.name, node.features)]

    def _partition_of(self, shape: SlurmShape) -> list[Node]:
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
        reservation = self.site.further_options(shape).reservation
        return (node.is_reserved and not reservation) or any(
            node.name in other.nodes and other.begins_at < until and self.at < other.ends_at
            for other in self.reservations
            if other.name != reservation
        )

    def why_nothing_starts(self, shape: SlurmShape) -> str:
        """Why no job of this shape can start now, whatever is free; empty if one could."""
        room = self.room(shape)
        up = [node for node in self.up_nodes(shape) if room.capacity_of(node)]
        if not up:
            return DOWN
        if all(self._is_reserved(node, shape) for node in up):
            return RESERVED
        return "" if shape.gres or self.starts_at_once(shape) else BUSY

    def free(self, shape: SlurmShape) -> int:
        """How many jobs of this shape there is room for now: each is on one node."""
        return sum(map(self.room(shape).free_on, self.open_nodes(shape)))

    def starting(self, shape: SlurmShape) -> int:
        """How many would start now that are submitted now: nobody's planned start is in the way."""
        return sum(map(self.room(shape).free_on, self.starting_nodes(shape)))

    def total(self, shape: SlurmShape) -> int:
        """How many jobs of this shape the partition holds when all of it is free and up."""
        return sum(map(self.room(shape).capacity_of, self.nodes_of(shape)))

    def why_never(self, shape: SlurmShape) -> str:
        """Why a job of this shape cannot run, in words; empty if it can."""
        if not self._partition_of(shape):
            partition = self.site.partition_of(shape)
            return f"Slurm has no partition “{partition}”, or no node in it."
        if self.is_closed(shape):
            return "The partition is closed now."
        if not self.total(shape):
            return f"No node of this site has such a {'slice' if shape.gres else 'server'}."
        return ""

    def is_closed(self, shape: SlurmShape) -> bool:
        """Whether the nodes of its partition take no jobs now, of any shape."""
        partition = self.site.partition_of(shape)
        nodes = self._partition_of(shape)
        return bool(nodes) and not any(node.partitions[partition] for node in nodes)

    def queue(self, shape: SlurmShape) -> list[SlurmJob]:
        """Those who wait for this shape's slices, or for no GPU either, in Slurm's own order.

        Who is held back by a limit of their own holds up nobody, and is left out.  A job that asks
        for no type may get a slice of any.
        """
        partition = self.site.partition_of(shape)
        waiting = (
            job
            for job in self.jobs.values()
            if job.is_pending
            and partition in job.partition.split(",")
            and (job.asks_for(shape.gres_type) if shape.gres else not job.gres)
            and not why_it_waits(job.reason).message
        )
        return sorted(waiting, key=lambda job: (-job.priority, job.id))

    def waiting(self, shape: SlurmShape, before: int | None = None) -> int:
        """How many jobs wait for this shape's slices, each task of an array counted.

        Args:
            shape: the shape.
            before: count only those before this job, if it is in the queue.
        """
        count = 0
        for job in self.queue(shape):
            if job.id == before:
                break
            count += job.tasks
        return count

    def starts_at_once(self, shape: SlurmShape) -> bool:
        """Whether a job of this shape that is submitted now starts now."""
        return bool(self.starting_nodes(shape))

    def starting_nodes(self, shape: SlurmShape) -> list[Node]:
        """The nodes on which a job of this shape that is submitted now would start now.

        Backfill plans whole nodes for those who wait, whatever slice they wait for: who comes later
        starts at once only where nothing is planned before their time limit would end.
        """
        nodes = list(filter(self.room(shape).free_on, self.open_nodes(shape)))
        ends = self.at + shape.time_limit_min * 60
        kept_free = {
            name
            for job in self.jobs.values()
            if job.is_pending
            and not why_it_waits(job.reason).message
            and (job.started_at is None or job.started_at < ends)
            for name in job.planned_nodes or self._possible_nodes(job)
        }
        return [node for node in nodes if node.name not in kept_free]

    def _possible_nodes(self, job: SlurmJob) -> set[str]:
        """Where a job could be that Slurm has no plan for: the nodes that have what it asks for."""
        partitions = set(job.partition.split(","))
        return {
            node.name
            for node in self.nodes.values()
            if partitions & set(node.partitions)
            and all(
                any(f"{name}:".startswith(f"{type_}:") for name in node.total) for type_ in job.gres
            )
        }

    def is_behind_own_server(self, job: SlurmJob) -> bool:
        """Whether a job that waits can start only once the server meanwhile has ended.

        A limit of one person (`MaxJobsPerUser=1`) counts the server without a GPU as well, on which
        a student works while the job waits for a slice.
        """
        tag = tag_of(job)
        return why_it_waits(job.reason).counts_servers and any(
            other.holds and other.id != job.id for other in self.lab_jobs(tag.user, tag.server)
        )

    def why_slow(self, shape: SlurmShape) -> str:
        """Why a start takes long although it begins at once; empty if it does not."""
        nodes = self.starting_nodes(shape)
        if not nodes or not all(node.is_off for node in nodes):
            return ""
        return f"its nodes are switched off to save power: a start takes {self._boot_time()}"

    def boot_message(self, job: SlurmJob) -> str:
        """What its student reads while the node of a job is being switched on; else empty."""
        nodes = (self.nodes.get(name) for name in hosts_of(job.nodes))
        if not any(node is not None and node.is_off for node in nodes):
            return ""
        return f"The node of your server is being switched on, which takes {self._boot_time()}."

    def _boot_time(self) -> str:
        if self.rules.resume_timeout_s is None:
            return "some minutes"
        return f"up to {duration(self.rules.resume_timeout_s)}"

    def holders(self, shape: SlurmShape) -> list[tuple[SlurmJob, int]]:
        """The jobs that hold slices of this shape's type on nodes that serve it, and how many.

        One that is completing holds none: Slurm counts its slice as free already.  Of jobs that
        asked for no type nothing tells what they got: it is what no other job explains.
        """
        serving, gres_type = self.serving_nodes(shape), shape.gres_type
        names = {node.name for node in serving}
        jobs = [
            (job, job.asks_for(gres_type))
            for job in self.jobs.values()
            if not job.is_pending and not job.has_left and names & set(hosts_of(job.nodes))
        ]
        holders = [(job, count) for job, count in jobs if gres_type in job.gres]
        unexplained = sum(node.used.get(gres_type, 0) for node in serving)
        unexplained -= sum(count for _, count in holders)
        for job, count in jobs:
            if gres_type not in job.gres and (slices := min(count, unexplained)) > 0:
                holders.append((job, slices))
                unexplained -= slices
        return holders

    def of_ticket(self, ticket: str) -> SlurmJob | None:
        """The lab's job of a submission; None where there is none, or its number is another's."""
        jobs = (job for job in self.jobs.values() if job.tag is not None)
        return next((job for job in jobs if tag_of(job).ticket == ticket), None)

    def lab_jobs(self, user: str | None = None, server: str | None = None) -> Iterator[SlurmJob]:
        """The lab's jobs that Slurm has not ended; of one user, of one server."""
        for job in self.jobs.values():
            if (
                job.tag is not None
                and not job.has_ended
                and user in (None, job.tag.user)
                and server in (None, job.tag.server)
            ):
                yield job


def tag_of(job: SlurmJob) -> Tag:
    """The tag of a job that is known to have one."""
    assert job.tag is not None
    return job.tag

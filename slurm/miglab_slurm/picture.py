"""The cluster at one moment, and what it says: what is free, who waits and how long, what is held.

Pure: every page and every decision is a function of a picture.  A job is told as the ticket or the
lease that the pages know.

Its wait is estimated from the ends of those who hold slices, and observed stays.  `squeue --start`
is right for the first of a node only: backfill plans whole nodes, and takes every job for as long
as its time limit.  Here slices of a type become free one by one, in many futures that are drawn
from observed stays as the pool draws them; nine in ten end within the range.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketState, TicketView, WaitEstimate
from miglab_api.wording import duration, ordinal
from miglab_slurm.lab import SlurmShape, SlurmSite
from miglab_slurm.nodes import Node, SlurmReservation
from miglab_slurm.records import SlurmJob, Tag, hosts_of
from miglab_slurm.room import capacity_of, free_on, free_slices
from miglab_slurm.states import LOST
from miglab_slurm.words import why_it_ended, why_it_is_not_there, why_it_waits

DOWN = "Its nodes are down or being serviced."
BUSY = "It may have to wait: others wait for the same nodes."
RESERVED = "Others have reserved its nodes before its time limit would end."
GONE = "Your job is no longer in Slurm's queue. Start again."
SERVER_FIRST = (
    "You may run no further job beside this server, so your slice can start only after this server "
    "has ended."
)
FREE_AFTER_IT = (
    f"A {{shape}} is free now. {SERVER_FIRST} Restart with it: this server ends first, and its "
    "notebooks are saved. If somebody is faster, you wait in the queue at your position."
)
QUEUE_AFTER_IT = (
    f"{SERVER_FIRST} It would be {{place}} in the queue now, and whoever comes later may be served "
    "first. To wait in your turn, stop this server and ask for {shape} again at once: your "
    "position is kept."
)
LEAST_STAYS = 5
"""Fewer observed stays say nothing."""
LATE_S = 60.0
"""Time limits are looked at every 30 s, then the job gets KillWait; then backfill must come by."""
FUTURES = 60
QUANTILES = (0.05, 0.5, 0.95)

Range = tuple[float, float, float]
"""Low, likely, high: seconds from the picture on."""
Stays = Callable[[float, float], float]
"""How much longer a job stays that has run so long and may run so much longer, in one future."""


@dataclass(frozen=True, eq=False)
class ClusterPicture:
    """Jobs and nodes of the site's partitions.

    Attributes:
        asked_at: when Slurm was asked, by the loop's clock.
        at: the same, seconds since the epoch.
        jobs: also those that have ended, for as long as Slurm remembers them.
        reservations: also those that have not begun.
        stays_s: how long slices of a type were held, the last ones that the reader saw.
        resume_timeout_s: how long a node that is off may take to boot; None if it is not known.
    """

    asked_at: float
    at: float
    site: SlurmSite
    jobs: Mapping[int, SlurmJob] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reservations: tuple[SlurmReservation, ...] = ()
    stays_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    resume_timeout_s: float | None = None

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
        up = [node for node in self.up_nodes(shape) if capacity_of(node, shape)]
        if not up:
            return DOWN
        if all(self._is_reserved(node, shape) for node in up):
            return RESERVED
        return "" if shape.gres or self.starts_at_once(shape) else BUSY

    def free(self, shape: SlurmShape) -> int:
        """How many jobs of this shape there is room for now: each is on one node."""
        return sum(free_on(node, shape) for node in self.open_nodes(shape))

    def starting(self, shape: SlurmShape) -> int:
        """How many would start now that are submitted now: nobody's planned start is in the way."""
        return sum(free_on(node, shape) for node in self.starting_nodes(shape))

    def total(self, shape: SlurmShape) -> int:
        """How many jobs of this shape the partition holds when all of it is free and up."""
        return sum(capacity_of(node, shape) for node in self.nodes_of(shape))

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
        nodes = [node for node in self.open_nodes(shape) if free_on(node, shape)]
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

    def ends_first(self, job: SlurmJob) -> bool:
        """Whether a job that waits can start only once the server meanwhile has ended.

        A limit of one person (`MaxJobsPerUser=1`) counts the server without a GPU as well, on which
        a student works while the job waits for a slice.
        """
        tag = tag_of_ours(job)
        return why_it_waits(job.reason).counts_servers and any(
            other.holds and other.id != job.id for other in self.own(tag.user, tag.server)
        )

    def why_slow(self, shape: SlurmShape) -> str:
        """Why a start takes long although it begins at once; empty if it does not."""
        nodes = self.starting_nodes(shape)
        if not nodes or not all(node.is_off for node in nodes):
            return ""
        return f"its nodes are switched off to save power: a start takes {self._boot_time()}"

    def boots(self, job: SlurmJob) -> str:
        """What its student reads while the node of a job is being switched on; else empty."""
        nodes = (self.nodes.get(name) for name in hosts_of(job.nodes))
        if not any(node is not None and node.is_off for node in nodes):
            return ""
        return f"The node of your server is being switched on, which takes {self._boot_time()}."

    def _boot_time(self) -> str:
        if self.resume_timeout_s is None:
            return "some minutes"
        return f"up to {duration(self.resume_timeout_s)}"

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
        return next((job for job in jobs if tag_of_ours(job).ticket == ticket), None)

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


# -- a job as the pages know it --------------------------------------------------------------------


def ticket_of(picture: ClusterPicture, job: SlurmJob) -> TicketView:
    """A job of ours as a ticket: its position by Slurm's order, and our own estimate."""
    tag, site = tag_of_ours(job), picture.site
    shape = site.shapes.get(tag.shape)
    words = why_it_waits(job.reason)
    state, reason, message = _state(job, shape)
    position, waiting, wait = None, 0, None
    if shape is not None and job.is_pending and state is TicketState.WAITING:
        message = words.message
        if message and job.started_at is not None:
            message += f" Slurm plans its start in {duration(job.started_at - picture.at)}."
        if not words.is_limit:  # else it is in no queue
            position = picture.waiting(shape, before=job.id) + 1
            waiting = max(picture.waiting(shape), position)
        if not message:
            wait = estimate(picture, shape, job.id)
        if picture.ends_first(job):
            state, message = _after_the_server(picture, job, shape)
    if state is TicketState.WAITING and not job.is_pending:
        message = picture.boots(job) or why_it_is_not_there(job.state)
    is_offered = state is TicketState.OFFERED
    return TicketView(
        id=job.id,
        user=tag.user,
        server=tag.server,
        course=tag.course,
        shape=tag.shape,
        state=state,
        position=position,
        waiting=waiting,
        estimate=wait,
        created_at=job.submitted_at,
        expires_at=(job.started_at or picture.at) + site.offer_s if job.is_running else None,
        reason=reason,
        message=message,
        lease=job.id if is_offered else None,
    )


def _after_the_server(
    picture: ClusterPicture, job: SlurmJob, shape: SlurmShape
) -> tuple[TicketState, str]:
    """A job that its student's own server holds up: what can be had once that has ended.

    While nobody else waits, a free slice can be taken.  Otherwise Slurm gives each slice that gets
    free to the next in the queue, in which this job is not.
    """
    name = tag_of_ours(job).shape
    if picture.starts_at_once(shape):
        return TicketState.OFFERED, FREE_AFTER_IT.format(shape=name)
    before = (other.tasks for other in picture.queue(shape) if other.priority >= job.priority)
    place = ordinal(sum(before) + 1)
    return TicketState.WAITING, QUEUE_AFTER_IT.format(shape=name, place=place)


def lease_of(job: SlurmJob) -> LeaseView:
    """A job that runs, as what a server holds; Slurm's cgroup is the fence, so it has no UUIDs."""
    tag = tag_of_ours(job)
    return LeaseView(
        id=job.id,
        ticket=job.id,
        generation=0,
        user=tag.user,
        server=tag.server,
        course=tag.course,
        shape=tag.shape,
        state=LeaseState.GRANTED,
        granted_at=job.started_at or job.submitted_at,
        ends_at=job.ends_at,
    )


def ticket_gone(job: int) -> TicketView:
    """A ticket of which Slurm knows nothing any more."""
    return TicketView(
        id=job, user=None, server=None, course="", shape="", state=TicketState.EXPIRED,
        created_at=0, reason="job-gone", message=GONE,
    )  # fmt: skip


def tag_of_ours(job: SlurmJob) -> Tag:
    """The tag of a job that is known to have one."""
    assert job.tag is not None
    return job.tag


def _state(job: SlurmJob, shape: SlurmShape | None) -> tuple[TicketState, str, str]:
    """A job's state as a ticket's, with the reason and the words for one that is over."""
    if job.is_running:
        return TicketState.OFFERED, "", ""
    if job.state == "CANCELLED":
        return TicketState.CANCELLED, "cancelled", "Your job was cancelled. Start again."
    if job.state == LOST:
        return TicketState.EXPIRED, "job-gone", GONE
    if job.has_left:
        said = why_it_ended(job.state, shape.time_limit_min if shape else 0)
        return TicketState.EXPIRED, "job-ended", said or "Your job ended before your server began."
    if why_it_waits(job.reason).never:
        return TicketState.REFUSED, "never-runs", why_it_waits(job.reason).message
    return TicketState.WAITING, "", ""


# -- how long it is likely to wait -----------------------------------------------------------------


def estimate(picture: ClusterPicture, shape: SlurmShape, job: int | None) -> WaitEstimate | None:
    """How long a job waits from the picture on; None for one that asks now: behind all others.

    Returns:
        None for no GPU, and where no slice of the type is on a node that takes jobs.
    """
    if not shape.gres:
        return None
    stays_s = picture.stays_s.get(shape.gres_type, ())
    enough = len(stays_s) >= LEAST_STAYS
    waits = _waits(picture, shape, tuple(stays_s) if enough else ())
    found = waits.get(job, waits[None])
    if found is None:
        return None
    low, likely, high = found
    basis = (
        f"from {len(stays_s)} earlier stays" if enough else "from the time limits of those ahead"
    )
    return WaitEstimate(low_s=low, likely_s=likely, high_s=high + LATE_S, basis=basis)


@lru_cache(maxsize=16)
def _waits(
    picture: ClusterPicture, shape: SlurmShape, stays_s: tuple[float, ...]
) -> Mapping[int | None, Range | None]:
    """The range of everybody who waits for a shape, and of one who would ask now, once a picture.

    It is None for who can never be served on the nodes that serve now.
    """
    held_s = [_held_s(picture, job) for job, _ in picture.holders(shape)]
    futures = [_starts(picture, shape, stays) for stays in _futures(stays_s, held_s)]
    names: list[int | None] = [*(job.id for job in picture.queue(shape)), None]
    found: dict[int | None, Range | None] = dict.fromkeys(names)
    for name, *starts in zip(names, *futures, strict=True):
        known = sorted(start for start in starts if start is not None)
        if len(known) == len(futures):
            low, likely, high = (known[round(each * (len(known) - 1))] for each in QUANTILES)
            found[name] = low, likely, high
    return found


def _futures(stays_s: Sequence[float], held_s: Sequence[float]) -> Iterator[Stays]:
    """Draws of observed stays; without any: all leave now, half-way to their limit, or at it."""
    if not stays_s:
        yield from (_fraction(part) for part in (0.0, 0.5, 1.0))
        return
    # Only here: every hub loads this package's spawner, and the pool's code only where it is used.
    from miglab_pool.queue.estimate import LeaseLengths

    seen = [*((stay, True) for stay in stays_s), *((stay, False) for stay in held_s)]
    lengths = LeaseLengths(seen, random.Random(len(stays_s)))  # noqa: S311 -- no secret
    for _ in range(FUTURES):
        yield lambda held_s, limit_s: min(limit_s, lengths.draw(beyond_s=held_s) - held_s)


def _starts(picture: ClusterPicture, shape: SlurmShape, stays: Stays) -> Sequence[float | None]:
    """When each of the queue has its slices in one future, and last one who would ask now."""
    nodes, gres_type = picture.serving_nodes(shape), shape.gres_type
    free_at = [0.0 for node in nodes for _ in range(free_slices(node, shape))]
    for holder, count in picture.holders(shape):
        left_s = max(0.0, (holder.ends_at or picture.at) - picture.at)
        free_at += [stays(_held_s(picture, holder), left_s)] * count
    heapq.heapify(free_at)
    found: list[float | None] = []
    for job in picture.queue(shape):
        count = job.asks_for(gres_type)
        begins = [_serve(free_at, count, stays, shape) for _ in range(job.tasks)]
        found.append(begins[0])
    return [*found, _take(free_at, shape.count)]


def _serve(free_at: list[float], count: int, stays: Stays, shape: SlurmShape) -> float | None:
    """When a job gets so many slices, which are taken until it leaves."""
    begins = _take(free_at, count)
    if begins is not None:
        ends = begins + stays(0.0, shape.time_limit_min * 60.0)
        for _ in range(count):
            heapq.heappush(free_at, ends)
    return begins


def _held_s(picture: ClusterPicture, job: SlurmJob) -> float:
    return max(0.0, picture.at - (job.started_at or picture.at))


def _take(free_at: list[float], count: int) -> float | None:
    """When so many slices are free; they are taken."""
    if len(free_at) < count:
        return None
    return max(heapq.heappop(free_at) for _ in range(count))


def _fraction(part: float) -> Stays:
    return lambda _held_s, limit_s: part * limit_s


def stays_of(before: Mapping[int, SlurmJob], after: Mapping[int, SlurmJob]) -> list[SlurmJob]:
    """The jobs that ran in the one picture and run no more in the other."""
    ran = [after.get(job.id, job) for job in before.values() if job.is_running]
    return [job for job in ran if job.id not in after or job.has_left]

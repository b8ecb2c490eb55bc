"""The jobs of students' servers as leases: warned, kept, lengthened, asked back.

Has the methods of the pool's own leases that the reclaimer and the student's listener use.  Decides
by one picture and memory; what Slurm is to do is noted in `commands`, and done by the runner.

A service that is started anew knows of no warning: each begins anew, and nothing is reclaimed
before its server has reported again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState, LeaseView, LeaseWarning, WarningKind
from miglab_api.line import LeaseEnd
from miglab_api.staff import is_holder
from miglab_pool.leases.views import ActivitySpan, LeaseCase
from miglab_pool.refused import Refused
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.picture import ClusterPicture, tag_of
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.submissions import Stay, has_signed_form
from miglab_slurm.views import lease_of
from miglab_slurm.words import AT_LIMIT, SOONER

REMEMBERED = 500
"""So many ends are remembered, for the hub to tell their students why."""
MOVED_S = 30.0
"""Slurm itself corrects an end by a few seconds."""


@dataclass(frozen=True)
class JobRecord:
    """What is remembered of one server's job.

    Attributes:
        job: as Slurm said last.
        seen_at: since when it is known to be this server's, by the service's clock.
        end_reason: why it ends when it does.
        warning: what its student is warned of; None for nothing.
        keepalives: how often "I am still here" was said since work was last seen.
        stay_until: until when the last one counts.
        release_at: when somebody asked for it back; None if nobody did.
        reason: why, in words for its student.
        is_given_back: whether it was the student who asked.
    """

    job: SlurmJob
    seen_at: float
    end_reason: str = AT_LIMIT
    warning: LeaseWarning | None = None
    keepalives: int = 0
    stay_until: float | None = None
    release_at: float | None = None
    reason: str = ""
    is_given_back: bool = False

    @property
    def state(self) -> LeaseState:
        """As leases have it."""
        if self.release_at is not None:
            return LeaseState.RELEASING
        return LeaseState.RUNNING if self.warning is None else LeaseState.WARNED

    def stay(self, tag: Tag, until: float) -> Stay:
        """What is kept of it when its server is over."""
        gres = ",".join(f"{type_}:{count}" for type_, count in self.job.gres.items())
        started_at = self.job.started_at or self.seen_at
        return Stay(
            self.job.id, tag.user, tag.server, tag.course, tag.shape, gres,
            started_at, max(started_at, until),
        )  # fmt: skip

    def with_job(self, job: SlurmJob) -> "JobRecord":
        """The same with Slurm's latest word; an end that came nearer has another reason."""
        before, now = self.job.ends_at, job.ends_at
        reason = self.end_reason
        if before is not None and now is not None and abs(now - before) > MOVED_S:
            reason = SOONER if now < before else AT_LIMIT
        return replace(self, job=job, end_reason=reason)


@dataclass(frozen=True)
class EndedLease:
    """A lease that is over, or whose job Slurm was told to cancel.

    Attributes:
        tag: says which job it was: its number can come again.
        lease: as it was then.
    """

    tag: Tag
    lease: LeaseView


@dataclass(frozen=True)
class ServerJobs:
    """The jobs of one server.

    Attributes:
        running: the server itself; None while there is none.
        waiting: its place in the queue, or what is offered to it; None for none.
    """

    running: SlurmJob | None = None
    waiting: SlurmJob | None = None


def jobs_of_server(picture: ClusterPicture, user: str, server: str) -> ServerJobs:
    """The jobs of one server.

    Of two that run, one is the server, on which its student works without a GPU, and the other has
    just been given what was waited for.
    """
    jobs = [job for job in picture.lab_jobs(user, server) if not job.has_left]
    running = sorted(
        (job for job in jobs if not job.is_pending),
        key=lambda job: (bool(job.gres), job.started_at or 0.0, job.id),
    )
    pending = [job for job in jobs if job.is_pending]
    waiting = [*running[1:], *pending]
    return ServerJobs(running[0] if running else None, waiting[0] if waiting else None)


def all_servers(picture: ClusterPicture) -> Iterator[tuple[str, str, ServerJobs]]:
    """Every student's every server: user, server, jobs."""
    tags = {job.tag for job in picture.lab_jobs() if job.tag is not None}
    for user, server in sorted({(tag.user, tag.server) for tag in tags}):
        yield user, server, jobs_of_server(picture, user, server)


@dataclass(frozen=True)
class SlurmCommand:
    """A command that changes something.

    Attributes:
        arguments: the command and its arguments.
        account: as whom it runs; empty for the service's own account.
        numbered: the job that the arguments name by nothing but its number, which is compared just
            before; None where Slurm compares more than the number.
    """

    arguments: tuple[str, ...]
    account: str = ""
    numbered: SlurmJob | None = None


def time_limit_of(job: SlurmJob, limit_min: int) -> SlurmCommand:
    """Set a job's time limit, and no other's.

    `scontrol update` knows a job by its number, or by name and account.  A signed name is this
    start's alone.  One that a `job_submit` plugin gave may be that of all of the account's jobs, so
    such a job is known by its number, which the runner compares with the job's identity first.
    """
    limit = f"TimeLimit={limit_min}"
    if has_signed_form(job.name):
        condition = (f"JobName={job.name}", f"UserID={job.account}")
        return SlurmCommand(("scontrol", "update", *condition, limit))
    return SlurmCommand(("scontrol", "update", f"JobId={job.id}", limit), numbered=job)


class SlurmLeases:
    """See the module.

    Args:
        settings: lab.toml.
        now: seconds since the epoch.
    """

    samples = 0

    def __init__(self, settings: SlurmSettings, now: Callable[[], float] = time.time) -> None:
        self._settings, self._site = settings, settings.slurm_site
        self._now = now
        self.picture: ClusterPicture | None = None
        self.records: dict[int, JobRecord] = {}
        self.over: dict[int, EndedLease] = {}
        self.commands: list[SlurmCommand] = []

    def update(self, picture: ClusterPicture) -> list[JobRecord]:
        """Take in a picture; returns the records of the servers that are over."""
        self.picture = picture
        servers = [jobs.running for _, _, jobs in all_servers(picture) if jobs.running is not None]
        holders = [job for job in picture.lab_jobs() if job.gres and job.holds]
        running = {job.id: job for job in (*servers, *holders)}
        ended = [
            record
            for number, record in self.records.items()
            if number not in running or running[number].tag != record.job.tag
        ]
        for record in ended:
            del self.records[record.job.id]
            if self._end_of(record.job) is None:
                self._remember(record.job, self._view(record))
        for number, job in running.items():
            before = self.records.get(number)
            is_same_job = before is not None and before.job.tag == job.tag
            self.records[number] = (
                before.with_job(job) if before and is_same_job else JobRecord(job, self._now())
            )
        return ended

    # -- reading -------------------------------------------------------------------------------

    def live(self) -> list[LeaseView]:
        """The servers with a slice."""
        return [self._view(record) for record in self.records.values() if record.job.gres]

    def to_stop(self) -> list[LeaseView]:
        """Those that are asked back.

        A job can run, and be seen, before its student moves to it.  So what a server must not be
        younger than is the latest picture, in which the job is still that student's server; one
        that was started later may be another job, and the next picture knows.
        """
        seen_at = self.picture.at if self.picture is not None else 0.0
        return [
            self._view(record).model_copy(update={"attached_at": seen_at})
            for record in self.records.values()
            if record.release_at is not None
        ]

    def lease_cases(self) -> Sequence[LeaseCase]:
        """The same, as the reclaimer looks at them."""
        return [
            LeaseCase(
                self._view(record),
                record.job.started_at or record.seen_at,
                record.keepalives,
                record.stay_until,
                end_reason=record.end_reason,
            )
            for record in self.records.values()
            if record.job.gres and record.state is not LeaseState.RELEASING
        ]

    def lease_of_server(self, user: str, server: str) -> LeaseView | None:
        """The lease of one server; None for one without a GPU, also while it is offered a slice."""
        if self.picture is None:
            return None
        job = jobs_of_server(self.picture, user, server).running
        record = self.records.get(job.id) if job is not None else None
        return self._view(record) if record is not None and record.job.gres else None

    def ends_since(self, user: str, since: float) -> tuple[LeaseEnd, ...]:
        """Nothing: of an end only its words are remembered, and not its moment."""
        return ()

    def find(self, number: int) -> LeaseView:
        """One lease, live or lately over; of two jobs of one number, the one that runs.

        Raises:
            Refused: there is none.
        """
        record = self.records.get(number)
        lease = self._end_of(record.job) if record is not None else self._last_end_of(number)
        return self.find_live(number) if lease is None else lease

    def find_live(self, number: int) -> LeaseView:
        """The lease of a job that runs: the one on which `release` and `extend` act.

        Raises:
            Refused: no server runs as this job.
        """
        return self._view(self._record(number))

    # -- by the holder -------------------------------------------------------------------------

    def keepalive(self, number: int, actor: str) -> LeaseView:
        """The holder is still there: ends an idle warning; without one nothing happens.

        Raises:
            Refused: ``no-keepalive``: said too often, or the end is not about being idle.
        """
        record, limits = self._record(number), self._settings.reclaim
        warning = record.warning
        if warning is None:
            return self._view(record)
        if warning.kind is not WarningKind.IDLE:
            message = f"That does not put this end off: {warning.reason} Save your work in time."
            raise Refused("no-keepalive", message)
        if record.keepalives >= limits.keepalives:
            message = (
                f"You have said so {record.keepalives} times, and nothing has run since. Run "
                "something on the slice, or save your work: somebody else may need it."
            )
            raise Refused("no-keepalive", message)
        until = self._now() + limits.still_here_s
        return self._put(
            replace(record, warning=None, keepalives=record.keepalives + 1, stay_until=until)
        )

    def extend(self, number: int, by_s: float, actor: str) -> LeaseView:
        """Lengthen a job, as often as its student may.

        Raises:
            Refused: ``no-extension``, with why.
        """
        record = self._record(number)
        extensions_left = self._extensions_left(record)
        if not self._site.operator:
            message = (
                "On this cluster only its operators can lengthen a running job. Save your work."
            )
            raise Refused("no-extension", message)
        if not extensions_left:
            raise Refused("no-extension", "It has been extended as often as it may be.")
        return self.extend_as_staff(number, min(by_s, self._settings.pool.extension_s), actor)

    def extend_as_staff(self, number: int, by_s: float, actor: str) -> LeaseView:
        """Lengthen a job, as staff.

        Raises:
            Refused: ``no-extension``: the lab's account is no Operator.
        """
        record = self._record(number)
        started_at, ends_at = record.job.started_at, record.job.ends_at
        if not self._site.operator or started_at is None or ends_at is None:
            message = "The lab's Slurm account is no Operator, so it can lengthen no job."
            raise Refused("no-extension", message)
        minutes = max(1, round(by_s / 60))
        limit_min = round((ends_at - started_at) / 60) + minutes
        self.commands.append(time_limit_of(record.job, limit_min))
        job = replace(record.job, ends_at=ends_at + minutes * 60)
        return self._put(replace(record, job=job, warning=None))

    def release(self, number: int, actor: str, reason: str) -> LeaseView:
        """Ask for a lease back: the hub is asked to stop the server, or the offer is cancelled."""
        record = self._record(number)
        if record.release_at is not None:
            return self._view(record)
        tag = tag_of(record.job)
        lease = self.lease_of_server(tag.user, tag.server)
        if lease is None or lease.id != number:
            return self.take_out(record.job, reason)
        is_given_back = is_holder(actor, tag.user, tag.server)
        released = replace(
            record, release_at=self._now(), reason=reason, is_given_back=is_given_back
        )
        return self._put(replace(released, warning=None))

    # -- by the reclaimer ----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._now()

    def needed_leases(self, idle_s: Mapping[int, float]) -> Mapping[int, str]:
        """None: Slurm ends a job at its limit, whoever needs it."""
        return {}

    def close_for_maintenance(self, reason: str, actor: str) -> None:
        """Nothing: maintenance is a reservation of Slurm's own."""

    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder."""
        record = self._record(number)
        keepalives_left = max(0, self._settings.reclaim.keepalives - record.keepalives)
        warning = LeaseWarning(
            at=self._now(),
            reclaim_at=reclaim_at,
            reason=reason,
            kind=kind,
            keepalives_left=keepalives_left,
        )
        return self._put(replace(record, warning=warning))

    def end_warning(self, number: int, actor: str, reason: str) -> LeaseView:
        """The holder keeps the lease."""
        return self._put(replace(self._record(number), warning=None))

    def move_end(
        self, number: int, reclaim_at: float, reason: str, holder_reason: str = ""
    ) -> LeaseView:
        """Give a warned holder until then."""
        record = self._record(number)
        if record.warning is None:
            return self._view(record)
        warning = record.warning.model_copy(update={"reclaim_at": reclaim_at})
        return self._put(replace(record, warning=warning))

    def note_work(self, number: int) -> None:
        """Work was seen: "I am still here" counts anew."""
        self._put(replace(self._record(number), keepalives=0, stay_until=None))

    def note_activity(self, spent: Iterable[ActivitySpan]) -> None:
        """Nothing: usage on Slurm counts whole stays."""

    def take_out(self, job: SlurmJob, reason: str) -> LeaseView:
        """Somebody takes a job out of the queue: its student is to read why."""
        command = ("scancel", f"--name={job.name}", f"--user={job.account}", str(job.id))
        self.commands.append(SlurmCommand(command, job.account))
        requested = {"release_requested_at": self._now(), "reason": reason}
        return self._remember(job, lease_of(job).model_copy(update=requested))

    def take_commands(self) -> list[SlurmCommand]:
        """What is to be done, once."""
        commands, self.commands = self.commands, []
        return commands

    # -- how it is done ------------------------------------------------------------------------

    def _record(self, number: int) -> JobRecord:
        if number not in self.records:
            raise Refused("unknown-lease", f"No server runs as job {number}.", 404)
        return self.records[number]

    def _put(self, record: JobRecord) -> LeaseView:
        self.records[record.job.id] = record
        return self._view(record)

    def _remember(self, job: SlurmJob, lease: LeaseView) -> LeaseView:
        released = lease.model_copy(update={"state": LeaseState.RELEASED})
        self.over[job.id] = EndedLease(tag_of(job), released)
        while len(self.over) > REMEMBERED:
            del self.over[next(iter(self.over))]
        return released

    def _end_of(self, job: SlurmJob) -> LeaseView | None:
        """How this very job's lease ended; None if it has not, or nobody remembers."""
        ended = self.over.get(job.id)
        return ended.lease if ended is not None and ended.tag == job.tag else None

    def _last_end_of(self, number: int) -> LeaseView | None:
        return self.over[number].lease if number in self.over else None

    def _view(self, record: JobRecord) -> LeaseView:
        extensions_left = self._extensions_left(record) if self._site.operator else 0
        return lease_of(record.job).model_copy(
            update={
                "state": record.state,
                "holder": f"slurm:{record.job.id}",
                "attached_at": record.seen_at,
                "release_requested_at": record.release_at,
                "reason": record.reason,
                "is_given_back": record.is_given_back,
                "warning": record.warning,
                "others_wait": self._others_wait(record.job),
                "extensions_left": extensions_left,
                "extension_s": self._settings.pool.extension_s if extensions_left else 0,
            }
        )

    def _extensions_left(self, record: JobRecord) -> int:
        """How often it may still be lengthened, by its limit: the service need not remember it."""
        job, pool = record.job, self._settings.pool
        shape = self._site.shapes.get(job.tag.shape) if job.tag is not None else None
        if shape is None:
            return 0
        planned_s = shape.time_limit_min * 60.0
        lasts_s = job.ends_at - job.started_at if job.ends_at and job.started_at else planned_s
        used = max(0, round((lasts_s - planned_s) / pool.extension_s))
        return max(0, pool.extensions - used)

    def _others_wait(self, job: SlurmJob) -> int:
        """How many wait for slices of the types that this job holds."""
        shape = self._site.shapes.get(job.tag.shape) if job.tag is not None else None
        if self.picture is None or shape is None or not shape.gres:
            return 0
        return self.picture.waiting(shape)

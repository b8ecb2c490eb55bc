"""The pool: who holds which slice, who waits, and what must be done next.

`Pool` is the entry point.  Its subjects change it: `Pool.tickets`, `Pool.leases`,
`Pool.reservations`, `Pool.layouts`, `Pool.staff`, `Pool.people`, `Pool.roster`; each call is a
short ledger transaction under a lock, from any thread.  Whatever only reads is computed from
`Pool.view`.  Jobs on GPUs and holders form a work list that the service performs, one job at a time
on each GPU.  After every restart, `reconcile` comes first.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from miglab_api.gpus import PoolSnapshot, ProofLoan
from miglab_api.offers import Offers
from miglab_api.usage import GroupBy
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.watched import WatchedDriver
from miglab_pool.layouts.transactions import PoolLayouts
from miglab_pool.leases import grant as grants
from miglab_pool.leases import views as pool_views
from miglab_pool.leases.requests import Tickets, expire_overdue
from miglab_pool.leases.transactions import Leases
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.room import NEEDED_BYTES, keep_room
from miglab_pool.queue import estimate, gather, longest_wait, offers
from miglab_pool.queue import order as queue
from miglab_pool.reservations import transactions as reservations
from miglab_pool.reservations.certainty import unkept_reservations
from miglab_pool.reservations.transactions import Reservations
from miglab_pool.roster.transactions import ClassRoster
from miglab_pool.settings import PoolSettings
from miglab_pool.staff.actions import Staff
from miglab_pool.staff.actions import end_expired_messages as end_old_messages
from miglab_pool.staff.log import delete_old
from miglab_pool.state import clock as clock_steps
from miglab_pool.state import invariants
from miglab_pool.state.clock import PoolClock
from miglab_pool.state.people import People
from miglab_pool.state.store import Store, Wellness
from miglab_pool.state.view import PoolView
from miglab_pool.usage.report import Period, UsageSums, read_facts, sum_facts
from miglab_pool.worker import disks, inspect_gpu, jobs, proof_loans, reconcile
from miglab_pool.worker.disks import DiskUse, read_disks
from miglab_pool.worker.holders import HostHolders
from miglab_pool.worker.inspect_gpu import Condition, Finding
from miglab_pool.worker.jobs import Job, JobKind
from miglab_pool.worker.worker import Worker

ALL_KINDS = frozenset(JobKind)

log = logging.getLogger(__name__)


class Pool:
    """All of the pool's subjects over one store.

    Attributes:
        disk_folders: where the lab writes, by what it writes there.
        disks: the file systems of these, as `watch_disks` found them last.

    Args:
        settings: the site's limits.
        ledger: open; the caller holds the lab's `PoolLock`.
        driver: the GPUs.
        holders: probes and ends containers and processes.
        now: the wall clock, seconds since the epoch.
        steady: seconds that never jump, by which a step of ``now`` and a pause of the whole process
            are noticed; None for a caller who moves the one clock at will.
    """

    def __init__(
        self,
        settings: PoolSettings,
        ledger: Ledger,
        driver: Driver | WatchedDriver,
        holders: HostHolders,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self.settings = settings
        self._clock = None if steady is None else PoolClock(now, steady)
        read = now if self._clock is None else self._clock.now
        self.store = Store(settings, ledger, read, simulated=driver.simulated)
        self.worker = Worker(self.store, driver, holders)
        self.tickets = Tickets(self.store)
        self.leases = Leases(self.store)
        self.reservations = Reservations(self.store)
        self.layouts = PoolLayouts(self.store)
        self.staff = Staff(self.store)
        self.roster = ClassRoster(self.store)
        self.people = People(self.store)
        self.people.on_rename.append(self.roster.rename)
        self.disk_folders = {disks.LEDGER: ledger.path.parent}
        self.disks: tuple[DiskUse, ...] = ()

    @property
    def version(self) -> int:
        """A number that grows with every change; long polls wait for it to grow."""
        return self.view.version

    @property
    def view(self) -> PoolView:
        """The pool at this moment, for any thread; every answer is computed from it."""
        return self.store.current

    @property
    def now(self) -> float:
        """The pool's clock, seconds since the epoch."""
        return self.store.now()

    # -- reading ------------------------------------------------------------------------------

    def offers(self, courses: Sequence[str], user: str | None = None) -> Offers:
        """The spawn page's data for these courses, with what this user's quotas leave."""
        return offers.offers(self.view, courses, user)

    def snapshot(self) -> PoolSnapshot:
        """The pool as it is, from memory; the same object until something changes."""
        return pool_views.snapshot(self.view)

    def delete_old(self) -> int:
        """Delete some of the rows that are older than the settings keep; return how many."""
        keep, store = self.settings.pool, self.store
        with store.lock:  # GPU threads write to the same connection
            deleted_count = delete_old(
                store.ledger, store.now(), keep.keep_days, keep.keep_staff_days
            )
        return deleted_count + self.roster.delete_old(keep.keep_days)

    def sample(self, gpu: str | None = None) -> None:
        """Read memory and processes of a GPU's slices, or of all; the worker's, like `perform`."""
        for uuid in self.worker.driver.uuids if gpu is None else (gpu,):
            inspect_gpu.sample(self.worker, uuid)

    def sum_usage(
        self, period: Period, group_by: GroupBy, courses: Collection[str] | None = None
    ) -> UsageSums:
        """Read the usage of a period, of these courses or of all.

        Reads only the ledger's file, from any thread, and delays no decision.
        """
        ledger = self.store.ledger.path
        with read_facts(ledger, period.since, period.until, courses) as facts:
            return sum_facts(facts, period, group_by)

    def wellness(self) -> dict[str, Wellness]:
        """Each GPU's last health reading, by UUID."""
        with self.store.lock:
            return dict(self.store.wellness)

    def condition(self) -> Condition:
        """The GPUs' present health and their history, from memory and the ledger."""
        with self.store.lock:
            return inspect_gpu.read_condition(self.worker)

    def check_invariants(self) -> list[str]:
        """Return what contradicts the invariants of `state.invariants`, in words; empty if nothing.

        The tickets that ended are read from the ledger's file, without the lock.
        """
        with self.store.lock:
            contradictions = [
                *invariants.find_contradictions(self.store),
                *unkept_reservations(self.store.view()),
            ]
        return [*contradictions, *invariants.ended_without_reason(self.store.ledger.path)]

    # -- acting -------------------------------------------------------------------------------

    def turn(self) -> None:
        """Take one turn: end whatever is overdue, and grant.  Writes to the ledger only."""
        if self._clock is not None:
            self._follow_clock(self._clock)
        with self.store.write(durable=True) as tx:
            expire_overdue(self.store, tx)
            reservations.record_phases(self.store, tx)
            reservations.extend_drawn_guarantees(self.store, tx)
            end_old_messages(self.store, tx)
            grants.grant_all(self.store, tx)
            grants.prepare_for_layouts(self.store, tx)
        self._publish_changes_of_time()

    def _follow_clock(self, clock: PoolClock) -> None:
        """Set the clock, and with it the moments that count from it, before it is used."""
        with self.store.lock:
            jump = clock.jump()
            if jump:
                log.warning("%s: every grace begins anew", jump)
                with self.store.write(durable=True) as tx:
                    clock_steps.carry_over(self.store, tx, jump.step_s)
            clock.follow()  # only now: a ledger that refuses the write is asked again next turn
            if jump:
                self.store.restart_graces(jump.step_s)
                self.worker.restart_graces(jump.step_s)

    def _publish_changes_of_time(self) -> None:
        """Publish a new view if time alone changed the queue or the GPUs."""
        with self.store.lock:
            before, now = self.store.published, self.store.view()
            is_later = before is not now and before.version == now.version
            if is_later and _state_changed_by_time(before) != _state_changed_by_time(now):
                self.store.publish_change()

    def may_have_jobs(self, kinds: frozenset[JobKind]) -> bool:
        """Whether `next_job` may find one of these; without the lock, for whoever asks often."""
        is_suspecting = JobKind.PROBE in kinds and bool(self.store.suspects)
        return is_suspecting or not kinds.isdisjoint(jobs.kinds_ahead(self.view))

    def next_job(
        self, kinds: Iterable[JobKind] = ALL_KINDS, busy: Collection[str] = ()
    ) -> Job | None:
        """Return the next job on a GPU or holder; None when nothing is due.

        Args:
            kinds: only these; a service may probe holders on a thread of its own.
            busy: GPUs for which a job is under way.
        """
        with self.store.lock:
            return jobs.next_job(self.worker, frozenset(kinds), busy)

    def perform(self, job: Job) -> None:
        """Perform a job.  A failing GPU is noted in the ledger; no error is raised."""
        jobs.perform(self.worker, job)

    def reconcile(self) -> list[Finding]:
        """Compare ledger, holders and NVML, and repair differences: all three steps in turn.

        The service performs the steps one by one, so that no GPU waits for another.
        """
        findings = self.begin_reconcile()
        inspect_gpu.read_versions(self.worker)
        for gpu in self.worker.driver.uuids:
            findings += self.inspect(gpu)
        return findings + reconcile.probe_missing_holders(self.worker)

    def begin_reconcile(self) -> list[Finding]:
        """The first step of `reconcile`: left-over containers, GPUs that are not listed now."""
        with self.store.write() as tx:
            clock_steps.carry_over(self.store, tx, 0.0)
        return reconcile.reconcile_holders(self.worker)

    def lend_for_proof(self, cause: str) -> ProofLoan:
        """Keep leases off the GPUs that nobody holds, while a `miglab prove` of this lab runs."""
        return proof_loans.lend_gpus(self.worker, cause)

    def follow_proof(self) -> list[Finding]:
        """Take back the GPUs of a `miglab prove` that is over, and inspect them."""
        lent = self.store.under_proof
        findings = proof_loans.take_back_if_over(self.worker)
        for gpu in lent - self.store.under_proof:
            findings += self.inspect(gpu)
        return findings

    def inspect(self, gpu: str) -> list[Finding]:
        """The second step, per GPU: compare it with the ledger, unless a job is under way on it."""
        with self.worker.alone_on(gpu) as is_alone:
            return inspect_gpu.inspect(self.worker, gpu) if is_alone else []

    def watch_disks(self) -> None:
        """Read how full the lab's disks are; while the ledger's is full, nothing new begins.

        Reading may hang, and holds no lock.
        """
        self.disks = tuple(read_disks(self.disk_folders))
        (ledger_disk,) = (disk for disk in self.disks if disks.LEDGER in disk.holds)
        store = self.store
        with store.lock:
            is_full = ledger_disk.is_full(was_full=bool(store.disk_full))
            if is_full is not bool(store.disk_full):
                store.disk_full = disks.FULL if is_full else ""
                log.warning("%s: %s", ledger_disk.words, store.disk_full or "there is room again")
                store.publish_change()
            if ledger_disk.free_bytes >= NEEDED_BYTES:
                keep_room(store.ledger, store.now())

    def estimate(self) -> None:
        """Estimate anew how long the tickets in the queue will wait; slow, and without the lock.

        Where there is no estimate from a history, the longest wait is told, if it is certain.  The
        random numbers are the same each time, so estimates change only if their inputs do.
        """
        view = self.view
        scene = gather.gather_input(view)
        simulated_waits = estimate.estimate_waits(scene, random.Random(0))  # noqa: S311 -- no secret
        longest_waits = longest_wait.longest_waits(view)
        waits = (
            longest_waits | simulated_waits
            if scene.has_history
            else simulated_waits | longest_waits
        )
        earlier = self.store.estimates
        estimates = gather.record_estimates(scene.usage.now, waits, earlier)
        with self.store.lock:
            self.store.estimates = estimates
            if gather.differ_in_minutes(earlier, estimates):
                self.store.publish_change()


def _state_changed_by_time(view: PoolView) -> tuple[object, ...]:
    """The part of a view that time alone changes: the queue's order, resting GPUs, closures."""
    resting = [gpu.uuid for gpu in view.gpus.values() if gpu.is_resting]
    closed = [gpu.closed for gpu in view.gpus.values()]
    return list(queue.positions(view)), resting, closed

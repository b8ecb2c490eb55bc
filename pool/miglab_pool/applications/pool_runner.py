"""Runs the synchronous pool inside an asyncio process.

Decisions (ledger only, fast) run one at a time on one thread.  What may call NVML is done for each
GPU by itself, on threads of their own, so that a GPU that hangs delays no other.  Holders are
checked on another thread, so that a slow Docker engine delays no slice.  Queries are answered from
the pool's published view, on a thread that delays none of these.  Nothing here decides.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypeVar

from miglab_api.gpus import PoolSnapshot
from miglab_api.tickets import Headcount, TicketView
from miglab_pool import settings
from miglab_pool.applications.metrics import Metrics
from miglab_pool.http.access.dependencies import RUNNER
from miglab_pool.http.runner_protocol import Notifier
from miglab_pool.pool import Pool
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.worker.disks import DiskUse
from miglab_pool.worker.inspect_gpu import Finding, read_versions
from miglab_pool.worker.jobs import Job, JobKind
from miglab_pool.worker.reconcile import probe_missing_holders

log = logging.getLogger(__name__)
_POOL, _RECLAIM = settings.Pool(), settings.Reclaim()
T = TypeVar("T")
HOLDER_JOBS = frozenset({JobKind.PROBE})
MOST_GPU_THREADS = 256  # a GPU takes one while a job runs on it or it is read
ESTIMATE_REST = 10  # times the time of an estimate, so that it costs at most a tenth of a core
GPU_JOBS = frozenset(JobKind) - HOLDER_JOBS
THREADS = ("holders", "disks", "estimates", "query-ledger", "query-view", "decide")
"""Each kind of work has a thread of its own, on which it is done one after another."""


@dataclass(frozen=True, slots=True)
class Times:
    """The periods of the pool's loops, seconds.

    Attributes:
        turn_s: between two turns while no ticket waits to be granted.
        jobs_s: between two checks for jobs that become due by time alone.
        holders_s: between two checks for servers that ended unnoticed.
        reconcile_s: between two comparisons of ledger, GPUs and holders.
        sample_s: between two readings of the slices' memory and processes.
        estimate_s: between two estimates of the waits; more if one takes long.
        reclaim_s: between two rounds of the reclaimer.
        disks_s: between two looks at how full the disks are.
        snapshot_s: how old a snapshot may be that requests get while nothing changes: times in it,
            and whether a student is asked something, depend on the moment alone.
        retention_s: between two deletions of rows that are too old.
        start_s: how long the service waits, when it starts, for all GPUs to be compared.
        stop_s: how long the service, when it ends, waits for a GPU call under way.
    """

    turn_s: float = 1.0
    jobs_s: float = 0.25
    holders_s: float = _POOL.holders_s
    reconcile_s: float = _POOL.reconcile_s
    sample_s: float = 5.0
    estimate_s: float = 3.0
    reclaim_s: float = _RECLAIM.every_s
    disks_s: float = 5.0
    snapshot_s: float = 10.0
    retention_s: float = 60.0
    start_s: float = 5.0
    stop_s: float = 10.0


class CachedSnapshot(NamedTuple):
    """The snapshot of one version of the pool, for all requests.

    Attributes:
        version: the pool's.
        made_at: when it was made, of `time.monotonic`.
        snapshot: the snapshot.
        waiting: its waiting tickets by number.
    """

    version: int
    made_at: float
    snapshot: PoolSnapshot
    waiting: Mapping[int, TicketView]


class PoolRunner:
    """The only access to the pool in this process.

    Attributes:
        notifier: wakes whoever waits for a change; its version is the pool's.
        metrics: the service's metrics.
        reclaimer: warns and reclaims; None for a pool that reclaims nothing by itself.
        last_hour: the headcount of each minute, with its moment; a restart begins anew.
        is_reconciled: whether ledger, GPUs and holders were compared since this process began.
        findings: what reconcile found at its last round.
        unknown_to_hub: the releasing leases whose servers the hub says it does not have.
    """

    def __init__(
        self,
        pool: Pool,
        metrics: Metrics,
        times: Times | None = None,
        end_servers: Callable[["PoolRunner"], Awaitable[None]] | None = None,
        reclaimer: Reclaimer | None = None,
    ) -> None:
        self.notifier = Notifier(pool.version)
        self.metrics = metrics
        self._pool = pool
        self._times = times or Times()
        self.reclaimer = reclaimer
        self._end_servers = end_servers
        self._gpu = ThreadPoolExecutor(MOST_GPU_THREADS, "miglab-gpu")
        self._threads = {name: ThreadPoolExecutor(1, f"miglab-{name}") for name in THREADS}
        self.last_hour: deque[tuple[float, Headcount]] = deque(maxlen=60)
        self._cached: CachedSnapshot | None = None
        self._caching: asyncio.Task[None] | None = None
        self._busy: set[str] = set()  # GPUs for which a job is under way
        self._sampling: set[str] = set()
        self._to_sample: Iterator[str] = iter(())
        self._background: set[asyncio.Task[None]] = set()
        self._on_gpus: set[Future[Any]] = set()
        self._failing: set[str] = set()
        self.is_reconciled = False
        self.findings: tuple[Finding, ...] = ()
        self.unknown_to_hub: frozenset[int] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []

    async def decide(self, decision: Callable[[Pool], T]) -> T:
        """Run a decision of the pool, with no other at the same time, and announce its change.

        Raises:
            Refused: the pool refuses.
            RuntimeError: the service is stopping.
        """
        return await self._run_on("decide", decision)

    async def name_of(self, user_id: str, name: str) -> str:
        """Return the pool's name for a user whom the hub called ``name``, perhaps a while ago.

        A name that another user has by now, or still has in the pool, is not given to them.
        """
        known_name = self._pool.people.name_of(user_id)
        if known_name is not None:
            return known_name
        return await self.decide(lambda pool: pool.people.name_for_hub_user(user_id, name))

    async def snapshot(self) -> PoolSnapshot:
        """Return the pool's snapshot, made for all requests: of its version, and hardly older."""
        return (await self._current()).snapshot

    async def waiting(self) -> Mapping[int, TicketView]:
        """Return the waiting tickets of the snapshot, by number."""
        return (await self._current()).waiting

    async def _current(self) -> CachedSnapshot:
        wanted_version, asked_at = self._pool.version, time.monotonic()
        oldest = asked_at - self._times.snapshot_s
        while (cached := self._cached) is None or not (
            cached.version >= wanted_version and cached.made_at >= oldest
        ):
            if self._caching is None:
                self._caching = asyncio.create_task(self._cache_snapshot())
            await asyncio.shield(self._caching)
        return cached

    async def _cache_snapshot(self) -> None:
        try:
            self._cached = await self.query_view(_cached_snapshot)
        finally:
            self._caching = None

    async def query_view(self, question: Callable[[Pool], T]) -> T:
        """Answer a query from the pool's view alone; no decision waits for it.

        Raises:
            Refused: the pool refuses.
            RuntimeError: the service is stopping.
        """
        return await self._run_on("query-view", question)

    async def query_ledger(self, question: Callable[[Pool], T]) -> T:
        """Answer a query from the ledger's file alone; it may take long, and nothing waits for it.

        Raises:
            RuntimeError: the service is stopping.
        """
        return await self._run_on("query-ledger", question)

    async def run_jobs(self, kinds: frozenset[JobKind]) -> bool:
        """Run the next job of these kinds, if any, on its thread.

        The job of a GPU goes on while jobs of other GPUs begin.

        Returns:
            Whether there was a job.
        """
        if not self._pool.may_have_jobs(kinds):
            return False
        busy = frozenset(self._busy)
        job = await self.decide(lambda pool: pool.next_job(kinds, busy))
        if job is None:
            return False
        if job.kind is JobKind.PROBE:
            await self._perform(job)
        else:
            self._busy.add(job.gpu)
            self._start_background("job", partial(self._perform, job), self._busy, job.gpu)
        return True

    async def _perform(self, job: Job) -> None:
        started = perf_counter()
        if job.kind is JobKind.PROBE:
            await self._run_on("holders", lambda pool: pool.perform(job))
        else:
            await self.on_gpu_thread(lambda pool: pool.perform(job))
        self.metrics.job_s.labels(job.kind.value).observe(perf_counter() - started)

    async def on_gpu_thread(self, work: Callable[[Pool], T]) -> T:
        """Run work that calls NVML beside everything else; the driver limits its time."""
        under_way = self._gpu.submit(work, self._pool)
        self._on_gpus.add(under_way)
        under_way.add_done_callback(self._on_gpus.discard)
        try:
            return await asyncio.wrap_future(under_way)
        finally:
            self.notifier.wake(self._pool.version)

    @property
    def gpu_call_s(self) -> float:
        """How long the oldest driver call under way has lasted, seconds; 0 if there is none."""
        return self._pool.worker.driver.longest_call_s

    @property
    def silent_servers(self) -> int:
        """How many students' servers have not reported for `reclaim.stale_s`."""
        return self.reclaimer.silent_servers if self.reclaimer else 0

    @property
    def disks(self) -> tuple[DiskUse, ...]:
        """The file systems that the lab writes to, as they were a moment ago."""
        return self._pool.disks

    @property
    def is_disk_full(self) -> bool:
        """Whether nothing is granted because the ledger's disk is full."""
        return bool(self._pool.store.disk_full)

    @property
    def is_stuck(self) -> bool:
        """Whether a driver call hangs; its GPU takes no lease."""
        return self._pool.worker.driver.is_hung

    @property
    def failing(self) -> tuple[str, ...]:
        """The loops whose last round failed, by name."""
        return tuple(sorted(self._failing))

    async def _run_on(self, thread: str, work: Callable[[Pool], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads[thread], work, self._pool)
        finally:
            self.notifier.wake(self._pool.version)

    async def start(self) -> None:
        """Compare ledger, GPUs and holders once, then start the timers.

        The start does not wait for a GPU that hangs: it is compared when it answers, and takes no
        lease before.
        """
        first = asyncio.create_task(self._reconcile())
        await asyncio.wait({first}, timeout=self._times.start_s)
        if first.done():
            first.result()
        else:
            log.warning("not every GPU has answered: the service starts without waiting for it")
            self._tasks.append(asyncio.create_task(self._finish(first)))
        await self._guard("disks", self._watch_disks)
        await self.decide(lambda pool: pool.turn())
        gpus = self._pool.worker.driver.uuids
        self._to_sample = itertools.cycle(gpus)
        times, every = self._times, self._every
        loops = [
            self._turn_loop(),
            self._job_loop("job", GPU_JOBS),
            self._job_loop("probe", HOLDER_JOBS),
            every(times.holders_s, "holders", self._ask_after_holders),
            every(times.reconcile_s, "reconcile", self._reconcile),
            every(times.sample_s / max(1, len(gpus)), "sample", self._sample_next),
            every(times.disks_s, "disks", self._watch_disks),
            every(times.estimate_s, "estimate", self._estimate),
            every(60.0, "last hour", self._record_people),
            every(times.retention_s, "retention", lambda: self.decide(lambda p: p.delete_old())),
        ]
        if self._end_servers is not None:
            loops.append(every(times.turn_s, "end servers", partial(self._end_servers, self)))
        if self.reclaimer is not None:
            look = partial(self.decide, self.reclaimer.round)
            loops.append(every(times.reclaim_s, "reclaim", look))
        self._tasks += map(asyncio.create_task, loops)

    async def stop(self) -> bool:
        """Stop the timers and end every wait.

        Returns:
            Whether all threads have ended; False if a call hangs and was left behind.
        """
        self.notifier.close()
        tasks = [*self._tasks, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        threads = (self._gpu, *self._threads.values())
        loop = asyncio.get_running_loop()
        last = {loop.run_in_executor(thread, lambda: None) for thread in threads}
        last |= {asyncio.wrap_future(work) for work in list(self._on_gpus)}
        for thread in threads:  # what was asked is answered, what is asked from now on is refused
            thread.shutdown(wait=False)
        _, busy = await asyncio.wait(last, timeout=self._times.stop_s)
        for thread in threads:
            thread.shutdown(wait=False, cancel_futures=True)
        return not busy

    async def _turn_loop(self) -> None:
        while not self.notifier.closed:
            seen_version = await self._guard("turn", lambda: self.decide(_turn))
            await self._turn_due(seen_version or self.notifier.version)

    async def _turn_due(self, seen_version: int) -> None:
        """Wait for the next turn: at once for a change while a ticket may be granted, else by time.

        An attach, a start or a report changes nothing that a turn decides, and with a class that
        comes there are ten such changes for each student.
        """
        loop = asyncio.get_running_loop()
        due_at = loop.time() + self._times.turn_s
        while (left_s := due_at - loop.time()) > 0 and not self.notifier.closed:
            version = await self.notifier.beyond(seen_version, left_s)
            if version != seen_version and self._pool.view.queued:
                return
            seen_version = version

    async def _job_loop(self, name: str, kinds: frozenset[JobKind]) -> None:
        while not self.notifier.closed:
            seen_version = self.notifier.version
            if not await self._guard(name, lambda: self.run_jobs(kinds)):
                await self.notifier.beyond(seen_version, self._times.jobs_s)

    async def _reconcile(self) -> None:
        findings = await self._run_on("holders", lambda pool: pool.begin_reconcile())
        versions = self.on_gpu_thread(lambda pool: read_versions(pool.worker))
        gpus = asyncio.gather(*map(self._inspect, self._pool.worker.driver.uuids))
        _, inspected = await asyncio.gather(versions, gpus)
        findings += [finding for gpu_findings in inspected for finding in gpu_findings]
        findings += await self._ask_after_holders()
        self.findings = tuple(findings)
        self.metrics.reconciled(self.findings)
        self.is_reconciled = True

    async def _inspect(self, gpu: str) -> list[Finding]:
        return await self.on_gpu_thread(lambda pool: pool.inspect(gpu))

    async def _finish(self, reconciling: asyncio.Task[None]) -> None:
        await self._guard("reconcile", lambda: asyncio.shield(reconciling))

    async def _ask_after_holders(self) -> list[Finding]:
        return await self._run_on("holders", lambda pool: probe_missing_holders(pool.worker))

    async def _sample_next(self) -> None:
        """Begin to read the next GPU, if its last reading has come back.

        The readings are spread over the period: 64 full GPUs, read at once, would keep the
        interpreter busy for a second, in which every request would wait.
        """
        gpu = next(self._to_sample, "")
        if gpu and gpu not in self._sampling:
            self._sampling.add(gpu)
            sample = partial(self.on_gpu_thread, lambda pool: pool.sample(gpu))
            self._start_background("sample", sample, self._sampling, gpu)

    def _start_background(
        self, name: str, step: Callable[[], Awaitable[None]], busy: set[str], gpu: str
    ) -> None:
        """Run a step in the background; its GPU leaves ``busy`` at the end."""

        async def run() -> None:
            try:
                await self._guard(name, step)
            finally:
                busy.discard(gpu)

        task = asyncio.create_task(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _estimate(self) -> None:
        """Estimate the waits on a thread of their own, then rest in proportion to its time."""
        started_s = perf_counter()
        await self._run_on("estimates", lambda pool: pool.estimate())
        await asyncio.sleep(ESTIMATE_REST * (perf_counter() - started_s))

    async def _watch_disks(self) -> None:
        await self._run_on("disks", lambda pool: pool.watch_disks())

    async def _record_people(self) -> None:
        people = (await self.snapshot()).people
        self.last_hour.append((time.time(), people))

    async def _every(self, period_s: float, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        while not self.notifier.closed:
            await asyncio.sleep(period_s)
            await self._guard(name, work)

    async def _guard(self, name: str, step: Callable[[], Awaitable[T]]) -> T | None:
        """Run one round of a loop: a failure is logged, and the next round is tried."""
        try:
            result = await step()
            self._failing.discard(name)
            return result
        except Exception:
            log.exception("%s failed; tried again", name)
            self._failing.add(name)
            self.metrics.failed_rounds.labels(name).inc()
            await asyncio.sleep(self._times.turn_s)
            return None


def _cached_snapshot(pool: Pool) -> CachedSnapshot:
    version, made_at, snapshot = pool.version, time.monotonic(), pool.snapshot()
    waiting = {ticket.id: ticket for ticket in snapshot.waiting}
    return CachedSnapshot(version, made_at, snapshot, waiting)


def _turn(pool: Pool) -> int:
    """Run one turn; return the version after it, so that no later change is overlooked."""
    pool.turn()
    return pool.version


Runner = Annotated[PoolRunner, RUNNER]
"""The runner, for the routes of the applications themselves."""

"""The process around the pool: timers, acts, errors."""

import asyncio
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
from tests.polling import until

from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner, Times
from miglab_pool.worker.jobs import Job, JobKind

from .fakes import FakePool


@dataclass
class PoolWithActs(FakePool):
    """Has one act of each kind; tells which thread did them."""

    def __post_init__(self) -> None:
        self.todo = list(JobKind)
        self.threads: dict[JobKind, str] = {}
        self.together = threading.Barrier(len(JobKind) - 1)
        self.done = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def may_have_jobs(self, kinds: frozenset[JobKind]) -> bool:
        return not kinds.isdisjoint(self.todo)

    def next_job(self, kinds: frozenset[JobKind], busy: Collection[str] = ()) -> Job | None:
        todo = (Job(kind, f"GPU-{kind}") for kind in self.todo if kind in kinds)
        return next((job for job in todo if job.gpu not in busy), None)

    def perform(self, job: Job) -> None:
        self.threads[job.kind] = threading.current_thread().name
        if job.kind is not JobKind.PROBE:
            self.together.wait(60)  # until all of them are under way
        self.todo.remove(job.kind)
        self.version += 1
        if not self.todo:
            self.loop.call_soon_threadsafe(self.done.set)


class PoolWhoseTurnFailsOnce(FakePool):
    """The first turn raises what nobody expected."""

    def turn(self) -> None:
        super().turn()
        if self.turns == 2:  # the first is taken before the timers start
            raise ZeroDivisionError
        if self.turns == 4:
            self.loop.call_soon_threadsafe(self.fourth.set)


@dataclass
class PoolThatAsksAfterHolders(FakePool):
    """Tells on which thread it did."""

    def __post_init__(self) -> None:
        self.asked, self.loop, self.thread = asyncio.Event(), asyncio.get_running_loop(), ""

    def ask_after_holders(self) -> list[Any]:
        self.thread = threading.current_thread().name
        self.loop.call_soon_threadsafe(self.asked.set)
        return []


@dataclass
class PoolStuckInADriverCall(FakePool):
    """Its reading of a GPU's slices does not return until told."""

    longest_call_s = 1.0

    def __post_init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def sample(self, gpu: str | None = None) -> None:
        self.entered.set()
        self.go_on.wait(60)


async def test_each_job_on_its_thread() -> None:
    """Jobs on different GPUs run at the same time, what asks after holders on another thread."""
    pool = PoolWithActs()
    runner = PoolRunner(pool, Metrics())  # type: ignore[arg-type]
    await runner.start()
    async with asyncio.timeout(60):
        await pool.done.wait()
    assert await runner.stop()
    asked = pool.threads.pop(JobKind.PROBE)
    assert asked.startswith("miglab-holders")
    assert len(set(pool.threads.values())) == len(pool.threads)
    assert all(name.startswith("miglab-gpu") for name in pool.threads.values())
    assert pool.names().count("begin_reconcile") >= 1


class PoolWithoutJobs(FakePool):
    """Nobody is to ask it which job is next."""

    def next_job(self, kinds: frozenset[JobKind], busy: Collection[str] = ()) -> Job | None:
        raise AssertionError("the decision thread was asked for nothing")


async def test_where_the_rows_ask_for_no_job_no_decision_is_disturbed() -> None:
    """Whether there may be a job is seen in the view, not on the thread of the decisions."""
    runner = PoolRunner(PoolWithoutJobs(), Metrics())  # type: ignore[arg-type]
    assert not await runner.run_jobs(frozenset(JobKind))
    await runner.stop()


async def test_a_failed_turn_does_not_end_the_turns() -> None:
    """An unexpected error is counted and logged, and the next turn is taken."""
    pool = PoolWhoseTurnFailsOnce()
    pool.loop, pool.fourth = asyncio.get_running_loop(), asyncio.Event()  # type: ignore[attr-defined]
    runner = PoolRunner(pool, Metrics(), Times(turn_s=0.001))  # type: ignore[arg-type]
    await runner.start()
    async with asyncio.timeout(60):
        await pool.fourth.wait()  # type: ignore[attr-defined]
    await runner.stop()
    assert runner.metrics.registry.get_sample_value(
        "miglab_failed_rounds_total", {"loop": "turn"}
    ) == pytest.approx(1)


class PoolWhoseTurnsFail(FakePool):
    """Every turn raises until it is mended, but for the one before the timers start."""

    is_mended = False

    def turn(self) -> None:
        super().turn()
        if self.turns > 1 and not self.is_mended:
            raise ZeroDivisionError


async def test_a_loop_that_fails_is_known_until_it_succeeds() -> None:
    """The host says which loop's last round failed; the next good one ends that."""
    pool = PoolWhoseTurnsFail()
    runner = PoolRunner(pool, Metrics(), Times(turn_s=0.001))  # type: ignore[arg-type]
    assert not runner.is_reconciled
    await runner.start()
    assert runner.is_reconciled
    await until(lambda: runner.failing == ("turn",), "the loop's failure to be known")
    pool.is_mended = True
    await until(lambda: not runner.failing, "the next good round")
    await runner.stop()


async def test_a_stuck_driver_call_stops_neither_decisions_nor_the_end() -> None:
    """While the driver hangs, snapshots and turns go on, and the service can still end."""
    pool = PoolStuckInADriverCall()
    runner = PoolRunner(pool, Metrics(), Times(sample_s=0.001, stop_s=0.01, stuck_s=0.0))  # type: ignore[arg-type]
    await runner.start()
    await asyncio.get_running_loop().run_in_executor(None, pool.entered.wait, 5)
    pool.version += 1
    assert (await runner.snapshot()).simulated
    turns = pool.turns
    await runner.decide(lambda p: p.turn())
    assert pool.turns > turns
    assert runner.gpu_call_s > 0 and runner.is_stuck
    assert not await runner.stop()
    pool.go_on.set()


@dataclass
class PoolWhoseGpusHang(FakePool):
    """Comparing a GPU with the ledger does not return until told."""

    def __post_init__(self) -> None:
        self.go_on = threading.Event()

    def inspect(self, gpu: str) -> list[Any]:
        self.go_on.wait(60)
        return []


async def test_a_gpu_that_hangs_at_the_start_is_not_waited_for() -> None:
    """The service answers, says that it has not compared everything, and does so later."""
    pool = PoolWhoseGpusHang()
    runner = PoolRunner(pool, Metrics(), Times(start_s=0.01))  # type: ignore[arg-type]
    await runner.start()
    assert not runner.is_reconciled
    assert (await runner.snapshot()).simulated
    pool.go_on.set()
    await until(lambda: runner.is_reconciled, "the ledger to be reconciled")
    assert await runner.stop()


async def test_who_asks_while_the_service_ends_is_refused_not_cancelled() -> None:
    """A request is answered or refused: a cancellation would end the caller's task alone."""
    runner = PoolRunner(FakePool(), Metrics())  # type: ignore[arg-type]
    go_on = threading.Event()
    early = asyncio.create_task(runner.decide(lambda _: go_on.wait(60)))
    await asyncio.sleep(0)
    ending = asyncio.create_task(runner.stop())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await runner.decide(lambda pool: pool.turn())
    go_on.set()
    assert await early
    assert await ending


async def test_holders_are_asked_after_on_their_thread() -> None:
    """A slow engine is asked on the holders' thread, by a timer of its own."""
    pool = PoolThatAsksAfterHolders()
    runner = PoolRunner(pool, Metrics(), Times(holders_s=0.001))  # type: ignore[arg-type]
    await runner.start()
    async with asyncio.timeout(60):
        await pool.asked.wait()
    assert await runner.stop()
    assert pool.thread.startswith("miglab-holders")


async def test_servers_are_ended() -> None:
    """The reclaimer is asked again and again whether a server must end."""
    asked = asyncio.Event()

    async def end_servers(runner: PoolRunner) -> None:
        asked.set()

    runner = PoolRunner(FakePool(), Metrics(), Times(turn_s=0.001), end_servers)  # type: ignore[arg-type]
    await runner.start()
    async with asyncio.timeout(60):
        await asked.wait()
    assert await runner.stop()


class PoolWithAnArchive(FakePool):
    """Says when it was told to move what is old."""

    def delete_old(self) -> int:
        self.moved_by = threading.current_thread().name
        self.loop.call_soon_threadsafe(self.told.set)  # type: ignore[attr-defined]
        return 0


async def test_what_is_old_is_moved_from_time_to_time() -> None:
    """By the thread that decides, as every write of the ledger."""
    pool = PoolWithAnArchive()
    pool.loop, pool.told = asyncio.get_running_loop(), asyncio.Event()  # type: ignore[attr-defined]
    runner = PoolRunner(pool, Metrics(), Times(retention_s=0.001))  # type: ignore[arg-type]
    await runner.start()
    async with asyncio.timeout(60):
        await pool.told.wait()  # type: ignore[attr-defined]
    await runner.stop()
    assert pool.moved_by.startswith("miglab-decide")


@dataclass
class PoolOfTwoGpus(FakePool):
    """Reading a GPU does not return until told."""

    gpu_uuids: tuple[str, ...] = ("GPU-0", "GPU-1")

    def __post_init__(self) -> None:
        self.go_on = threading.Event()

    def sample(self, gpu: str) -> None:
        self.go_on.wait(60)


async def test_gpus_are_read_in_turn() -> None:
    """One reading begins at a time, and none of a GPU whose last one has not come back."""
    pool = PoolOfTwoGpus()
    runner = PoolRunner(pool, Metrics(), Times(sample_s=3600))  # type: ignore[arg-type]
    await runner.start()
    begun = []
    for _ in range(3):
        await runner._sample_next()
        begun.append(set(runner._sampling))
    pool.go_on.set()
    assert await runner.stop()
    assert begun == [{"GPU-0"}, {"GPU-0", "GPU-1"}, {"GPU-0", "GPU-1"}]

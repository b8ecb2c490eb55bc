"""The process around the pool: timers, acts, errors."""

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import pytest
from tests.polling import until
from tests.unit.pool.conftest import World

from miglab_api.reservations import ReservationRequest
from miglab_pool.applications import pool_runner
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner, Times
from miglab_pool.pool import Pool
from miglab_pool.worker.jobs import Job, JobKind

Start = Callable[..., Any]
CLASS = ReservationRequest(
    course="everyone",
    shape="1g.5gb",
    count=1,
    date=dt.date(2026, 6, 3),
    from_time="10:00",
    to_time="12:00",
    tz="UTC",
)


@pytest.fixture
async def start(pool: Pool) -> AsyncIterator[Start]:
    """Starts the service over the pool with these times; it ends well."""
    runners: list[PoolRunner] = []

    async def start(end_servers: Any = None, reclaimer: Any = None, **times: float) -> PoolRunner:
        runner = PoolRunner(pool, Metrics(), Times(**times), end_servers, reclaimer)
        runners.append(runner)
        await runner.start()
        return runner

    yield start
    for runner in runners:
        assert await runner.stop()


class ThreadsOfJobs:
    """One job of each kind for the pool, and on which thread each was done."""

    def __init__(self, pool: Pool) -> None:
        self.todo = list(JobKind)
        self.threads: dict[JobKind, str] = {}
        self.together = threading.Barrier(len(JobKind) - 1)
        pool.may_have_jobs = lambda kinds: not kinds.isdisjoint(self.todo)  # type: ignore[method-assign]
        pool.next_job, pool.perform = self.next_job, self.perform  # type: ignore[method-assign]

    def next_job(self, kinds: frozenset[JobKind], busy: Collection[str] = ()) -> Job | None:
        todo = (Job(kind, f"GPU-{kind}") for kind in self.todo if kind in kinds)
        return next((job for job in todo if job.gpu not in busy), None)

    def perform(self, job: Job) -> None:
        self.threads[job.kind] = threading.current_thread().name
        if job.kind is not JobKind.PROBE:
            self.together.wait(60)  # until all of them are under way
        self.todo.remove(job.kind)


async def test_each_job_on_its_thread(pool: Pool, start: Start) -> None:
    """Jobs on different GPUs run at the same time, what asks after holders on another thread."""
    jobs = ThreadsOfJobs(pool)
    await start(jobs_s=0.001)
    await until(lambda: not jobs.todo, "all jobs to be done")
    probe_thread = jobs.threads.pop(JobKind.PROBE)
    assert probe_thread.startswith("miglab-holders")
    assert len(set(jobs.threads.values())) == len(jobs.threads)
    assert all(name.startswith("miglab-gpu") for name in jobs.threads.values())


async def test_a_turn_is_due_at_once_only_for_a_ticket_that_may_be_granted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an attach or a start changes waits for the next turn by time; a new ticket does not."""
    runner = PoolRunner(world.pool, Metrics(), Times(turn_s=600))
    turns: list[int] = []
    monkeypatch.setattr(world.pool, "turn", lambda: turns.append(world.pool.version))
    turning = asyncio.create_task(runner._turn_loop())
    await until(lambda: turns and runner.notifier.waiting, "the first turn and the wait after it")
    await runner.decide(lambda pool: pool.store.publish_change())
    for _ in range(10):  # a turn, if the change caused one, would be among these decisions
        await runner.decide(lambda _: None)
    assert len(turns) == 1
    await runner.decide(lambda _: world.ask("ada", "1g.5gb"))
    await until(lambda: len(turns) > 1, "the turn for the ticket")
    turning.cancel()
    await runner.stop()


async def test_a_name_from_an_old_answer_is_taken_from_nobody(pool: Pool, start: Start) -> None:
    """The hub's answers are kept for a while: only its own process says who is called how now."""
    runner = await start()
    pool.people.rename_user("1t1", "ada")
    assert await runner.name_of("2t2", "ada") == "ada (2t2)"
    assert await runner.name_of("1t1", "lovelace") == "ada" == pool.people.name_of("1t1")
    assert await runner.name_of("3t3", "bo") == "bo" == pool.people.name_of("3t3")


@pytest.mark.parametrize(
    "question",
    [
        lambda pool: pool.tickets.alternatives(1),
        lambda pool: pool.reservations.preview(CLASS),
        lambda pool: pool.offers(["everyone"], None),
        lambda pool: pool.leases.live(),
        lambda pool: pool.layouts.all(),
    ],
    ids=["alternatives", "preview", "offers", "leases", "layouts"],
)
async def test_a_query_of_the_view_waits_for_no_decision(
    pool: Pool, start: Start, question: Callable[[Pool], object]
) -> None:
    """It is answered while a decision holds the pool's lock, so none ever waits for it either."""
    runner = await start()
    with pool.store.lock:
        assert await asyncio.wait_for(runner.query_view(question), 20) is not None


async def test_where_the_rows_ask_for_no_job_no_decision_is_disturbed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether there may be a job is seen in the view, not on the thread of the decisions."""
    monkeypatch.setattr(pool, "next_job", None)
    runner = PoolRunner(pool, Metrics())
    assert not await runner.run_jobs(frozenset(JobKind))
    await runner.stop()


async def test_a_loop_that_fails_goes_on_and_is_known_until_it_succeeds(
    pool: Pool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error is counted, and the host says which loop's last round failed."""
    runner = await start(turn_s=0.001)
    assert runner.is_reconciled
    failed = runner.metrics.registry.get_sample_value
    monkeypatch.setattr(pool, "turn", lambda: 1 / 0)
    await until(lambda: runner.failing == ("turn",), "the loop's failure to be known")
    await until(
        lambda: (failed("miglab_failed_rounds_total", {"loop": "turn"}) or 0) > 1, "another round"
    )
    monkeypatch.undo()
    await until(lambda: not runner.failing, "the next good round")


async def test_what_time_alone_brings_is_in_the_next_answer(world: World) -> None:
    """Nothing changes while the lab is paused, and yet a student is asked whether they wait."""
    runner = PoolRunner(world.pool, Metrics(), Times(snapshot_s=0.0))
    ticket = world.ask("ada", "7g.40gb", course="vision")
    world.pool.staff.pause("Repairs.", "person:ines")
    assert (await runner.waiting())[ticket.id].answer_by is None
    version = world.pool.version
    world.pass_time(world.settings.pool.longest_wait_s)
    assert (await runner.waiting())[ticket.id].answer_by is not None
    assert world.pool.version == version
    await runner.stop()


class StuckCall:
    """What does not return until told."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> list[Any]:
        self.entered.set()
        self.go_on.wait(60)
        return []


async def test_a_stuck_driver_call_stops_neither_decisions_nor_the_end(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the driver hangs, snapshots and turns go on, and the service can still end."""
    stuck = StuckCall()
    monkeypatch.setattr(pool, "sample", stuck)
    monkeypatch.setattr(type(pool.worker.driver), "longest_call_s", 1.0)
    monkeypatch.setattr(type(pool.worker.driver), "is_hung", True)
    runner = PoolRunner(pool, Metrics(), Times(sample_s=0.001, stop_s=0.01))
    await runner.start()
    await asyncio.get_running_loop().run_in_executor(None, stuck.entered.wait, 5)
    await runner.decide(lambda pool: pool.staff.pause("Repairs.", "root"))
    assert (await runner.snapshot()).paused == "Repairs."
    assert runner.gpu_call_s > 0 and runner.is_stuck
    assert not await runner.stop()
    stuck.go_on.set()


async def test_a_gpu_that_hangs_at_the_start_is_not_waited_for(
    pool: Pool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service answers, says that it has not compared everything, and does so later."""
    stuck = StuckCall()
    monkeypatch.setattr(pool, "inspect", stuck)
    runner = await start(start_s=0.01)
    assert not runner.is_reconciled
    assert (await runner.snapshot()).simulated
    stuck.go_on.set()
    await until(lambda: runner.is_reconciled, "the ledger to be reconciled")


async def test_who_asks_while_the_service_ends_is_refused_not_cancelled(pool: Pool) -> None:
    """A request is answered or refused: a cancellation would end the caller's task alone."""
    runner, stuck = PoolRunner(pool, Metrics()), StuckCall()
    early = asyncio.create_task(runner.decide(stuck))
    await until(stuck.entered.is_set, "the decision to begin")
    ending = asyncio.create_task(runner.stop())
    await until(lambda: runner.notifier.closed, "the service to end")
    with pytest.raises(RuntimeError):
        await runner.decide(lambda pool: pool.turn())
    stuck.go_on.set()
    await early
    assert await ending


@pytest.mark.parametrize(
    ("timer", "task", "thread"),
    [
        ("holders_s", "probe_missing_holders", "miglab-holders"),  # a slow engine delays no slice
        ("retention_s", "delete_old", "miglab-decide"),  # as every write of the ledger
        ("sample_s", "sample", "miglab-gpu"),
        ("estimate_s", "estimate", "miglab-estimates"),
    ],
)
async def test_each_timer_on_its_thread(
    pool: Pool, start: Start, monkeypatch: pytest.MonkeyPatch, timer: str, task: str, thread: str
) -> None:
    """Again and again, where it holds up nothing else."""
    threads: list[str] = []
    of = pool if hasattr(pool, task) else pool_runner
    work = getattr(of, task)

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return work(*arguments)

    monkeypatch.setattr(of, task, noted)
    await start(**{timer: 0.001})
    await until(lambda: len(threads) > 1, f"{task} to be done twice")
    assert all(name.startswith(thread) for name in threads)


async def test_the_reclaimer_is_asked_and_servers_are_ended(pool: Pool, start: Start) -> None:
    """Its round is one of the service's loops, and so is whether a server must end."""
    rounds: list[str] = []

    async def end_servers(runner: PoolRunner) -> None:
        rounds.append("end")

    class Reclaims:
        def round(self, pool: Pool) -> None:
            rounds.append("reclaim")

    await start(end_servers, Reclaims(), turn_s=0.001, reclaim_s=0.001)
    await until(lambda: min(map(rounds.count, ("end", "reclaim"))) > 1, "both, again and again")
    assert set(rounds) == {"end", "reclaim"}


async def test_gpus_are_read_in_turn(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reading begins at a time, and none of a GPU whose last one has not come back."""
    world, stuck = make_world(gpus=2), StuckCall()
    monkeypatch.setattr(world.pool, "sample", stuck)
    runner = PoolRunner(world.pool, Metrics(), Times(sample_s=3600))
    await runner.start()
    gpus_sampled = []
    for _ in range(3):
        await runner._sample_next()
        gpus_sampled.append(set(runner._sampling))
    stuck.go_on.set()
    assert await runner.stop()
    first, second = world.driver.uuids
    assert gpus_sampled == [{first}, {first, second}, {first, second}]

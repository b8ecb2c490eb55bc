"""How GPUs are: silent after a grant, full of what cannot be destroyed, or with news of faults."""

import itertools
from collections.abc import Callable

import pynvml
import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.gpus import SliceState
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import Health, UnknownGpuError
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.gpu.watched import Stopwatch
from miglab_pool.ledger.tables import LedgerUnwritable
from miglab_pool.worker.faults import CAUSE, appended_numbers, new_errors

MakeWorld = Callable[..., World]


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_granted_on_a_gpu_that_went_silent(make_world: MakeWorld, is_looked_at: bool) -> None:
    """Whoever was to get a slice there waits on, and is served by the other GPU."""
    world = make_world(gpus=2)
    ticket = world.ask("ada")
    world.pool.turn()
    (row,) = world.ledger.state.slices.values()
    world.machine.break_gpu(Break.LOST, gpu_uuid=row.gpu)
    if is_looked_at:
        world.pool.reconcile()
        assert world.ledger.state.tickets[ticket.id].lease is None
    world.pass_time(5)  # a pause after which silent GPUs are asked again
    world.work()
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_nothing_is_made_where_nobody_can_look(world: World) -> None:
    """Whether something lies there is unknown; it is made once the GPU can be read again."""
    ticket = world.ask("ada")
    world.pool.turn()
    job = world.pool.next_job()
    world.fail("nvmlDeviceGetGpuInstances")
    world.pool.perform(job)
    assert world.raw() == []
    world.pass_time(100)
    world.attend_all()
    world.work()
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_a_grant_that_is_never_made_ends(make_world: MakeWorld) -> None:
    """What is in its way cannot be destroyed: the ticket steps aside, and can come back."""
    world = make_world(changed(SETTINGS, quarantine_after=10**6, longest_wait_s=600.0))
    world.end(world.run("ada"))
    (row,) = world.ledger.state.slices.values()
    world.machine.add_process(row.uuid, 4242, 10)
    ticket = world.wait("bob", "7g.40gb")
    assert world.ledger.state.tickets[ticket.id].lease is not None
    for _ in range(11):
        world.work_after(60)
    aside = world.pool.tickets.find(ticket.id)
    assert (aside.state, aside.reason) == (TicketState.ASIDE, "never-made")
    assert world.ask("bob", "7g.40gb").id == ticket.id


def test_a_slice_that_fails_to_go_is_quarantined(world: World) -> None:
    """However NVML fails at it: after as many tries as one in use it is a person's to look at."""
    world.end(world.run("ada"))
    for function in ("nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"):
        world.fail(function, pynvml.NVML_ERROR_UNKNOWN, 10**6)
    world.ask("bob", "7g.40gb")
    for _ in range(2 * SETTINGS.tuning.quarantine_after):
        world.work()
        world.pass_time(SETTINGS.tuning.retry_max_s)
    assert world.states() == ["quarantined"]


@pytest.mark.parametrize("is_ended", [False, True], ids=["granted", "being scrubbed"])
def test_what_takes_the_id_of_one_that_is_gone_is_not_ours(world: World, is_ended: bool) -> None:
    """NVML gives ids again: a slice made by hand where ours was seen missing stays."""
    ticket = world.wait("ada")
    (row,) = world.ledger.state.slices.values()
    if is_ended:
        world.machine.add_process(row.uuid, 4242, 10)
        world.pool.tickets.cancel(ticket.id, "ada")
        world.wait("bob", "7g.40gb")
        assert SliceState.SCRUBBING in world.states()
    world.machine.reboot()
    world.pool.reconcile()
    place = Placement(row.start, row.size)
    foreign_slice = world.driver.create(row.gpu, world.pool.store.profile(row), place)
    assert foreign_slice.gi_id == row.gi_id
    world.crash()
    world.work()
    assert foreign_slice.uuid in {reading.uuid for reading in world.driver.slices(row.gpu)}
    assert SliceState.FOREIGN in world.states()


def test_drained_while_it_is_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The create fails, and the place is nobody's all the same until somebody ends that."""
    world.ask("ada")
    world.pool.turn()
    job = world.pool.next_job()

    def fails(*_: object) -> object:
        world.pool.staff.drain(job.slice_id, "Broken.", "person:ina")
        raise UnknownGpuError("It failed.")

    with monkeypatch.context() as patch:
        patch.setattr(world.driver, "create", fails)
        world.pool.perform(job)
    world.settle()
    assert "Broken." in {row.draining for row in world.ledger.state.slices.values()}


def test_a_failed_commit_forgets_nobody(world: World) -> None:
    """Who asked after a ticket has asked, whatever becomes of the disk."""
    world.run("ada", "7g.40gb")
    ticket = world.ask("bob", "7g.40gb")
    for _ in range(10):
        world.pass_time(60)
        world.pool.tickets.attend(ticket.id)
    with pytest.raises(OSError, match="full"), world.pool.store.write() as tx:
        tx.record(world.ledger.state.tickets[ticket.id], "pool", "noted")
        raise OSError("full")
    world.pool.turn()
    assert world.pool.tickets.find(ticket.id).state == TicketState.WAITING


def test_a_full_disk_is_told_and_changes_nothing(world: World) -> None:
    """Who asks while the disk is full reads what to do, and the ledger is what it was."""
    full = world.ledger.connection.exec_driver_sql
    full("PRAGMA max_page_count = 1").all()  # SQLite takes the present size: no page more
    world.ledger.connection.rollback()
    with pytest.raises(LedgerUnwritable, match="make room below"):
        for _ in range(1000):
            world.pool.staff.pause("x" * 400, "person:ina")
            world.pool.staff.resume("person:ina")
    pause_reason = world.pool.snapshot().paused
    full("PRAGMA max_page_count = 1000000").all()
    world.ledger.connection.rollback()
    world.crash()
    assert world.pool.snapshot().paused == pause_reason
    world.ask("ada")


def health(ecc_errors: int | None = 0) -> Health:
    return Health(True, ecc_errors, (), 40, 60.0, False, "")


@pytest.mark.parametrize(
    ("before", "now", "added"),
    [
        ((), (), []),
        ((), (79,), [79]),
        ((79,), (79, 79), [79]),
        ((1, 2, 3), (2, 3, 4), [4]),
        ((1, 2), (8, 9), [8, 9]),
        ((1, 2, 3), (), []),
    ],
)
def test_what_was_added(before: tuple[int, ...], now: tuple[int, ...], added: list[int]) -> None:
    """Only what came since counts, also when the oldest are forgotten or all is."""
    assert appended_numbers(before, now) == added


@pytest.mark.parametrize(
    ("before", "now", "news"),
    [
        (None, health(2), ["2 uncorrected memory errors since its last reset"]),
        (health(), health(), []),
        (health(None), health(None), []),
        (health(5), health(0), []),
        (health(1), health(3), ["3 uncorrected memory errors since its last reset"]),
    ],
)
def test_memory_errors_are_news(before: Health | None, now: Health, news: list[str]) -> None:
    """Each rise is told once; what is unknown is no news."""
    assert list(new_errors(before, now)) == news


def test_faults_are_a_history(world: World) -> None:
    """A fault is noted once however often the GPU is asked, and stays after a restart."""
    world.machine.break_gpu(Break.XID, xid=31)
    for _ in range(3):
        world.pool.reconcile()
    world.crash()
    noted = [row["reason"] for row in world.ledger.history("gpu") if row["by"] == CAUSE]
    assert noted.count("Xid 31 (a program's)") == 1
    (wellness,) = world.pool.store.wellness.values()
    assert wellness.at == world.at and wellness.health.temperature_c is not None


def test_the_drivers_work_is_timed_by_profile(world: World) -> None:
    """One cut, one destroyed, one cut anew: so many seconds for each; what fails gives none."""
    timings: list[tuple[str, str, float]] = []
    stopwatch = Stopwatch(itertools.count(5, 2).__next__)
    stopwatch.on_time = lambda *timing: timings.append(timing)
    world.pool.worker.stopwatch = stopwatch
    lease = world.run("ada", "3g.20gb")
    world.fail("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
    world.end(lease)
    assert timings == [("create", "3g.20gb", 2)]
    world.settle()
    assert timings[1:] == [("destroy", "3g.20gb", 2), ("create", "3g.20gb", 2)]

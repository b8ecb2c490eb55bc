"""A ledger that was restored from a copy, begun anew, or belongs elsewhere ends nobody's server."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.refusals import because

from miglab_api.gpus import SliceState
from miglab_api.leases import Fence, LeaseState, LeaseView
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.readings import GpuHung
from miglab_pool.refused import Refused
from miglab_pool.worker.holders import LabelledContainer

from .conftest import World

MakeWorld = Callable[..., World]


def restore(world: World, *, empty: bool = False) -> None:
    """Put the ledger's copy in its place, or none, while the servers run on."""
    world.ledger.close()
    file = world.folder / "ledger.sqlite"
    for old_file in world.folder.glob("ledger.sqlite*"):
        old_file.unlink()
    if not empty:
        shutil.copy(world.folder / "copy", file)
    world.open()


def copy(world: World) -> None:
    """A backup, as an operator makes it."""
    world.ledger.connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    world.ledger.connection.rollback()
    shutil.copy(world.folder / "ledger.sqlite", world.folder / "copy")


@pytest.mark.parametrize("empty", [False, True], ids=["restored", "begun anew"])
def test_a_running_server_that_the_ledger_does_not_know_is_left_alone(
    world: World, empty: bool
) -> None:
    """Its lease's number was given once more; its server is shown, and not removed."""
    copy(world)
    alice = world.run("alice")
    restore(world, empty=empty)
    world.end(world.run("bob"))
    world.pool.reconcile()
    findings = [finding for finding in world.pool.reconcile() if finding.target == alice.holder]
    assert alice.holder in world.holders.present
    assert world.holders.removed == []
    assert len(findings) == 1 and "left alone" in findings[0].finding and not findings[0].action


def test_a_slice_that_an_unknown_server_uses_is_given_to_nobody(world: World) -> None:
    """In the copy it is free: whoever asks gets another, and staff read whose it is."""
    world.end(world.run("zoe"))
    copy(world)
    alice = world.run("alice")
    restore(world)
    bob = world.run("bob")
    assert set(bob.uuids).isdisjoint(alice.uuids)
    (row,) = (row for row in world.ledger.state.slices.values() if row.uuid in alice.uuids)
    assert row.state == SliceState.QUARANTINED and alice.holder in row.reason


def test_a_slice_that_an_unknown_server_uses_is_not_destroyed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the copy it is another's, who has gone meanwhile: its end leaves the slice as it is."""
    zoe = world.run("zoe")
    copy(world)
    world.end(zoe)
    alice = world.run("alice")
    assert alice.uuids == zoe.uuids
    destroyed_uuids = record_destroyed(world, monkeypatch)
    restore(world)
    world.settle()
    assert destroyed_uuids == []
    assert is_there(world, alice)
    (row,) = (row for row in world.ledger.state.slices.values() if row.uuid in alice.uuids)
    assert row.state == SliceState.QUARANTINED


def test_a_server_that_ran_when_the_copy_had_only_granted_is_attached_again(world: World) -> None:
    """The grant of the copy does not expire under it."""
    ticket = world.wait("alice")
    world.pool.tickets.take(ticket.id)
    copy(world)
    holder = world.run("alice").holder
    restore(world)
    lease = world.pool.leases.lease_of_server("alice", "")
    assert lease is not None and (lease.state, lease.holder) == (LeaseState.RUNNING, holder)


WHOLE = "7g.40gb"


def is_there(world: World, lease: LeaseView) -> bool:
    """Whether its slices are on the GPU."""
    gpu = world.driver.uuids[0]
    return set(lease.uuids) <= {reading.uuid for reading in world.driver.slices(gpu)}


def record_destroyed(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on: the slices that the pool destroys, by UUID."""
    uuids: list[str] = []
    destroy = Driver.destroy

    def noted(driver: Driver, gpu: str, gi_id: int) -> None:
        uuids.extend(reading.uuid or "" for reading in driver.slices(gpu) if reading.gi_id == gi_id)
        destroy(driver, gpu, gi_id)

    monkeypatch.setattr(Driver, "destroy", noted)
    return uuids


def copied_before_create(world: World, _patch: pytest.MonkeyPatch) -> TicketView:
    """Copied before Alice's slice was begun."""
    ticket = world.ask("alice", WHOLE)
    world.pool.turn()
    copy(world)
    return ticket


def copied_while_created(world: World, patch: pytest.MonkeyPatch) -> TicketView:
    """Copied while Alice's slice was made."""
    create = Driver.create

    def copied(driver: Driver, *arguments: Any) -> Any:
        if not (world.folder / "copy").exists():
            copy(world)
        return create(driver, *arguments)

    patch.setattr(Driver, "create", copied)
    return world.ask("alice", WHOLE)


def copied_before_a_failure(world: World, patch: pytest.MonkeyPatch) -> TicketView:
    """Likewise, but that came to nothing, and she got one later, by another lease."""
    world.fail("nvmlDeviceCreateGpuInstance")
    return copied_while_created(world, patch)


def copied_while_scrubbing(world: World, patch: pytest.MonkeyPatch) -> TicketView:
    """Copied while what a try had left behind was to be removed, before hers was made there."""
    create = Driver.create

    def hangs(driver: Driver, *arguments: Any) -> Any:
        patch.setattr(Driver, "create", create)
        driver.create(*arguments)
        raise GpuHung("The call has not come back.")

    patch.setattr(Driver, "create", hangs)
    ticket = world.ask("alice", WHOLE)
    world.pool.turn()
    while "scrubbing" not in world.states():
        job = world.pool.next_job()
        assert job is not None
        world.pool.perform(job)
    copy(world)
    return ticket


MOMENTS = [
    copied_before_create,
    copied_while_created,
    copied_before_a_failure,
    copied_while_scrubbing,
]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_slice_that_was_still_to_be_made_is_not_destroyed_under_its_server(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[[World, pytest.MonkeyPatch], TicketView],
) -> None:
    """The copy knows neither slice nor server, and NVML uses its ids again."""
    ticket = moment(world, monkeypatch)
    world.work()
    if world.pool.tickets.find(ticket.id).state == TicketState.WAITING:
        world.work_after(world.settings.tuning.retry_max_s)
    alice = world.run("alice", WHOLE)
    destroyed_uuids = record_destroyed(world, monkeypatch)
    restore(world)
    world.work()
    leases = {
        brief.id: set(brief.uuids) & set(alice.uuids) for brief in world.pool.leases.brief_views()
    }
    assert not any(shared for lease, shared in leases.items() if lease != alice.id)
    world.settle()
    assert destroyed_uuids == [] and world.holders.removed == []
    assert is_there(world, alice)


def test_a_server_whose_grant_has_expired_in_the_copy_is_left_alone(world: World) -> None:
    """The grant ends while the engine is silent; then its server turns out to run."""
    world.wait("alice")
    copy(world)
    alice = world.run("alice")
    world.holders.is_silent = True
    restore(world)
    world.work_after(world.settings.pool.attach_s + world.settings.pool.attend_grace_s)
    world.holders.is_silent = False
    (finding,) = (
        reported for reported in world.pool.reconcile() if reported.target == alice.holder
    )
    assert "left alone" in finding.finding and world.holders.removed == []
    assert set(world.run("bob").uuids).isdisjoint(alice.uuids)


def test_nothing_is_granted_before_the_engine_has_answered(world: World) -> None:
    """Until then what the ledger calls free may be in use; then it turns out to be."""
    world.end(world.run("zoe"))
    bob = world.ask("bob")
    copy(world)
    world.pool.tickets.cancel(bob.id, "bob")
    alice = world.run("alice")
    world.holders.is_silent = True
    restore(world)
    world.work()
    assert "engine does not answer" in world.pool.snapshot().gpus[0].reason
    assert world.pool.tickets.find(bob.id).state == TicketState.WAITING
    world.holders.is_silent = False
    world.pool.reconcile()
    world.work()
    assert set(world.pool.tickets.take(bob.id).uuids).isdisjoint(alice.uuids)


def test_a_whole_gpu_that_an_unknown_server_uses_is_given_to_nobody(make_world: MakeWorld) -> None:
    """Its server has not begun to compute, so the GPU shows no process."""
    world = make_world(mig=False)
    bob = world.ask("bob", "full")
    copy(world)
    world.pool.tickets.cancel(bob.id, "bob")
    alice = world.run("alice", "full")
    restore(world)
    world.settle()
    assert world.pool.tickets.find(bob.id).state == TicketState.WAITING
    assert alice.holder in world.pool.snapshot().gpus[0].reason
    world.holders.present.discard(alice.holder)
    world.pool.reconcile()
    world.work()
    assert world.pool.tickets.find(bob.id).state == TicketState.OFFERED


def test_what_the_copy_has_offered_is_not_taken_from_under_a_newer_server(world: World) -> None:
    """Zoe let the offer lapse and Alice got the slice: in the copy Zoe may still take it."""
    zoe = world.wait("zoe")
    copy(world)
    world.pool.tickets.cancel(zoe.id, "zoe")
    alice = world.run("alice")
    restore(world)
    world.work()
    assert set(world.pool.tickets.take(zoe.id).uuids).isdisjoint(alice.uuids)


def test_numbers_go_on_above_any_label(world: World) -> None:
    """What the copy never had is not given again to another; a label of any size is no number."""
    copy(world)
    alice = world.run("alice")
    odd = world.new_holder()
    world.holders.labels[odd] = LabelledContainer(odd, 10**30, 1, "other")
    restore(world)
    assert alice.id < world.run("bob").id < 10**30


def test_a_spawner_that_means_another_lease_changes_nothing(world: World) -> None:
    """The same number in a restored ledger, and the calls of the server from before.

    Number and generation alone, of another ledger, do not make a lease ours.
    """
    copy(world)
    alice = world.run("alice")
    world.holders.labels.clear()  # so that her number is given once more
    restore(world)
    bob = world.grant("bob")
    world.pool.leases.attach(bob.id, bob.generation, world.new_holder(), bob.ledger)
    assert bob.id == alice.id
    attach = partial(world.pool.leases.attach, alice.id, alice.generation, world.new_holder())
    hers = Fence(generation=alice.generation, ledger=alice.ledger)
    foreign_fence = Fence(generation=bob.generation, ledger="0" * 32)
    for call in (
        lambda: world.pool.leases.running(alice.id, hers),
        lambda: world.pool.leases.release(alice.id, "spawner", "over", hers),
        lambda: world.pool.leases.release(bob.id, "spawner", "over", foreign_fence),
        lambda: attach(alice.ledger),
    ):
        with pytest.raises(Refused, check=because("stale-lease")):
            call()
    assert world.pool.leases.find(bob.id).state == LeaseState.ATTACHED


@pytest.mark.parametrize(
    ("apart", "ledger"), [(0, "0" * 32), (1, "")], ids=["ledger", "generation"]
)
def test_what_another_ledger_left_over_is_left_alone(world: World, apart: int, ledger: str) -> None:
    """A lease that is over here bears its number, and its container does not run."""
    lease = world.run("ada")
    world.end(lease)
    holder, generation = world.new_holder(), lease.generation + apart
    label_ledger = ledger or lease.ledger
    world.holders.labels[holder] = LabelledContainer(
        holder, lease.id, generation, label_ledger, is_running=False
    )
    (finding,) = world.pool.reconcile()
    assert "left alone" in finding.finding and world.holders.removed == []


def test_a_server_from_before_the_upgrade(world: World) -> None:
    """Its label names no ledger: shown once its lease is over, and released by its own spawner."""
    lease = world.run("ada")
    old = LabelledContainer(lease.holder, lease.id, lease.generation, "")
    world.holders.labels[lease.holder] = old
    assert world.pool.reconcile() == []
    world.pool.leases.release(lease.id, "spawner", "over", Fence(generation=lease.generation))
    world.holders.present.discard(lease.holder)
    world.work_after(world.settings.tuning.probe_s)
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    world.holders.present.add(lease.holder)
    (finding,) = world.pool.reconcile()
    assert "older miglab" in finding.finding and world.holders.removed == []


def test_a_ledger_keeps_its_id(world: World) -> None:
    """The same after a restart, another for another file."""
    before = world.ledger.identity
    world.crash()
    assert world.ledger.identity == before
    restore(world, empty=True)
    assert world.ledger.identity != before


def test_the_engine_is_changed_only_where_nothing_is_at_it(world: World) -> None:
    """While a lease's container is at one, another is shown and not believed."""
    world.holders.engine_id = "the first"
    alice = world.run("alice")
    world.pool.reconcile()
    assert world.holders.expected == world.ledger.engine == "the first"
    world.holders.engine_id = "another"
    findings = [finding for finding in world.pool.reconcile() if finding.kind == "engine"]
    assert world.holders.expected == world.ledger.engine == "the first"
    assert len(findings) == 1 and "none of them is freed" in findings[0].finding
    world.end(alice)
    assert [finding for finding in world.pool.reconcile() if finding.kind == "engine"] == []
    assert world.holders.expected == world.ledger.engine == "another"


def test_what_a_power_cut_undid_is_no_loss(world: World) -> None:
    """`take` and `running` wait for no disk: it is offered anew, or attach does without.

    What was started has ended with the host, and so its lease ends.
    """
    ticket = world.wait("alice")
    copy(world)
    lease = world.pool.tickets.take(ticket.id)
    restore(world)
    again = world.ask("alice")
    assert (again.id, again.state) == (ticket.id, TicketState.OFFERED)
    holder = world.new_holder()
    world.pool.leases.attach(lease.id, lease.generation, holder)
    assert world.pool.tickets.find(ticket.id).state == TicketState.TAKEN
    copy(world)
    world.pool.leases.running(lease.id)
    world.holders.present.discard(holder)
    restore(world)
    world.settle()
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED

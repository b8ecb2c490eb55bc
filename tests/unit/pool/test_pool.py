"""The rules of tickets, leases and slices, one sentence each."""

from collections.abc import Callable
from itertools import repeat

import pynvml
import pytest
from tests.pool_settings import changed
from tests.refusals import because

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_api.offers import ShapeOffer
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import SliceReading, UnknownGpuError
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.refused import Refused
from miglab_pool.settings import Course
from miglab_pool.worker.jobs import JobKind
from miglab_pool.worker.reconcile import probe_missing_holders

from .conftest import SETTINGS, World

MakeWorld = Callable[..., World]


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value


def test_whole_path(world: World) -> None:
    """A lease goes from ticket to released, and every step with its reason is in the ledger."""
    lease = world.run("ada")
    assert lease.state == LeaseState.RUNNING
    assert lease.uuids[0].startswith("MIG-")
    world.end(lease)
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    steps = [row["to_state"] for row in reversed(world.ledger.history("lease", str(lease.id)))]
    assert steps == ["granted", "attached", "running", "releasing", "released"]
    assert all(row["course"] == "everyone" for row in world.ledger.history("lease"))
    (old,), (new,) = lease.slices, world.pool.snapshot().gpus[0].slices
    assert (new.state, new.profile, new.start) == (SliceState.FREE, old.profile, old.start)
    assert new.generation > old.generation, "it is made anew between two users"


def test_what_is_offered_may_be_asked_for(make_world: MakeWorld) -> None:
    """A need stands on the page as the profile that serves it, as the course's default too."""
    needs = Course(title="Vision", shapes=("1g.5gb", "at least 9 GiB"), default="at least 9 GiB")
    world = make_world(settings=changed(SETTINGS, courses={"vision": needs}))
    (course,) = world.pool.offers(["vision"]).courses
    assert course.default in [offer.shape for offer in course.shapes]
    for offer in course.shapes:
        assert world.ask("ada", offer.shape, course="vision").shape == offer.shape


def test_request_is_idempotent(world: World) -> None:
    """Asking again is the same ticket, also after it was offered and taken."""
    first = world.wait("ada", "3g.20gb")
    ticket = world.ask("ada")
    assert ticket.id != first.id
    assert world.pool.tickets.find(first.id).reason == "replaced"
    world.pool.turn()
    assert refusal(lambda: world.pool.tickets.take(ticket.id)).reason == "not-offered"
    assert world.ask("ada").id == ticket.id
    world.work()
    assert world.ask("ada").id == ticket.id
    lease = world.pool.tickets.take(ticket.id)
    assert world.ask("ada").id == ticket.id
    assert world.pool.tickets.take(ticket.id).id == lease.id
    assert [live_lease.id for live_lease in world.pool.leases.live()] == [lease.id]


def test_queue_limit(make_world: MakeWorld) -> None:
    """When as many wait as may, the next is told so, and the refusal is in the ledger."""
    world = make_world(changed(SETTINGS, queue_limit=2))
    for n in range(7):
        world.run(f"student{n}")
    world.ask("a"), world.ask("b")
    world.ask("a")
    error = refusal(lambda: world.ask("c"))
    assert (error.reason, error.status) == ("queue-full", 429)
    assert world.ledger.history("ticket")[0]["to_state"] == "refused"


@pytest.mark.parametrize(
    ("shape", "course", "reason"),
    [
        ("1g.5gb", "nowhere", "not-in-course"),
        ("2g.10gb", "vision", "shape-not-offered"),
        ("9g.90gb", "everyone", "bad-shape"),
        ("gpu please", "everyone", "bad-shape"),
        ("cpu", "everyone", "bad-shape"),
        ("full", "everyone", "impossible-shape"),
    ],
)
def test_refusals(world: World, shape: str, course: str, reason: str) -> None:
    """What can never be had is refused at once, in words that the ledger has; no place is lost."""
    ticket = world.ask("ada")
    error = refusal(lambda: world.ask("ada", shape, course=course))
    assert error.reason == reason
    assert len(error.message) > 20
    assert world.ledger.history("ticket")[0]["to_state"] == "refused"
    assert world.pool.tickets.find(ticket.id).state == TicketState.WAITING


def test_server_never_holds_two(world: World) -> None:
    """A server that asks anew waits until its last holder is gone, though there is room."""
    lease = world.run("ada")
    ticket = world.wait("ada")
    assert ticket.state == TicketState.WAITING
    assert "previous server" in world.pool.tickets.find(ticket.id).message
    world.end(lease)
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED
    world.holders.present.discard(world.run("bob").holder)
    assert world.wait("bob").state == TicketState.OFFERED


def test_attach_is_fenced(world: World) -> None:
    """By its own generation, to one holder that has no other lease; the same may attach again."""
    lease, other = world.run("ada"), world.grant("bob")
    attach = world.pool.leases.attach
    assert attach(lease.id, lease.generation, lease.holder).holder == lease.holder
    for number, generation, holder, reason in (
        (other.id, other.generation + 1, world.new_holder(), "stale-lease"),
        (lease.id, lease.generation, world.new_holder(), "stale-lease"),
        (other.id, other.generation, lease.holder, "bad-holder"),
        (other.id, other.generation, "container:abc", "bad-holder"),
    ):
        with pytest.raises(Refused, check=because(reason)):
            attach(number, generation, holder)


def test_attach_after_reissue(world: World) -> None:
    """The holder of an expired grant cannot attach a slice that is another's by now."""
    lease = world.grant("ada", "7g.40gb")
    world.pass_time(SETTINGS.pool.attach_s)
    other = world.run("bob", "7g.40gb")
    assert other.uuids == lease.uuids
    error = refusal(
        lambda: world.pool.leases.attach(lease.id, lease.generation, world.new_holder())
    )
    assert error.reason == "stale-lease"


def test_release_waits_for_holder(world: World) -> None:
    """A released slice is nobody's until its holder is gone, however long that takes."""
    lease = world.run("ada", "7g.40gb")
    ticket = world.ask("bob", "7g.40gb")
    world.pool.leases.release(lease.id, "hub", "stopped")
    for _ in range(5):
        world.pass_time(100)
        world.pool.tickets.attend(ticket.id)
        world.work()
        world.pool.reconcile()
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASING
    assert world.pool.tickets.find(ticket.id).state == TicketState.WAITING
    world.holders.present.discard(lease.holder)
    world.work_after(1)
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_unknown_frees_nothing(world: World) -> None:
    """While an engine answers errors nobody is missed, freed or removed, abandoned or not."""
    lease, abandoned = world.run("ada"), world.run("bob")
    world.holders.present.discard(lease.holder)
    world.holders.is_silent = True
    assert probe_missing_holders(world.pool.worker) == []
    for ending_lease in (lease, abandoned):
        world.pool.leases.release(ending_lease.id, "hub", "stopped")
    world.pool.leases.abandon(frozenset({abandoned.id}))
    for _ in range(20):
        world.work_after(60)
        world.pool.reconcile()
    for ending_lease in (lease, abandoned):
        assert world.pool.leases.find(ending_lease.id).state == LeaseState.RELEASING
    assert world.holders.removed == []


def test_a_slice_is_free_again_without_waiting(world: World) -> None:
    """Between the look that misses a holder and its slice being free again no time must pass."""
    lost, stays = world.run("ada"), world.run("bob")
    world.holders.present.discard(lost.holder)
    findings = probe_missing_holders(world.pool.worker)
    assert [(finding.kind, finding.target) for finding in findings] == [("holder", lost.holder)]
    world.work()
    assert sorted(world.states()) == ["free", "leased"]
    assert world.pool.leases.find(stays.id).state == LeaseState.RUNNING
    assert probe_missing_holders(world.pool.worker) == []


def test_a_stopped_container_is_removed_in_the_end(world: World) -> None:
    """One that stays after its release; one that runs is never removed, whatever was asked."""
    stopped, runs = world.run("ada"), world.run("bob")
    world.holders.stopped.add(stopped.holder)
    for lease in (stopped, runs):
        world.pool.leases.release(lease.id, "hub", "stopped")
    world.work()
    assert world.pool.leases.find(stopped.id).state == LeaseState.RELEASING
    world.work_after(SETTINGS.tuning.remove_after_s)
    assert world.holders.removed == [stopped.holder]
    assert world.pool.leases.find(stopped.id).state == LeaseState.RELEASED


def test_a_lease_is_guaranteed_then_open(make_world: MakeWorld) -> None:
    """Its guarantee counts from the attach; after that it goes on, also if the hub says nothing."""
    world = make_world(changed(SETTINGS, lease_s=3600.0))
    lease = world.run("ada")
    assert (lease.guaranteed_until, lease.ends_at) == (world.at + 3600, None)
    for _ in range(20):
        world.work_after(3600)
        world.pool.reconcile()
    assert world.pool.leases.leases_to_stop() == []
    assert world.pool.leases.find(lease.id).state == LeaseState.RUNNING


def test_extend(make_world: MakeWorld) -> None:
    """A lease is extended as often and as long as the site allows."""
    world = make_world(changed(SETTINGS, lease_s=3600.0, extensions=1))
    lease = world.run("ada")
    assert refusal(lambda: world.pool.leases.extend(lease.id, 9999, "ada")).status == 422
    assert world.pool.leases.extend(lease.id, 600, "ada").guaranteed_until == world.at + 4200
    error = refusal(lambda: world.pool.leases.extend(lease.id, 600, "ada"))
    assert (error.reason, "Save your work" in error.message) == ("no-extension", True)


@pytest.mark.parametrize("lists", [9, 1], ids=["looked at once", "silent until a restart"])
def test_a_placement_where_our_try_left_nothing_is_not_ours(
    make_world: MakeWorld, lists: int
) -> None:
    """What somebody makes by hand there after our create failed is foreign, and stays."""
    world = make_world(gpus=1)
    world.ask("ada")
    world.pool.turn()
    world.fail("nvmlDeviceCreateGpuInstanceWithPlacement")
    job = world.pool.next_job()
    row = world.ledger.state.slices[job.slice_id]
    answers = repeat(world.driver.slices, lists)
    world.driver.slices = lambda gpu: next(answers, _no_answer)(gpu)  # type: ignore[method-assign]
    world.pool.perform(job)
    world.crash()
    info = world.driver.gpus()[0]
    profile = info.geometry.by_name["1g.5gb"]
    foreign = world.driver.create(info.uuid, profile, Placement(row.start, row.size))
    world.settle()
    present_uuids = {
        slice_["uuid"] for gpu in world.machine.view()["gpus"] for slice_ in gpu["slices"]
    }
    assert foreign.uuid in present_uuids
    states = {slice_row.start: slice_row.state for slice_row in world.ledger.state.slices.values()}
    assert states[row.start] == SliceState.FOREIGN


def _no_answer(gpu: str) -> list[SliceReading]:
    raise UnknownGpuError(f"Could not list the slices of {gpu}")


def test_lost_gpu(make_world: MakeWorld) -> None:
    """A lost GPU is shown as lost, takes no lease, and its leases are not freed by that."""
    world = make_world(gpus=1)
    lease = world.run("ada")
    world.machine.break_gpu(Break.LOST)
    world.pool.reconcile()
    assert world.pool.snapshot().gpus[0].state == "lost"
    ticket = world.wait("bob")
    assert ticket.state == TicketState.WAITING
    assert world.pool.leases.find(lease.id).state == LeaseState.RUNNING
    world.machine.break_gpu(Break.OK)
    world.pass_time(100)
    world.pool.tickets.attend(ticket.id)
    world.work()
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_destroy_in_use_is_retried_then_quarantined(world: World) -> None:
    """A slice that cannot be destroyed stays scrubbing, is tried again, and is set aside."""
    lease = world.run("ada")
    world.machine.add_process(lease.uuids[0], 4242, 10)
    world.end(lease)
    assert world.states() == ["scrubbing"]
    other = world.run("bob")
    assert other.slices[0].start != lease.slices[0].start
    for _ in range(SETTINGS.tuning.quarantine_after):
        world.work_after(SETTINGS.tuning.retry_max_s)
    assert world.states() == ["leased", "quarantined"]
    (bad,) = [s for s in world.pool.snapshot().gpus[0].slices if s.state == "quarantined"]
    assert bad.reason
    world.machine.remove_process(4242)
    world.pool.staff.clear(bad.slice_id, "root")
    world.work()
    assert world.states() == ["leased"]


def test_whole_gpu(make_world: MakeWorld) -> None:
    """A GPU with MIG off is leased whole, by its own UUID, and to one at a time."""
    world = make_world(mig=False)
    gpu = world.pool.snapshot().gpus[0].uuid
    world.machine.add_process(gpu, 77, 100)
    assert world.wait("ada", "full").state == TicketState.WAITING
    assert "77" in world.pool.snapshot().gpus[0].reason
    world.machine.remove_process(77)
    world.pool.sample()
    lease = world.run("ada", "full")
    (whole_gpu,) = lease.slices
    assert (whole_gpu.uuid, whole_gpu.start, whole_gpu.size, whole_gpu.sm_count) == (gpu, 0, 8, 108)
    second = world.wait("bob", "full")
    assert second.state == TicketState.WAITING
    world.end(lease)
    assert world.pool.tickets.find(second.id).state == TicketState.OFFERED


def test_whole_gpu_unknown_processes(make_world: MakeWorld) -> None:
    """A GPU whose processes cannot be read counts as in use."""
    world = make_world(mig=False)
    world.fail("nvmlDeviceGetComputeRunningProcesses", pynvml.NVML_ERROR_NOT_SUPPORTED, 1000)
    world.pool.sample()
    assert world.wait("ada", "full").state == TicketState.WAITING


NEED = "at least 30 GiB"


def test_a_shape_names_the_card(make_world: MakeWorld) -> None:
    """Of two models each profile is made where it is one, and a need is met where it fits best."""
    course = Course(title="Everyone", shapes=("3g.20gb", "3g.40gb", NEED))
    rules = changed(SETTINGS, courses={"everyone": course})
    world = make_world(rules, models=("A100-40GB", "H100-80GB"))
    assert ["A100" in gpu.name for gpu in world.pool.snapshot().gpus] == [True, False]
    for user, shape in (("bo", "3g.40gb"), ("cy", NEED)):
        assert [slice_.gpu for slice_ in world.run(user, shape).slices] == [1]
    waiting = world.wait("dora", "3g.40gb")
    assert world.pool.tickets.find(waiting.id).position == 1
    assert [slice_.gpu for slice_ in world.run("ada", "3g.20gb").slices] == [0]


def make_foreign(world: World, profile: str = "3g.20gb", start: int = 4) -> None:
    info = world.driver.gpus()[0]
    gpu_profile = info.geometry.by_name[profile]
    placement = next(p for p in gpu_profile.placements if p.start == start)
    world.driver.create(info.uuid, gpu_profile, placement)


def test_foreign_slice_is_left_alone(world: World) -> None:
    """A slice that miglab did not make is shown, and outlives everything until it is adopted."""
    make_foreign(world)
    world.pool.reconcile()
    assert world.states() == ["foreign"]
    for lease in [world.run(f"student{n}") for n in range(4)]:
        world.end(lease)
    ticket = world.ask("ada", "7g.40gb")
    world.settle()
    assert world.pool.tickets.find(ticket.id).state != TicketState.OFFERED
    assert "3g.20gb" in [profile for _, profile, _ in world.raw()]
    (foreign,) = (row.id for row in world.ledger.state.slices.values() if row.state == "foreign")
    world.pool.staff.adopt(foreign, "root")
    world.work()
    assert "3g.20gb" not in [profile for _, profile, _ in world.raw()]
    assert refusal(lambda: world.pool.staff.adopt(foreign, "root")).reason == "not-foreign"


def test_stray_container_is_removed(world: World) -> None:
    """A labelled container that never ran, and whose lease is over, is removed."""
    lease = world.run("ada")
    world.end(lease)
    stray, unknown, running = (world.new_holder() for _ in range(3))
    world.label(stray, lease, is_running=False)
    world.label(unknown, lease.model_copy(update={"id": 999}), is_running=False)
    world.label(running, lease)
    findings = world.pool.reconcile()
    assert world.holders.removed == [stray]
    assert {finding.target for finding in findings} == {stray, unknown, running}


def test_reboot(world: World) -> None:
    """After a reboot leases whose holders are gone are released, and who waits is served."""
    leases = [world.run(f"student{n}") for n in range(6)]
    offered = world.wait("ada")
    waiting = world.ask("bob")
    world.machine.reboot()
    world.holders.present.clear()
    world.crash()
    first = world.pool.tickets.find(offered.id)
    assert (first.state, first.position) == (TicketState.WAITING, 1)
    world.work()
    assert {world.pool.leases.find(lease.id).state for lease in leases} == {LeaseState.RELEASED}
    for ticket in (offered, waiting):
        assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_slice_gone_holder_alive(world: World) -> None:
    """A server that outlives its slice is due for stopping, is told why, and blocks its GPU."""
    lease = world.run("ada")
    world.machine.reboot()
    world.pool.reconcile()
    now = world.pool.leases.find(lease.id)
    assert now.state == LeaseState.RELEASING
    assert "slice is gone" in now.reason
    assert [due.id for due in world.pool.leases.leases_to_stop()] == [lease.id]
    ticket = world.wait("bob")
    assert ticket.state == TicketState.WAITING
    assert world.ledger.state.tickets[ticket.id].lease is None
    assert "takes no new lease" in world.pool.snapshot().gpus[0].reason
    world.holders.present.clear()
    world.work_after(1)
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_sample(world: World) -> None:
    """Memory and processes of a slice are shown as read, and a failed reading as unknown."""
    lease = world.run("ada")
    world.machine.add_process(lease.uuids[0], 4242, 512)
    world.pool.sample()
    (view,) = world.pool.snapshot().gpus[0].slices
    assert view.processes == 1
    assert view.memory_used_mib is not None
    assert view.memory_used_mib >= 512
    world.fail("nvmlDeviceGetMaxMigDeviceCount", times=50)
    world.pool.sample()
    (view,) = world.pool.snapshot().gpus[0].slices
    assert view.processes is None


def test_offers(make_world: MakeWorld) -> None:
    """What could be granted right now; what is kept for the first in the queue is said to be."""
    world = make_world(changed(SETTINGS, lease_s=3600.0))
    world.run("ada")
    offers = offer_by_shape(world)
    free = [offers[shape].free_now for shape in ("1g.5gb", "2x1g.5gb", "7g.40gb", "cpu")]
    assert free == [6, 3, 0, None]
    assert not any(offer.is_held for offer in offers.values())
    assert {offer.compute_slices for offer in offers.values() if offer.shape != "cpu"} == {7}
    world.wait("bob", "7g.40gb")
    offers = offer_by_shape(world)
    assert (offers["1g.5gb"].free_now, offers["1g.5gb"].is_held) == (0, True)
    assert not offers["7g.40gb"].is_held
    assert world.ask("cy").position == 2
    world.work()
    assert [ticket.position for ticket in world.pool.snapshot().waiting] == [1, 2]


def offer_by_shape(world: World) -> dict[str, ShapeOffer]:
    (course,) = world.pool.offers(["everyone", "nowhere"]).courses
    return {offer.shape: offer for offer in course.shapes}


def test_every_page_counts_the_same_people(world: World) -> None:
    """Spawn page, pool page and JupyterLab: one count, in leases of the smallest shape."""
    world.run("ada", "3g.20gb")
    pool = world.pool
    people = pool.snapshot().people
    assert (people.shape, people.free, people.total) == ("1g.5gb", 4, 7)
    world.ask("bob", "7g.40gb")
    world.ask("bob", "7g.40gb", server="lab2")
    people = pool.snapshot().people
    assert people.free == 0  # it is kept for bob
    assert (people.holding, people.waiting) == (1, 1)
    assert pool.offers("cy", ["everyone"]).people == people
    status = pool.tickets.server_status("ada", "")
    assert status.people == "0 of 7 free (1g.5gb); 1 holds, 1 waits"


def test_a_pause_outlives_the_pool(world: World) -> None:
    """A pool that died while paused grants nothing when it is back, and still says why.

    It refuses nobody who asks again for a ticket or a slice they have: a hub may restart.
    """
    taken_id, ticket = world.grant("cy").ticket, world.ask("ada")
    world.pool.staff.pause("maintenance", "root")
    world.crash()
    world.work()
    assert world.pool.snapshot().paused == "maintenance"
    assert world.pool.tickets.find(ticket.id).state == TicketState.WAITING
    assert [world.ask(user).id for user in ("cy", "ada")] == [taken_id, ticket.id]
    assert refusal(lambda: world.ask("bob")).reason == "paused"
    world.pool.staff.resume("root")
    world.crash()
    world.work()
    assert world.pool.snapshot().paused == ""
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_probe_kind_alone(world: World) -> None:
    """A service may ask for acts of one kind only."""
    lease = world.run("ada")
    world.pool.leases.release(lease.id, "hub", "stopped")
    job = world.pool.next_job({JobKind.PROBE})
    assert job.kind is JobKind.PROBE
    assert world.pool.next_job({JobKind.CREATE}) is None


def test_reused_ids_are_not_handed_out(world: World) -> None:
    """After an unseen driver reload a new slice with an old one's UUID is handed to nobody."""
    lease = world.run("ada")
    world.machine.reboot()
    assert world.wait("bob").state == TicketState.WAITING
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASING


def test_an_abandoned_holder_is_ended(world: World) -> None:
    """Only once it is abandoned, only that one, and the ledger says so first."""
    lease, other = world.run("ada"), world.run("bob")
    world.pool.leases.release(lease.id, "pool", "The class is over.")
    world.work_after(600)
    assert lease.holder in world.holders.present
    world.pool.leases.abandon(frozenset({lease.id, other.id}))
    world.work_after(world.settings.tuning.probe_s)
    assert world.holders.removed == [lease.holder]
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    assert world.pool.leases.find(other.id).state == LeaseState.RUNNING
    reasons = [row["reason"] for row in world.ledger.history("lease", str(lease.id))]
    assert any("the pool ends" in reason for reason in reasons)


def test_what_an_engine_has_forgotten_is_ended_before_its_slice_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, whatever the lease's state: of it nobody but the kernel knows."""
    lease = world.run("ada")
    world.holders.present.remove(lease.holder)
    world.holders.forgotten.add(lease.holder)
    with monkeypatch.context() as patch:
        patch.setattr(world.holders, "end", lambda _holder: False)
        world.pool.reconcile()
        world.work_after(600)
    assert world.pool.leases.find(lease.id).state == LeaseState.RUNNING
    states = []
    world.holders.before_remove = lambda: states.append(world.pool.leases.find(lease.id).state)
    world.pass_time(600)
    world.pool.reconcile()
    world.work()
    assert (world.holders.removed, states) == ([lease.holder], [LeaseState.RUNNING])
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    reasons = [row["reason"] for row in world.ledger.history("lease", str(lease.id))]
    assert any("its engine has forgotten it" in reason for reason in reasons)

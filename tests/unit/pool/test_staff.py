"""What staff do to GPUs, slices, leases and tickets by hand, over the simulated GPUs."""

import threading
from collections.abc import Callable

from tests.pool_settings import changed

from miglab_api.gpus import SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.tickets import TicketState
from miglab_pool.refused import Refused

from .conftest import SETTINGS, World
from .test_pool import refusal
from .test_reservations import before_class, reserve

MakeWorld = Callable[..., World]
INA, JO = "person:ina", "person:jo"


def gpu_of(world: World, index: int = 0) -> str:
    return world.pool.snapshot().gpus[index].uuid


def slices(world: World, index: int = 0) -> tuple[SliceView, ...]:
    return world.pool.snapshot().gpus[index].slices


def last(world: World, kind: str, target: object) -> tuple[str, str, str]:
    step = world.ledger.history(kind, str(target))[0]
    return step["action"], step["by"], step["reason"]


def test_a_drained_gpu_takes_no_new_lease(make_world: MakeWorld) -> None:
    """Who runs there runs on; whoever asks gets the other GPU, and then waits; until it ends."""
    world = make_world(gpus=2)
    lease = world.run("ada", "4g.20gb")
    granted = world.ask("eve")
    world.pool.turn()  # its slice is being made there
    drained = world.pool.staff.drain(gpu_of(world), "The fan is broken.", INA)
    world.work()
    before = world.pool.tickets.take(granted.id)
    assert before.slices[0].gpu == 0
    assert drained.draining == "The fan is broken." and drained.state == "ok"
    assert last(world, "gpu", drained.uuid) == ("drain", INA, "The fan is broken.")
    assert world.run("bob", "3g.20gb").slices[0].gpu == 1
    assert world.run("cy", "3g.20gb").slices[0].gpu == 1
    (course,) = world.pool.offers(["everyone"]).courses
    assert {one.free_now for one in course.shapes if one.shape != "cpu"} == {0}
    late = world.wait("dee", "3g.20gb")
    assert world.pool.tickets.find(late.id).state is TicketState.WAITING
    assert world.pool.leases.find(lease.id).state is LeaseState.RUNNING
    world.end(lease)
    assert [one.lease for one in slices(world)] == [before.id], "nothing is made ahead there"
    assert world.pool.staff.undrain(drained.uuid, "", INA).draining == ""
    world.work()
    assert world.pool.tickets.take(late.id).slices[0].gpu == 0


def test_who_waits_for_a_drained_lab_reads_why(make_world: MakeWorld) -> None:
    """While another GPU takes leases, nothing; once none does, in the words of who drained them."""
    world = make_world(gpus=2)
    world.pool.staff.drain(gpu_of(world, 0), "New fans.", INA)
    world.run("big", "7g.40gb")
    ticket = world.ask("ada", "7g.40gb")
    assert world.pool.tickets.find(ticket.id).message == ""
    world.pool.staff.drain(gpu_of(world, 1), "New fans.", INA)
    world.crash()
    assert "(“New fans.”); you keep your position" in world.pool.tickets.find(ticket.id).message


def test_a_gpu_leased_whole_is_drained_too(make_world: MakeWorld) -> None:
    """A GPU with MIG off, drained, is not leased; its lease's slice is drained as a GPU."""
    world = make_world(mig=False)
    lease = world.run("ada", "full")
    refused = refusal(lambda: world.pool.staff.drain(lease.slices[0].slice_id, "Fan.", INA))
    assert (refused.reason, "drain the GPU" in refused.message) == ("whole-gpu", True)
    world.pool.staff.drain(gpu_of(world), "Fan.", INA)
    world.end(lease)
    world.wait("bob", "full")
    assert slices(world) == ()


def free_slice(world: World) -> SliceView:
    world.end(world.run("ada"))
    return slices(world)[0]


def test_a_drained_slice_survives_reboot_and_driver_faults(world: World) -> None:
    """Its place stays closed: after a reboot it is made anew, drained, as often as it takes."""
    free = free_slice(world)
    world.pool.staff.drain(free.slice_id, "Strange errors.", INA)
    world.machine.reboot()
    world.fail("nvmlDeviceCreateGpuInstance", times=2)
    world.crash()
    world.settle()
    (anew,) = slices(world)
    assert (anew.start, anew.state, anew.draining) == (
        free.start, SliceState.FREE, "Strange errors.",
    )  # fmt: skip
    for n in range(7):
        world.ask(f"student{n}")
    world.work()
    held = [one for one in slices(world) if one.lease is not None]
    assert len(held) == 6 and all(one.start != free.start for one in held)
    assert world.pool.staff.slice(anew.slice_id).draining == "Strange errors."


def test_quarantined_and_tried_again(world: World) -> None:
    """A free slice that is set aside stays as it is, with name and reason, until it is cleared."""
    free = free_slice(world)
    aside = world.pool.staff.quarantine(free.slice_id, "Wrong results.", INA)
    assert (aside.state, aside.reason) == (SliceState.QUARANTINED, "Wrong results.")
    assert last(world, "slice", free.slice_id) == ("quarantine", INA, "Wrong results.")
    world.ask("bob", "7g.40gb")
    world.settle()
    assert [one.slice_id for one in slices(world)] == [free.slice_id]
    world.pool.staff.clear(free.slice_id, JO, "Tested: fine.")
    assert last(world, "slice", free.slice_id) == ("clear", JO, "Tested: fine.")
    world.work()
    assert world.pool.leases.of_server("bob", "") is not None


def test_two_at_once_one_wins_the_other_is_told(world: World) -> None:
    """Both saw the same and act in the same moment: one act is done, the other names who did it."""
    lease = world.run("ada")
    gate, won, told = threading.Barrier(2), [], []

    def do(by: str) -> None:
        gate.wait()
        try:
            world.pool.staff.reclaim(lease.id, "Mine.", by, 60.0, "running")
            won.append(by)
        except Refused as refused:
            told.append(refused)

    both = [threading.Thread(target=do, args=(by,)) for by in (INA, JO)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(won) == len(told) == 1
    assert told[0].reason == "changed-meanwhile"
    assert won[0].removeprefix("person:") in told[0].message and "“Mine.”" in told[0].message
    acts = [step for step in world.ledger.history() if step["action"]]
    assert [step["by"] for step in acts] == won


def test_a_slice_that_is_another_by_now(world: World) -> None:
    """What was seen was scrubbed meanwhile: its number is gone, and the person is told."""
    lease = world.run("ada")
    number = lease.slices[0].slice_id
    world.end(lease)
    refused = refusal(lambda: world.pool.staff.drain(number, "Fan.", INA, "leased"))
    assert refused.reason == "changed-meanwhile" and "gone" in refused.message


def test_taken_back_after_a_warning(make_world: MakeWorld) -> None:
    """The holder is told by whom and why; nothing but staff puts it off; then it is released."""
    world = make_world(changed(SETTINGS, lease_s=6000.0))
    lease = world.run("ada")
    warned = world.pool.staff.reclaim(lease.id, "I need it for the exam.", INA, 60.0)
    assert warned.warning is not None and warned.warning.kind is WarningKind.STAFF
    assert warned.warning.reclaim_at == world.at + 60
    assert "ina" in warned.warning.reason and "the exam" in warned.warning.reason
    for call in (
        lambda: world.pool.leases.keepalive(lease.id, "ada"),
        lambda: world.pool.leases.extend(lease.id, 60, "ada"),
        lambda: world.pool.leases.warn(
            lease.id, WarningKind.NEEDED, "Somebody needs it.", world.at
        ),
    ):
        refusal(call)
    world.pass_time(59.0)
    assert world.pool.staff.release_reclaimed() == []
    world.pass_time(1.0)
    (over,) = world.pool.staff.release_reclaimed()
    assert (over.id, over.state) == (lease.id, LeaseState.RELEASING)
    assert "the exam" in over.reason
    assert last(world, "lease", lease.id)[1] == INA
    world.end(lease)
    assert world.pool.leases.find(lease.id).state is LeaseState.RELEASED


def test_taken_back_at_once(world: World) -> None:
    """Also one that is warned already; its slice is free once its server is gone, never before."""
    lease = world.run("ada")
    world.pool.staff.reclaim(lease.id, "Exam.", INA, 60.0)
    over = world.pool.staff.reclaim(lease.id, "Right now.", JO, 0.0)
    assert over.state is LeaseState.RELEASING and "jo" in over.reason
    assert last(world, "lease", lease.id)[:2] == ("reclaim", JO)
    world.work()
    assert slices(world)[0].lease == lease.id
    world.end(lease)
    assert slices(world)[0].lease is None
    grant = world.grant("bob")
    assert world.pool.staff.reclaim(grant.id, "Exam.", INA, 300.0).state is LeaseState.RELEASED


def test_staff_extend_beyond_what_a_student_may(make_world: MakeWorld) -> None:
    """As often and as long as they wish, not using up the student's own; staff's warning ends."""
    world = make_world(changed(SETTINGS, lease_s=600.0, extensions=1, extension_s=60.0))
    lease = world.run("ada")
    world.pool.leases.extend(lease.id, 60, "ada")
    refusal(lambda: world.pool.leases.extend(lease.id, 60, "ada"))
    world.pool.staff.reclaim(lease.id, "Exam.", INA, 60.0)
    later = world.pool.staff.extend(lease.id, 7200, JO, "She presents today.", "warned")
    assert later.guaranteed_until == world.at + 600 + 60 + 7200
    assert (later.state, later.warning, later.extensions_left) == (LeaseState.RUNNING, None, 0)
    assert last(world, "lease", lease.id) == ("extend", JO, "She presents today.")
    world.pass_time(100.0)
    assert world.pool.staff.release_reclaimed() == []
    world.end(lease)
    assert refusal(lambda: world.pool.staff.extend(lease.id, 60, INA)).reason == "no-extension"


def served_next(world: World, lease: LeaseView) -> str:
    """Who gets what this lease frees."""
    world.end(lease)
    held = {one.user for one in world.pool.leases.live()}
    return next(user for user in ("bob", "cy", "dee") if user in held)


def test_put_in_front(make_world: MakeWorld) -> None:
    """Before those who came earlier and have waited longest; said to the student, and kept."""
    world = make_world(changed(SETTINGS, ageing_s=10.0))
    lease = world.run("big", "7g.40gb")
    tickets = {}
    for user in ("bob", "cy", "dee"):
        tickets[user] = world.ask(user, "7g.40gb").id
        world.pass_time(60.0)
        world.attend_all()
    for user in ("dee", "cy"):
        world.pass_time(1.0)
        put = world.pool.staff.put_in_front(tickets[user], "Presents today.", INA)
        assert (put.is_next, "next slices" in put.message) == (True, True)
        assert last(world, "ticket", put.id) == ("next", INA, "Presents today.")
    assert [one.user for one in world.pool.snapshot().waiting] == ["dee", "cy", "bob"]
    back = world.pool.staff.put_back(tickets["dee"], JO)
    assert (back.is_next, last(world, "ticket", back.id)[:2]) == (False, ("back", JO))
    world.crash()
    assert world.pool.tickets.find(tickets["cy"]).is_next
    assert served_next(world, lease) == "cy"


def test_a_class_that_has_reserved_goes_before(make_world: MakeWorld) -> None:
    """A reservation in force is not overruled by hand."""
    world = before_class(make_world, SETTINGS, by_s=1800)
    lease = world.run("big", "7g.40gb")
    reserve(world, course="vision")
    world.pass_time(31 * 60)
    world.pool.turn()
    world.pool.staff.put_in_front(world.ask("bob").id, "Presents.", INA)
    reserved = world.ask("cy", course="vision")
    assert reserved.position == 1
    assert world.pool.staff.put_in_front(reserved.id, "Presents.", INA).position == 1
    assert served_next(world, lease) == "cy"


def test_who_is_not_in_the_queue_is_not_put_in_front(world: World) -> None:
    """Neither who has the slices already, nor who gave up."""
    served, gone = world.ask("ada"), world.ask("bob")
    world.pool.tickets.cancel(gone.id, "bob")
    world.work()
    refused = refusal(lambda: world.pool.staff.put_in_front(served.id, "Presents.", INA))
    assert (refused.reason, "slices already" in refused.message) == ("not-waiting", True)
    refused = refusal(lambda: world.pool.staff.put_back(gone.id, INA))
    assert (refused.reason, "cancelled" in refused.message) == ("not-waiting", True)


def test_a_pause_is_not_written_over(world: World) -> None:
    """Who pauses what is paused, or resumes what is not, is told who was first, and why."""
    assert refusal(lambda: world.pool.staff.resume(INA)).reason == "already-done"
    world.pool.staff.pause("Repairs.", INA)
    refused = refusal(lambda: world.pool.staff.pause("Lunch.", JO))
    assert refused.reason == "already-done"
    assert "ina paused it less than a minute ago (“Repairs.”)" in refused.message
    assert world.pool.snapshot().paused == "Repairs."
    world.pool.staff.resume(JO)
    assert "jo resumed it" in refusal(lambda: world.pool.staff.resume(INA)).message


def test_staff_do_not_put_off_maintenance(world: World) -> None:
    """However long their warning is, it ends when the one before it would have."""
    lease = world.run("ada")
    world.pool.leases.warn(lease.id, WarningKind.MAINTENANCE, "Maintenance.", world.at + 60)
    warning = world.pool.staff.reclaim(lease.id, "Exam.", INA, 3600.0).warning
    assert (warning.kind, warning.reclaim_at) == (WarningKind.STAFF, world.at + 60)

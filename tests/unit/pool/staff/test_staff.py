"""What staff do to GPUs, slices, leases and tickets by hand, over the simulated GPUs."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World
from tests.unit.pool.reservations.test_reservations import before_class, reserve
from tests.unit.pool.test_pool import refusal

from miglab_api.gpus import SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.tickets import TicketState
from miglab_pool.ledger.rows import GpuRow, LeaseRow, Row, SliceRow, TicketRow
from miglab_pool.refused import Refused
from miglab_pool.staff import rules as staff_actions

MakeWorld = Callable[..., World]
INA, JO = "person:ina", "person:jo"


def gpu_of(world: World, index: int = 0) -> str:
    return world.pool.snapshot().gpus[index].uuid


def slices(world: World, index: int = 0) -> tuple[SliceView, ...]:
    return world.pool.snapshot().gpus[index].slices


def last_action(world: World, kind: str, target: object) -> tuple[str, str, str]:
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
    assert last_action(world, "gpu", drained.uuid) == ("drain", INA, "The fan is broken.")
    assert world.run("bob", "3g.20gb").slices[0].gpu == 1
    assert world.run("cy", "3g.20gb").slices[0].gpu == 1
    (course,) = world.pool.offers(["everyone"]).courses
    assert {offer.free_now for offer in course.shapes if offer.shape != "cpu"} == {0}
    late = world.wait("dee", "3g.20gb")
    assert late.state is TicketState.WAITING
    assert world.pool.leases.find(lease.id).state is LeaseState.RUNNING
    world.end(lease)
    assert [slice_view.lease for slice_view in slices(world)] == [before.id], (
        "nothing is made ahead there"
    )
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
    leased = [slice_view for slice_view in slices(world) if slice_view.lease is not None]
    assert len(leased) == 6 and all(slice_view.start != free.start for slice_view in leased)
    assert world.pool.staff.slice(anew.slice_id).draining == "Strange errors."


def test_quarantined_and_tried_again(world: World) -> None:
    """A free slice that is set aside stays as it is, with name and reason, until it is cleared."""
    free = free_slice(world)
    aside = world.pool.staff.quarantine(free.slice_id, "Wrong results.", INA)
    assert (aside.state, aside.reason) == (SliceState.QUARANTINED, "Wrong results.")
    assert last_action(world, "slice", free.slice_id) == ("quarantine", INA, "Wrong results.")
    world.ask("bob", "7g.40gb")
    world.settle()
    assert [slice_view.slice_id for slice_view in slices(world)] == [free.slice_id]
    world.pool.staff.clear(free.slice_id, JO, "Tested: fine.")
    assert last_action(world, "slice", free.slice_id) == ("clear", JO, "Tested: fine.")
    world.work()
    assert world.pool.leases.lease_of_server("bob", "") is not None


def test_two_at_once_one_wins_the_other_is_told(world: World) -> None:
    """Both saw the same and act in the same moment: one act is done, the other names who did it."""
    lease = world.run("ada")
    gate, won, refusals = threading.Barrier(2), [], []

    def reclaim_as(actor: str) -> None:
        gate.wait()
        try:
            world.pool.staff.reclaim(lease.id, "Mine.", actor, 60.0, "running")
            won.append(actor)
        except Refused as refused:
            refusals.append(refused)

    both = [threading.Thread(target=reclaim_as, args=(actor,)) for actor in (INA, JO)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(won) == len(refusals) == 1
    assert refusals[0].reason == "changed-meanwhile"
    assert (
        won[0].removeprefix("person:") in refusals[0].message and "“Mine.”" in refusals[0].message
    )
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
    assert last_action(world, "lease", lease.id)[1] == INA
    world.end(lease)
    assert world.pool.leases.find(lease.id).state is LeaseState.RELEASED


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
    assert last_action(world, "lease", lease.id) == ("extend", JO, "She presents today.")
    world.pass_time(100.0)
    assert world.pool.staff.release_reclaimed() == []
    world.end(lease)
    assert refusal(lambda: world.pool.staff.extend(lease.id, 60, INA)).reason == "no-extension"


def served_next(world: World, lease: LeaseView) -> str:
    """Who gets what this lease frees."""
    world.end(lease)
    users = {lease_view.user for lease_view in world.pool.leases.live()}
    return next(user for user in ("bob", "cy", "dee") if user in users)


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
        assert last_action(world, "ticket", put.id) == ("next", INA, "Presents today.")
    assert [t.user for t in world.pool.snapshot().waiting] == ["dee", "cy", "bob"]
    back = world.pool.staff.put_back(tickets["dee"], JO)
    assert (back.is_next, last_action(world, "ticket", back.id)[:2]) == (False, ("back", JO))
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
    served, cancelled = world.ask("ada"), world.ask("bob")
    world.pool.tickets.cancel(cancelled.id, "bob")
    world.work()
    refused = refusal(lambda: world.pool.staff.put_in_front(served.id, "Presents.", INA))
    assert (refused.reason, "slices already" in refused.message) == ("not-waiting", True)
    refused = refusal(lambda: world.pool.staff.put_back(cancelled.id, INA))
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


INA = "person:ina"
GPU = GpuRow("GPU-0", 3, "A100", 40960, 8, 108, mig=True, state="ok")
FREE = SliceRow(31, "GPU-0", 7, "1g.5gb", 0, 1, 14, 4864, SliceState.FREE)
LEASE = LeaseRow(
    5, 4, 7, "ada", "", "ml", "1g.5gb", LeaseState.RUNNING, 1.0,
    holder="container:aa", guaranteed_until=100.0,
)  # fmt: skip
TICKET = TicketRow(9, "bob", "", "ml", "1g.5gb", "1g.5gb", TicketState.WAITING, 1.0, 1.0)


@pytest.mark.parametrize(
    ("row", "standing"),
    [
        (GPU, "ok"),
        (replace(GPU, state="unknown"), "unknown"),
        (replace(GPU, draining="Fan."), "draining"),
        (replace(GPU, state="lost", draining="Fan."), "draining"),
        (FREE, "free"),
        (replace(FREE, state="leased", draining="Fan."), "draining"),
        (replace(FREE, state="quarantined", draining="Fan."), "quarantined"),
        (LEASE, "running"),
        (TICKET, "waiting"),
        (replace(TICKET, next_at=1.0), "next"),
        (replace(TICKET, state=TicketState.OFFERED, next_at=1.0), "offered"),
    ],
)
def test_how_a_thing_stands(row: Row, standing: str) -> None:
    """In the one word that pages show and send back; then it is as it was seen."""
    assert staff_actions.status_word(row) == standing
    assert staff_actions.is_as_expected(row, standing) and staff_actions.is_as_expected(row, None)
    assert not staff_actions.is_as_expected(row, "elsewhere")


@pytest.mark.parametrize(
    ("row", "expected", "message"),
    [
        (replace(GPU, draining="Fan."), "ok",
         "GPU 3 is draining now, not ok: ina did it. Nothing was done: look again, then decide."),
        (replace(FREE, generation=8), "7",
         "Slice 31 is free now, not 7: ina did it. Nothing was done: look again, then decide."),
        (LEASE, "running",
         "Lease 5 is another by now: ina did it. Nothing was done: look again, then decide."),
    ],
)  # fmt: skip
def test_who_comes_second_is_told(row: Row, expected: str, message: str) -> None:
    """What it is now, what was seen, who did what; nobody's own words are changed."""
    assert staff_actions.changed_refusal(row, expected, "ina did it").message == message
    assert "“my gpu”" in staff_actions.changed_refusal(row, expected, "ina (“my gpu”)").message


@pytest.mark.parametrize("state", list(SliceState))
def test_which_slices_are_drained_and_which_quarantined(state: SliceState) -> None:
    """Drained is what somebody may yet get; set aside what is free; a refusal names the slice."""
    row = replace(FREE, state=state, lease=5 if state is SliceState.LEASED else None)
    can_drain = state in (
        SliceState.FREE, SliceState.LEASED, SliceState.MAKING, SliceState.SCRUBBING,
    )  # fmt: skip
    acts: list[tuple[Callable[[], SliceRow], bool]] = [
        (lambda: staff_actions.drain(row, "Fan.", ""), can_drain),
        (lambda: staff_actions.quarantine(row, "Fan.", ""), state is SliceState.FREE),
    ]
    for decide, can in acts:
        if can:
            assert decide() != row
        else:
            with pytest.raises(Refused, match="Slice 31"):
                decide()
    if state is SliceState.FREE:  # whoever drained the place ends that: clearing does not
        aside = staff_actions.quarantine(replace(row, draining="Fan."), "Errors.", "")
        assert (aside.draining, aside.reason) == ("Fan.", "Errors.")


@pytest.mark.parametrize("state", list(LeaseState))
@pytest.mark.parametrize("warning_s", [0.0, 60.0])
def test_which_leases_are_taken_back(state: LeaseState, warning_s: float) -> None:
    """Warned while in use, released at once without a server or a warning, refused when over."""
    row = replace(LEASE, state=state, holder="" if state is LeaseState.GRANTED else LEASE.holder)
    if state in (LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.EXPIRED):
        with pytest.raises(Refused) as caught:
            staff_actions.warn_for_reclaim(row, INA, "Exam.", warning_s, 50.0)
        assert caught.value.reason == "already-done"
        return
    warned = staff_actions.warn_for_reclaim(row, INA, "Exam.", warning_s, 50.0)
    assert (warned is None) == (state is LeaseState.GRANTED or not warning_s)
    if warned is not None:
        assert (warned.warn_kind, warned.reclaim_at, warned.warn_by) == ("staff", 110.0, INA)


@pytest.mark.parametrize(
    ("reclaim_at", "is_due"), [(None, False), (59.0, True), (60.0, True), (61.0, False)]
)
@pytest.mark.parametrize("kind", ["staff", "idle"])
def test_when_a_warning_is_over(kind: str, reclaim_at: float | None, is_due: bool) -> None:
    """Only staff end what staff alone began."""
    row = replace(LEASE, state=LeaseState.WARNED, warn_kind=kind, reclaim_at=reclaim_at)
    assert staff_actions.is_reclaim_due(row, 60.0) == (is_due and kind == "staff")


times = st.floats(0, 1e6, allow_nan=False)


@given(
    guaranteed_until=times,
    by_s=st.floats(1, 1e6),
    at=times,
    kind=st.sampled_from(["", *WarningKind]),
)
def test_time_is_only_ever_given(
    guaranteed_until: float, by_s: float, at: float, kind: str
) -> None:
    """No extension shortens a guarantee, and none is left warned."""
    state = LeaseState.WARNED if kind else LeaseState.RUNNING
    row = replace(
        LEASE, state=state, guaranteed_until=guaranteed_until, warn_kind=kind, warn_reason="Why."
    )
    try:
        after = staff_actions.extend_guarantee(row, by_s, at, 60.0)
    except Refused as refused:
        assert refused.reason == "no-extension"
        assert kind in staff_actions.FIXED_ENDS
        return
    assert after.state is LeaseState.RUNNING and not after.warn_kind
    assert after.guaranteed_until >= max(guaranteed_until, at + by_s)
    assert after.extensions == row.extensions


def test_put_in_front_and_back() -> None:
    """And what was done twice is told, by whom."""
    first = staff_actions.put_in_front(TICKET, 60.0, "")
    assert first.next_at == 60.0 and staff_actions.restore_position(first, "") == TICKET
    with pytest.raises(Refused, match="Ticket 9 is in front already: ina put it in front"):
        staff_actions.put_in_front(first, 61.0, "ina put it in front")
    with pytest.raises(Refused, match="Ticket 9 is not in front any more: jo put it back"):
        staff_actions.restore_position(TICKET, "jo put it back")

"""GPUs that answer and take no new lease: they need a reset, or have the wrong MIG mode."""

from collections.abc import Callable

import pynvml
import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, World
from tests.unit.pool.layout_drafts import draft

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.readings import GpuInfo
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.gpu.xids import XidScope, scope_of
from miglab_pool.refused import Refused
from miglab_pool.settings import Course, Gpus
from miglab_pool.worker.faults import CAUSE, MOST_MESSAGES, SHOWN_S
from miglab_pool.worker.health_findings import pool_findings, wrong_mode

MakeWorld = Callable[..., World]
H100 = ("H100-80GB",)
HOPPER = changed(
    SETTINGS,
    gpus=Gpus(simulate=H100),
    courses={"everyone": Course(title="Everyone", shapes=("1g.10gb", "full"))},
)


def old_driver(world: World) -> None:
    """A driver that does not know the recovery action."""
    world.fail("nvmlDeviceGetFieldValues", pynvml.NVML_ERROR_INVALID_ARGUMENT, 10**9)


def state(world: World) -> str:
    """Of the only GPU, once it was looked at."""
    world.pool.reconcile()
    (gpu,) = world.pool.snapshot().gpus
    return gpu.state


def reasons_noted(world: World, kind: str) -> list[str]:
    return [str(row["reason"]) for row in world.ledger.history(kind) if row["by"] == CAUSE]


def messages(world: World, user: str) -> list[str]:
    return [message.text for message in world.pool.staff.messages_for(user, "", ["everyone"])]


# -- faults of the card ---------------------------------------------------------------------------


def test_a_card_that_needs_a_reset_gets_nothing_new(world: World) -> None:
    """Who is on it goes on, who asks waits, also after a restart of the pool; a reset ends it."""
    lease = world.run("ada")
    world.machine.break_gpu(Break.XID, xid=95)
    world.pool.reconcile()
    ticket = world.wait("bob")
    assert ticket.state == TicketState.WAITING
    (gpu,) = world.pool.snapshot().gpus
    assert (gpu.state, "needs a GPU reset" in gpu.reason) == ("unfit", True)
    world.crash()
    world.work()
    assert world.pool.tickets.find(ticket.id).state == TicketState.WAITING
    assert world.pool.leases.find(lease.id).state is LeaseState.RUNNING
    world.end(lease)  # its slice is destroyed all the same
    assert world.raw() == []
    world.machine.reboot()
    assert state(world) == "ok"
    world.work()
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_the_row_remembers_what_an_old_driver_does_not(world: World) -> None:
    """Without the recovery action the catalogue counts; a restart, or a look, ends nothing."""
    old_driver(world)
    world.machine.break_gpu(Break.XID, xid=95)
    assert [state(world), state(world)] == ["unfit", "unfit"]
    world.crash()
    assert state(world) == "unfit"
    (gpu,) = world.pool.snapshot().gpus
    assert "Xid 95" in gpu.reason and f"miglab pool undrain gpu {gpu.uuid}" in gpu.reason
    assert gpu.fault
    world.pool.staff.drain(gpu.uuid, "The fan is changed.", "person:bo")
    world.pool.staff.undrain(gpu.uuid, "It was reset.", "person:ina")
    assert world.pool.snapshot().gpus[0].draining == "The fan is changed."
    world.pool.staff.undrain(gpu.uuid, "The fan is new.", "person:bo")
    world.crash()  # which a reset needs: its event is nothing of this start's
    assert state(world) == "ok"
    with pytest.raises(Refused, check=because("already-done")):
        world.pool.staff.undrain(gpu.uuid, "It was reset.", "person:ina")


def test_doctor_promises_nothing_that_the_reason_denies(world: World) -> None:
    """A GPU that waits for an undrain does not come back by itself."""
    old_driver(world)
    world.machine.break_gpu(Break.XID, xid=95)
    assert state(world) == "unfit"
    health = {"is_stuck": False, "is_reconciled": True, "failing": []}
    findings = pool_findings(world.pool.snapshot(), health, [])
    (finding,) = (finding for finding in findings if "unfit" in finding.observation)
    assert "miglab pool undrain gpu" in finding.observation
    assert "by itself" not in finding.remedy


def test_a_reboot_resets_every_card(world: World) -> None:
    """Nobody has to say so."""
    old_driver(world)
    world.machine.break_gpu(Break.XID, xid=48)
    assert state(world) == "unfit"
    world.ledger.close()
    world.machine.reboot()
    old_driver(world)
    world.open()
    assert state(world) == "ok"


def test_the_driver_tells_when_it_is_new_enough(world: World) -> None:
    """After an upgrade of the driver its word takes the place of what the row remembers."""
    old_driver(world)
    world.machine.break_gpu(Break.XID, xid=171)
    assert state(world) == "unfit"
    world.machine.break_gpu("ok")
    assert state(world) == "ok"
    assert world.pool.snapshot().gpus[0].fault == ""


@pytest.mark.parametrize("knows_action", [True, False], ids=["field 230", "catalogue"])
def test_which_xids_stop_new_leases(world: World, knows_action: bool) -> None:
    """The card's own where the driver does not tell; else those after which it asks for a reset."""
    asks = {46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
    for number in range(1, 180):
        if not knows_action:
            old_driver(world)
        world.machine.break_gpu(Break.XID, xid=number)
        is_unfit = number in asks if knows_action else scope_of(number) is XidScope.CARD
        assert (number, state(world)) == (number, "unfit" if is_unfit else "ok")
        world.machine.break_gpu("ok")
        if is_unfit:
            assert state(world) == "ok"


def test_what_is_granted_and_not_attached_goes_elsewhere(make_world: MakeWorld) -> None:
    """A slice that is made on a card that then asks for a reset is given to nobody."""
    world = make_world(gpus=2)
    ticket = world.wait("ada")
    assert ticket.state == TicketState.OFFERED
    (row,) = world.ledger.state.slices.values()
    world.machine.break_gpu(Break.XID, row.gpu, xid=95)
    world.pool.reconcile()
    world.work()
    lease = world.pool.tickets.take(ticket.id)
    assert {world.ledger.state.slices[slice_.slice_id].gpu for slice_ in lease.slices} != {row.gpu}


def test_nothing_is_made_ahead_on_an_unfit_card(world: World) -> None:
    """Neither for a layout: what was to be made is made once the card is well again."""
    world.pool.layouts.apply(draft("2x3g.20gb"), "person:ina")
    world.pool.turn()
    assert world.states() == ["making", "making"]
    world.machine.break_gpu(Break.XID, xid=95)
    world.pool.reconcile()
    world.work()
    assert world.raw() == []
    world.machine.reboot()
    world.pool.reconcile()
    world.work()
    assert len(world.raw()) == 2


def test_leases_on_an_unfit_card_are_still_read(world: World) -> None:
    """Who uses a slice there is seen to use it, so what is known of it goes on."""
    lease = world.run("ada")
    world.machine.break_gpu(Break.XID, xid=95)
    world.pool.reconcile()
    world.machine.add_process(uuid_of(lease), 4242, 100)
    world.pool.sample()
    (slice_,) = world.pool.leases.find(lease.id).slices
    assert slice_.memory_used_mib == 100


# -- faults of a program --------------------------------------------------------------------------


def uuid_of(lease: LeaseView) -> str:
    (uuid,) = lease.uuids
    return uuid


@pytest.mark.parametrize("number", [31, 94, 68])
def test_a_student_is_told_of_a_failed_program(world: World, number: int) -> None:
    """Nobody else is, the lease goes on, the GPU takes others, and the ledger names the lease."""
    lease, other = world.run("ada"), world.run("bob")
    for _ in range(3):
        world.machine.break_gpu(Break.XID, uuid_of(lease), xid=number)
        world.pool.reconcile()
    (text,) = messages(world, "ada")
    assert f"Xid {number}" in text and "Restart the kernel" in text
    assert messages(world, "bob") == []
    assert world.pool.leases.find(lease.id).state is LeaseState.RUNNING
    assert world.wait("cy").state == TicketState.OFFERED
    assert all(line.endswith(f", lease {lease.id}") for line in reasons_noted(world, "gpu"))
    assert len(reasons_noted(world, "lease")) == 3
    world.end(other)
    world.pass_time(SHOWN_S)
    world.pool.turn()
    assert messages(world, "ada") == []


def test_each_student_whose_program_failed_is_told(world: World) -> None:
    """A message to one student does not stand for another's, nor one that is over for a new one."""
    leases = {user: world.run(user) for user in ("ada", "bob")}
    for _ in range(2):
        for user, lease in leases.items():
            world.machine.break_gpu(Break.XID, uuid_of(lease), xid=31)
            world.pool.reconcile()
            assert len(messages(world, user)) == 1
        world.pass_time(SHOWN_S)


@pytest.mark.parametrize("number", [45, 63, 119])
def test_what_is_no_programs_is_no_message(world: World, number: int) -> None:
    """A kernel that is restarted (45), a notice, and the card's own are nothing to a student."""
    lease = world.run("ada")
    world.machine.break_gpu(Break.XID, uuid_of(lease), xid=number)
    world.pool.reconcile()
    assert messages(world, "ada") == []
    (line,) = reasons_noted(world, "lease")
    assert line.startswith(f"Xid {number}")


def test_on_a_whole_gpu_the_fault_is_its_holders(make_world: MakeWorld) -> None:
    """There an event carries no ids."""
    world = make_world(mig=False)
    world.pool.sample()
    world.run("ada", "full")
    world.machine.break_gpu(Break.XID, xid=31)
    world.pool.reconcile()
    assert len(messages(world, "ada")) == 1


def test_a_fault_of_before_is_not_the_next_students(world: World) -> None:
    """The slice went before the fault was read: who has its ids now has not caused it."""
    lease = world.run("ada")
    world.machine.break_gpu(Break.XID, uuid_of(lease), xid=31)
    world.end(lease)
    later = world.run("bob")
    assert uuid_of(later) == uuid_of(lease)
    world.pool.reconcile()
    assert messages(world, "bob") == []
    assert reasons_noted(world, "gpu") == ["Xid 31 (a program's)"]


def test_messages_leave_room_for_staff(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many on display the fault is noted, and nobody is told."""
    monkeypatch.setattr("miglab_pool.worker.faults.MOST_MESSAGES", 0)
    assert MOST_MESSAGES > 0
    lease = world.run("ada")
    world.machine.break_gpu(Break.XID, uuid_of(lease), xid=31)
    world.pool.reconcile()
    assert messages(world, "ada") == [] and len(reasons_noted(world, "lease")) == 1


# -- MIG mode -------------------------------------------------------------------------------------


def gpu_info(mig: bool | None, pending: bool | None, *, has_mig: bool = True) -> GpuInfo:
    geometry = Geometry(8, ("a profile",) if has_mig else ())  # type: ignore[arg-type]
    return GpuInfo("GPU-1", 0, "A100", 40960, 108, geometry, mig, pending)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("mig", [True, False, None])
@pytest.mark.parametrize("pending", [True, False, None])
def test_only_the_wanted_mode_is_right(
    is_whole: bool, mig: bool | None, pending: bool | None
) -> None:
    """Now and after the next reset; anything else is told with the command that mends it."""
    mode = wrong_mode(gpu_info(mig, pending), is_whole=is_whole)
    assert (mode is None) == (mig is pending is (not is_whole))
    assert mode is None or "nvidia-smi" in mode.remedy
    assert wrong_mode(gpu_info(mig, pending, has_mig=False), is_whole=is_whole) is None


def test_a_hopper_that_forgot_its_mode_is_not_leased_whole(make_world: MakeWorld) -> None:
    """Nor can it "never hold" slices: who asks waits, staff read the command, and then it heals."""
    world = make_world(HOPPER, model="H100")
    lease = world.run("ada", "1g.10gb")
    world.ledger.close()
    world.machine.reboot()
    world.holders.present.clear()
    world.open()
    assert state(world) == "unfit"
    (gpu,) = world.pool.snapshot().gpus
    assert f"nvidia-smi -i {gpu.uuid} -mig 1" in gpu.reason
    assert "The host was rebooted" in world.pool.leases.find(lease.id).reason
    with pytest.raises(Refused, check=because("impossible-shape")):
        world.ask("bob", "full")
    ticket = world.wait("bob", "1g.10gb")
    assert ticket.state == TicketState.WAITING
    world.machine.set_mig(True)
    assert state(world) == "ok"
    world.work()
    assert world.pool.tickets.find(ticket.id).state == TicketState.OFFERED


def test_a_mode_that_is_to_go_gets_no_lease(world: World) -> None:
    """Somebody waits for the card to be empty; who is on it goes on; taken back, all is well."""
    lease = world.run("ada")
    nvml = world.driver._nvml
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    nvml.nvmlDeviceSetMigMode(gpu, 0)
    assert state(world) == "unfit"
    assert world.wait("bob").state == TicketState.WAITING
    assert world.pool.leases.find(lease.id).state is LeaseState.RUNNING
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    assert state(world) == "ok"


def test_a_gpu_that_is_wanted_whole_is_not_cut(make_world: MakeWorld) -> None:
    """MIG is on where lab.toml wants it off: it takes neither kind of lease."""
    settings = changed(SETTINGS, gpus=Gpus(simulate=("A100-40GB",), whole=(0,)))
    world = make_world(settings)
    world.pool.sample()
    assert state(world) == "unfit"
    assert "take it out of gpus.whole" in world.pool.snapshot().gpus[0].reason
    assert world.wait("ada", "full").state == TicketState.WAITING
    world.machine.set_mig(False)
    assert state(world) == "ok"
    world.pool.sample()
    world.work()
    assert world.states() == ["leased"]


def test_why_slices_are_gone(world: World) -> None:
    """Without a reboot it was the driver, a reset or a person; the student reads which."""
    lease = world.run("ada")
    (reading,) = world.driver.slices(world.driver.uuids[0])
    world.driver.destroy(reading.gpu_uuid, reading.gi_id)
    world.pool.reconcile()
    assert "the host was not rebooted" in world.pool.leases.find(lease.id).reason
    world.holders.present.clear()
    world.settle()

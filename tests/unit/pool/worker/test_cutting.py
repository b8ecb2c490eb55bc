"""Slices that NVML makes by halves, does not list, goes on listing, or has no room for."""

from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from tests.nvml_errors import hide_profile
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placement, Profile
from miglab_pool.gpu.readings import NoRoom, SliceReading
from miglab_pool.gpu.simulated.state import Delays
from miglab_pool.worker.creation import UUID_LOOKS

MakeWorld = Callable[..., World]
NO_ROOM = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES
DONE_NOTHING = pynvml.NVML_SUCCESS  # NVML says that it did it
CREATE_GPU_INSTANCE = "nvmlDeviceCreateGpuInstance"
CREATE_COMPUTE_INSTANCE = "nvmlGpuInstanceCreateComputeInstance"
DESTROY = "nvmlGpuInstanceDestroy"


def state_of(world: World, ticket: int) -> str:
    return world.pool.tickets.find(ticket).state


def is_served(world: World, ticket: int, within_s: int = 120) -> bool:
    """Whether the ticket is offered its slices while its server goes on asking."""
    for _ in range(within_s):
        if state_of(world, ticket) == TicketState.OFFERED:
            return True
        world.attend_all()
        world.work_after(1)
    return state_of(world, ticket) == TicketState.OFFERED


def gpu_states(world: World) -> list[str]:
    return [gpu.state for gpu in world.pool.snapshot().gpus]


def reasons(world: World, state: str) -> list[str]:
    rows = world.ledger.state.slices.values()
    return [row.reason for row in rows if row.state == state]


# -- listed late or never -------------------------------------------------------------------------


def test_a_slice_is_leased_once_nvml_lists_its_uuid(world: World) -> None:
    """A server that starts earlier would get no GPU, and count as one that has it."""
    world.machine.set_delays(Delays(list_mig_device_s=2.5))
    ticket = world.wait("ada")
    assert (state_of(world, ticket.id), world.states()) == (TicketState.WAITING, ["making"])
    for _ in range(2):
        world.work_after(1)
        assert state_of(world, ticket.id) == TicketState.WAITING
    world.work_after(1)
    assert state_of(world, ticket.id) == TicketState.OFFERED
    assert all(world.pool.tickets.take(ticket.id).uuids)
    assert gpu_states(world) == ["ok"]


def test_a_slice_that_nvml_never_lists_is_destroyed_again(world: World) -> None:
    """After a few looks its ticket waits on, and is served when NVML lists MIG devices again."""
    world.machine.set_delays(Delays(list_mig_device_s=1000))
    ticket = world.wait("ada")
    for _ in range(UUID_LOOKS):
        world.work_after(1)
    history = [row["reason"] for row in world.ledger.history("slice")]
    assert any("did not list its MIG device" in reason for reason in history)
    world.machine.set_delays(Delays())
    assert is_served(world, ticket.id)
    assert len(world.raw()) == 1


def test_a_restart_while_a_uuid_is_awaited_forgets_nothing(world: World) -> None:
    """The slice that was made is taken up again, and no second one is made beside it."""
    world.machine.set_delays(Delays(list_mig_device_s=2.5))
    ticket = world.wait("ada")
    world.crash()
    for _ in range(3):
        world.work_after(1)
    assert state_of(world, ticket.id) == TicketState.OFFERED
    assert len(world.raw()) == 1


# -- destroyed, and still there -------------------------------------------------------------------


def test_a_slice_that_stays_after_its_destruction_is_scrubbed_on(world: World) -> None:
    """NVML said that it is gone: nobody gets its placement, and others get theirs meanwhile."""
    lease = world.run("ada", "3g.20gb")
    world.machine.fail_next(DESTROY, DONE_NOTHING, times=3)
    world.end(lease)
    assert (world.states(), gpu_states(world)) == (["scrubbing"], ["ok"])
    assert "still lists it" in reasons(world, SliceState.SCRUBBING)[0]
    world.end(world.run("cleo"))
    ticket = world.wait("bob", "7g.40gb")
    assert state_of(world, ticket.id) == TicketState.WAITING
    assert is_served(world, ticket.id)
    assert world.states() == ["leased"]


def test_a_remnant_that_cannot_be_found_by_its_id_is_still_there(world: World) -> None:
    """That NVML does not find it is no proof that it is gone while it is listed."""
    lease = world.run("ada", "3g.20gb")
    world.fail("nvmlDeviceGetGpuInstanceById", pynvml.NVML_ERROR_NOT_FOUND)
    world.end(lease)
    assert world.states() == ["scrubbing"]
    world.settle()
    assert SliceState.SCRUBBING not in world.states()


# -- made by halves -------------------------------------------------------------------------------


def test_a_gpu_instance_without_room_for_its_compute_instance_is_cleaned_up(world: World) -> None:
    """The second step's error is not the first's: what is left over is ours, not foreign."""
    world.fail(CREATE_COMPUTE_INSTANCE, NO_ROOM)
    world.fail(DESTROY, pynvml.NVML_ERROR_IN_USE)  # so that it cannot be undone at once
    ticket = world.wait("ada")
    world.work()
    world.pool.reconcile()
    assert world.states() == ["scrubbing"]
    assert is_served(world, ticket.id)
    assert len(world.raw()) == 1


def test_a_gpu_that_somebody_uses_before_it_is_cut_says_so(world: World) -> None:
    """Nothing may run on it while it has no slice: its reason says so, and it heals by itself."""
    (gpu,) = world.machine.state().gpus
    world.machine.add_process(gpu.uuid, 4242, 100)
    ticket = world.wait("ada")
    (gpu_view,) = world.pool.snapshot().gpus
    assert "nothing may run on it" in gpu_view.reason and "Nsight" in gpu_view.reason
    world.machine.remove_process(4242)
    assert is_served(world, ticket.id)


# -- no room --------------------------------------------------------------------------------------


def test_no_room_for_one_takes_nothing_from_another(world: World) -> None:
    """Who was granted in the same moment keeps the grant; the GPU leases on."""
    first, second = world.ask("ada", "3g.20gb"), world.ask("bob", "2g.10gb")
    world.pool.turn()
    granted = world.ledger.state.tickets[second.id].lease
    world.fail(CREATE_GPU_INSTANCE, NO_ROOM)
    world.work()
    assert gpu_states(world) == ["ok"]
    assert world.ledger.state.tickets[second.id].lease == granted
    assert is_served(world, first.id, within_s=2) and is_served(world, second.id, within_s=0)


class RefusingDriver:
    """NVML finds no room for one profile, wherever it is to be."""

    def __init__(self, driver: Any, profile: str) -> None:
        self._driver, self._profile = driver, profile
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def create(self, gpu: str, profile: Profile, placement: Placement) -> SliceReading:
        if profile.name == self._profile:
            self.refusals += 1
            raise NoRoom("Could not create it: there is no room.")
        reading: SliceReading = self._driver.create(gpu, profile, placement)
        return reading


def serve_and_end(world: World, user: str) -> LeaseView:
    lease = world.run(user, "1g.5gb")
    world.end(lease)
    return lease


def test_a_shape_that_never_finds_room_starves_nobody(world: World) -> None:
    """It is tried again, more and more rarely, and everybody behind it is served all the while."""
    refusing = RefusingDriver(world.driver, "7g.40gb")
    world.pool.worker.driver = refusing
    first = world.wait("ada", "7g.40gb")
    for minute in range(20):
        assert serve_and_end(world, f"user-{minute}").slices
        world.pool.tickets.attend(first.id)
        world.work_after(60)
    assert gpu_states(world) == ["ok"]
    assert state_of(world, first.id) == TicketState.WAITING
    assert 3 < refusing.refusals <= 30


def test_a_placement_without_room_is_passed_over(world: World) -> None:
    """The same shape goes to another place at once, and to the refused one after a pause."""
    world.fail(CREATE_GPU_INSTANCE, NO_ROOM)
    first = world.grant("ada")
    second = world.grant("bob")
    starts = {part.start for part in (*first.slices, *second.slices)}
    assert len(starts) == 2
    world.pass_time(SETTINGS.tuning.retry_max_s)
    assert len([world.grant(f"user-{n}").slices for n in range(5)]) == 5


def test_what_is_in_the_way_is_found_and_kept(world: World) -> None:
    """Made by hand after the last look: it is foreign, it stays, and the ticket goes elsewhere."""
    ticket = world.ask("ada", "3g.20gb")
    world.pool.turn()
    (row,) = world.ledger.state.slices.values()
    create = world.driver.create

    def by_hand(gpu: str, profile: Profile, place: Placement) -> SliceReading:
        world.pool.worker.driver.create = create  # type: ignore[method-assign]
        half = world.driver.gpus()[0].geometry.by_name["1g.5gb"]
        create(gpu, half, Placement(place.start, half.size))
        return create(gpu, profile, place)

    world.pool.worker.driver.create = by_hand  # type: ignore[method-assign]
    world.work()
    assert state_of(world, ticket.id) == TicketState.OFFERED
    assert sorted(world.states()) == ["foreign", "leased"]
    assert (row.gpu, "1g.5gb", row.start) in world.raw()


def test_a_slice_of_an_unknown_profile_is_foreign_and_keeps_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer driver's, by its id: others lie beside it, and an admin can have it destroyed."""
    (gpu,) = world.driver.gpus()
    profile = gpu.geometry.by_name["2g.10gb"]
    world.driver.create(gpu.uuid, profile, profile.placements[0])
    hide_profile(monkeypatch, profile.enum)
    world.crash()
    (row,) = world.ledger.state.slices.values()
    assert (row.state, row.profile, row.start, row.size) == ("foreign", "profile 14", 0, 2)
    lease = world.run("ada", "3g.20gb")
    assert world.ledger.state.slices[lease.slices[0].slice_id].start == 4
    assert not is_served(world, world.ask("ben", "4g.20gb").id)
    assert world.pool.layouts.all().gpus
    world.pool.staff.adopt(row.id, "root")
    world.settle()
    assert "foreign" not in world.states()


# -- left over ------------------------------------------------------------------------------------


def remake_by_hand(world: World, row: Any) -> None:
    profile = world.driver.gpus()[0].geometry.by_name[row.profile]
    world.driver.create(row.gpu, profile, Placement(row.start, row.size))


@pytest.mark.parametrize("passed_s, is_ours", [(600, True), (7200, False)])
def test_what_lies_where_the_pool_destroyed_a_slice_is_called_a_remnant(
    make_world: MakeWorld, passed_s: int, is_ours: bool
) -> None:
    """For an hour, also after a restart; it is as untouched as anything foreign."""
    world = make_world(changed(SETTINGS, keep_warm=False))
    lease = world.run("ada", "3g.20gb")
    row = world.ledger.state.slices[lease.slices[0].slice_id]
    world.end(lease)
    assert world.states() == []
    world.pass_time(passed_s)
    remake_by_hand(world, row)
    world.crash()
    (reason,) = reasons(world, SliceState.FOREIGN)
    assert ("remnant" in reason) == is_ours
    assert ("miglab did not make it" in reason) != is_ours
    world.settle()
    assert len(reasons(world, SliceState.FOREIGN)) == 1

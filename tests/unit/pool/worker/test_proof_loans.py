"""GPUs under proof: lent to `miglab prove` while it lives, and as they were when it is gone."""

import datetime as dt
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placement
from miglab_pool.gpu.readings import SliceStillListed
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.ledger.rows import GPU_LOST, GPU_OK
from miglab_pool.refused import Refused
from miglab_pool.settings import Gpus
from miglab_pool.state.lock import FileLock
from miglab_pool.state.proof_record import (
    ProofFolder,
    ProofLock,
    ProofRecord,
    ProofSlice,
    undo_slices,
    with_slices,
)


@contextmanager
def running_proof(world: World) -> Iterator[ProofFolder]:
    """What a `miglab prove` that lives holds."""
    folder = ProofFolder(world.folder)
    with folder.lock():
        yield folder


def made_by_proof(world: World, folder: ProofFolder, gpu: str, start: int = 0) -> ProofSlice:
    """A slice as a proof makes it: announced, then made."""
    place = ProofSlice(gpu, "1g.5gb", start, 1)
    record = folder.read()
    assert record is not None
    folder.write(with_slices(record, [place]))
    profile = world.driver.info(gpu).geometry.by_name["1g.5gb"]
    world.driver.create(gpu, profile, Placement(start, 1))
    return place


def reading_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GPUs about which the pool asks NVML from now on."""
    gpus_read: list[str] = []
    for name in ("info", "slices", "usages", "gpu_usage", "health"):
        call = getattr(type(world.driver), name)

        def noted(self: Any, gpu: str, *args: Any, call: Any = call) -> Any:
            gpus_read.append(gpu)
            return call(self, gpu, *args)

        monkeypatch.setattr(type(world.driver), name, noted)
    return gpus_read


def test_gpus_that_nobody_holds_are_lent(make_world: Callable[..., World]) -> None:
    """The others are named with the reason, and the audit says who borrowed."""
    gpus = Gpus(simulate=("A100-40GB",) * 3, whole=(2,))
    world = make_world(changed(SETTINGS, gpus=gpus), gpus=3)
    world.machine.set_mig(False, world.driver.uuids[2])
    world.pool.reconcile()
    world.run("ada")
    (leased_gpu,) = {row.gpu for row in world.ledger.state.slices.values() if row.lease is not None}
    with running_proof(world) as folder:
        loan = world.pool.lend_for_proof("spawner")
        record = folder.read()
    assert record is not None and record.gpus == loan.gpus
    assert set(loan.gpus) == set(world.driver.uuids[:2]) - {leased_gpu}
    assert loan.barred[leased_gpu] == "a lease holds a slice on it"
    assert loan.barred[world.driver.uuids[2]] == "its MIG mode is off"
    (entry,) = world.ledger.history("gpu", loan.gpus[0], limit=1)
    assert (entry["by"], entry["action"]) == ("spawner", "prove")


def test_a_whole_gpu_says_whether_somebody_has_it(make_world: Callable[..., World]) -> None:
    """A lease of it, and a drain by staff, are told apart from MIG that is off."""
    world = make_world(gpus=3, mig=False)
    leased, drained, idle = world.driver.uuids
    for gpu in (drained, idle):
        world.pool.staff.drain(gpu, "new fan", "person:ina")
    world.run("ada", "full")
    world.pool.staff.undrain(idle, "", "person:ina")
    with running_proof(world):
        barred = world.pool.lend_for_proof("spawner").barred
    assert barred == {
        leased: "a lease holds it",
        drained: "staff drained it: new fan",
        idle: "its MIG mode is off",
    }


def test_a_gpu_that_staff_drained_is_not_lent(make_world: Callable[..., World]) -> None:
    """Somebody may be about to work on it by hand."""
    world = make_world(gpus=2)
    drained, other = world.driver.uuids
    world.pool.staff.drain(drained, "new fan", "person:ina")
    with running_proof(world):
        assert world.pool.lend_for_proof("spawner").gpus == (other,)


def test_a_loan_while_the_pool_looks_is_kept(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the look found before the loan does not open the GPUs again."""
    world = make_world()
    read = world.pool.worker.proof_folder.read
    lending = threading.Thread(target=lambda: world.pool.lend_for_proof("spawner"))

    def lent_right_after() -> ProofRecord | None:
        record = read()
        if lending.ident is None:
            lending.start()
            lending.join(0.2)
        return record

    monkeypatch.setattr(world.pool.worker.proof_folder, "read", lent_right_after)
    with running_proof(world) as folder:
        world.pool.follow_proof()
        lending.join()
        record = folder.read()
        assert record is not None and set(record.gpus) == world.pool.store.under_proof != set()


def test_a_lock_of_another_user_is_told(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's: the pool starts and works on, and an operator reads what to do."""
    world = make_world()
    with running_proof(world):
        pass

    def denied(self: FileLock, path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(ProofLock, "_open", denied)
    world.crash()
    assert any("prove.lock cannot be used" in finding.finding for finding in world.start_findings)
    world.run("ada")
    with pytest.raises(Refused, check=because("no-proof")):
        world.pool.lend_for_proof("spawner")


def test_no_lease_and_no_call_while_a_proof_runs(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A student waits until it ends; the pool neither reads the GPU nor makes anything on it."""
    world = make_world()
    with running_proof(world) as folder:
        (gpu,) = world.pool.lend_for_proof("spawner").gpus
        gpus_read = reading_calls(world, monkeypatch)
        ticket = world.wait("ada")
        world.pool.reconcile()
        world.pool.sample()
        assert world.pool.tickets.find(ticket.id).state is TicketState.WAITING
        assert "miglab prove" in world.pool.staff.gpu(gpu).draining
        assert (list(gpus_read), world.raw()) == ([], [])
        folder.delete()
    world.pool.follow_proof()
    world.work()
    assert world.pool.tickets.find(ticket.id).state is TicketState.OFFERED


def test_without_its_lock_nothing_is_lent(make_world: Callable[..., World]) -> None:
    """Nobody could tell when such a loan ends."""
    world = make_world()
    with pytest.raises(Refused, check=because("no-proof")):
        world.pool.lend_for_proof("spawner")
    with running_proof(world):
        world.pool.lend_for_proof("spawner")
        with pytest.raises(Refused, check=because("already-done")):
            world.pool.lend_for_proof("spawner")


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_dead_proof_left_is_undone(
    make_world: Callable[..., World], *, restarts: bool
) -> None:
    """By the next reconcile, or the next start of the pool; it never passes for foreign."""
    world = make_world()
    with running_proof(world) as folder:
        (gpu,) = world.pool.lend_for_proof("spawner").gpus
        made_by_proof(world, folder, gpu, start=3)
    if restarts:
        world.crash()
    else:
        world.pool.reconcile()
    assert (world.raw(), world.states(), folder.read()) == ([], [], None)
    assert world.pool.staff.gpu(gpu).draining == ""
    world.run("ada")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lost_gpu_keeps_no_other_away(
    make_world: Callable[..., World], *, restarts: bool
) -> None:
    """The others take leases at once, and the lost one is shown as lost, as at any other time."""
    world = make_world(gpus=4)
    with running_proof(world) as folder:
        gpus = world.pool.lend_for_proof("spawner").gpus
        for gpu in gpus:
            made_by_proof(world, folder, gpu)
    world.machine.break_gpu(Break.LOST, gpus[0])
    if restarts:
        world.crash()
        findings = world.start_findings
    else:
        findings = world.pool.reconcile()
    assert any(f.finding.startswith("left over from a miglab prove: ") for f in findings)
    assert world.pool.store.under_proof <= {gpus[0]}  # a driver opened anew does not list it
    assert [world.pool.staff.gpu(gpu).state for gpu in gpus] == [GPU_LOST, *3 * [GPU_OK]]


def test_a_slice_in_use_keeps_no_other_gpu_away(make_world: Callable[..., World]) -> None:
    """It is tried again on its GPU alone, which stays under proof until then."""
    world = make_world(gpus=2)
    with running_proof(world) as folder:
        gpus = world.pool.lend_for_proof("spawner").gpus
        for gpu in gpus:
            made_by_proof(world, folder, gpu)
    world.fail("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
    world.pool.reconcile()
    record = folder.read()
    assert record is not None and record.gpus == (min(gpus),) == (*world.pool.store.under_proof,)
    world.pool.reconcile()
    assert (world.raw(), folder.read(), world.pool.store.under_proof) == ([], None, frozenset())


def test_a_slice_that_stays_listed_is_shown_as_foreign(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML says that it is destroyed, so no further try mends it; an admin can adopt it."""
    world = make_world()
    with running_proof(world) as folder:
        (gpu,) = world.pool.lend_for_proof("spawner").gpus
        made_by_proof(world, folder, gpu)

    def stays(*_: object) -> None:
        raise SliceStillListed("NVML goes on listing it.")

    monkeypatch.setattr(world.driver, "destroy", stays)
    findings = world.pool.reconcile()
    assert any("prove: NVML goes on listing it" in finding.finding for finding in findings)
    assert (world.states(), folder.read()) == (["foreign"], None)


def test_a_gpu_taken_out_of_the_settings_is_left_alone(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another lab's now, perhaps; the pool starts all the same, and says so."""
    world = make_world(gpus=2)
    with running_proof(world) as folder:
        gpus = world.pool.lend_for_proof("spawner").gpus
        for gpu in gpus:
            made_by_proof(world, folder, gpu)
    monkeypatch.setattr(world.driver, "uuids", gpus[1:])
    findings = world.pool.reconcile()
    assert any("not among the GPUs" in finding.finding for finding in findings)
    record = folder.read()
    assert record is not None and record.gpus == gpus[:1]


def test_a_pool_that_starts_anew_knows_of_the_proof(make_world: Callable[..., World]) -> None:
    """The slices that lie there meanwhile are the proof's: not read, not foreign, not destroyed."""
    world = make_world()
    with running_proof(world) as folder:
        (gpu,) = world.pool.lend_for_proof("spawner").gpus
        made_by_proof(world, folder, gpu)
        world.crash()
        world.pool.reconcile()
        with pytest.raises(Refused):
            world.ask("ada")
        assert (len(world.raw()), world.states()) == (1, [])
    world.pool.reconcile()
    assert world.raw() == []
    world.run("ada")


def test_its_gpus_stay_away_until_its_containers_are_gone(make_world: Callable[..., World]) -> None:
    """An engine that does not answer may still run one that uses a slice."""
    world = make_world()
    with running_proof(world) as folder:
        (gpu,) = world.pool.lend_for_proof("spawner").gpus
        made_by_proof(world, folder, gpu)
        record = folder.read()
        assert record is not None
        folder.write(replace(record, has_containers=True))
    world.holders.is_silent = True
    findings = world.pool.reconcile()
    assert any(
        "left over from a miglab prove: containers" in finding.finding for finding in findings
    )
    assert world.raw() and world.pool.staff.gpu(gpu).draining
    world.holders.is_silent = False
    world.pool.reconcile()
    assert not world.raw() and not world.pool.staff.gpu(gpu).draining


def test_a_reservation_that_begins_soon_is_kept(make_world: Callable[..., World]) -> None:
    """A class does not begin without its slices for a proof's sake; a later one is no matter."""
    world = make_world()
    world.pool.sample()
    now = dt.datetime.fromtimestamp(world.at, dt.UTC)
    days = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

    def reserve(begin: dt.datetime) -> int:
        end = begin + dt.timedelta(hours=1)
        request = ReservationRequest(
            course="vision",
            shape="1g.5gb",
            count=7,
            weekdays=(days[begin.weekday()],),
            from_time=f"{begin:%H:%M}",
            to_time=f"{end:%H:%M}",
            tz="UTC",
        )
        return world.pool.reservations.make(request, "spawner").id

    number = reserve(now + dt.timedelta(minutes=10))
    with running_proof(world) as folder:
        loan = world.pool.lend_for_proof("spawner")
        assert loan.gpus == () and "reservation" in next(iter(loan.barred.values()))
        folder.delete()
    world.pool.follow_proof()
    world.pool.reservations.cancel(number, "spawner")
    reserve(now + dt.timedelta(hours=3))
    with running_proof(world):
        assert world.pool.lend_for_proof("spawner").gpus == world.driver.uuids


def test_a_record_that_cannot_be_read_is_told_and_destroys_nothing(
    make_world: Callable[..., World],
) -> None:
    """What is unknown is left alone, and an operator reads what to do."""
    world = make_world()
    with running_proof(world):
        (world.folder / "prove.json").write_text("{")
    findings = world.pool.reconcile()
    assert any("destroy those by hand" in finding.finding for finding in findings)
    assert (world.folder / "prove.json").exists()


def test_only_announced_placements_are_undone(make_world: Callable[..., World]) -> None:
    """A slice beside them, and one that the ledger knows, are somebody else's."""
    world = make_world()
    gpu = world.driver.uuids[0]
    profile = world.driver.info(gpu).geometry.by_name["1g.5gb"]
    for start in (0, 2, 4):
        world.driver.create(gpu, profile, Placement(start, 1))
    places = [ProofSlice(gpu, "1g.5gb", start, 1) for start in (0, 2)]
    assert undo_slices(world.driver, ProofRecord("run", (gpu,), tuple(places)), places[1:]) == {}
    assert sorted(start for *_, start in world.raw()) == [2, 4]
    for reading in world.driver.slices(gpu):
        world.driver.destroy(gpu, reading.gi_id)

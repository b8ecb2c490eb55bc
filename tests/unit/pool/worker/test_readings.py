"""How often the GPUs are read: for what changed on them, and by their timer."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.pool.conftest import World

from miglab_api.gpus import SliceState
from miglab_api.tickets import TicketState
from miglab_pool.gpu.simulated.library import Library, _gpu_index
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.gpu.simulated.state import StateFile

MakeWorld = Callable[..., World]
START_CALLS = 40  # of NVML, on the GPU that gets the slice
END_CALLS = 70  # destroying it, and making it anew for the next


class CountedCalls:
    """Counts the calls of NVML, by the index of the GPU that they are about, None: of none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._by_gpu: Counter[int | None] = Counter()
        check = Library._check

        def count(library: Library, name: str, arguments: tuple[Any, ...]) -> None:
            check(library, name, arguments)
            self._by_gpu[_gpu_index(arguments)] += 1

        monkeypatch.setattr(Library, "_check", count)

    @contextmanager
    def counted(self) -> Iterator[Counter[int | None]]:
        """Yield the calls of the block, which are complete at its end."""
        self._by_gpu.clear()
        calls: Counter[int | None] = Counter()
        yield calls
        calls.update(self._by_gpu)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CountedCalls:
    return CountedCalls(monkeypatch)


@pytest.mark.parametrize("neighbours", [0, 6])
def test_a_start_reads_its_own_gpu_alone_and_little_of_it(
    make_world: MakeWorld, calls: CountedCalls, neighbours: int
) -> None:
    """A slice made and unmade costs a bounded number of calls, however full its GPU is."""
    world = make_world(gpus=2)
    for number in range(neighbours):
        world.run(f"neighbour{number}")
    with calls.counted() as start:
        lease = world.run("ada")
    with calls.counted() as end:
        world.end(lease)
    assert 0 < start.total() <= START_CALLS
    assert 0 < end.total() <= END_CALLS
    assert {*start, *end} <= {0, None}, "the other GPU was asked nothing"


def test_an_inspection_that_finds_nothing_new_wakes_nobody(world: World) -> None:
    """Long polls, pages and turns wait for news, and that all is as it was is none."""
    world.run("ada")
    world.pool.reconcile()
    before, noted = world.pool.version, len(world.ledger.history())
    for gpu in world.driver.uuids:
        assert world.pool.inspect(gpu) == []
    assert (world.pool.version, len(world.ledger.history())) == (before, noted)


@pytest.mark.parametrize("kind", [Break.LOST, Break.MISSING, Break.XID])
def test_a_fault_of_an_idle_gpu_is_found_by_the_next_inspection(world: World, kind: Break) -> None:
    """Nothing changed on it and nobody used it: its timer alone looks, and that is news."""
    (gpu,) = world.driver.uuids
    world.pool.reconcile()
    world.pool.inspect(gpu)
    before = world.pool.version
    world.machine.break_gpu(kind, gpu, xid=95)
    assert world.pool.inspect(gpu) != []
    (gpu_view,) = world.pool.snapshot().gpus
    assert gpu_view.state != "ok"
    assert world.pool.version > before
    assert world.ask("ada").state is TicketState.WAITING


def test_a_slice_is_not_destroyed_by_an_id_that_is_anothers_by_now(world: World) -> None:
    """Somebody destroyed it by hand and made another, to which NVML gave the same id."""
    lease = world.run("ada")
    (row,) = world.pool.store.state.slices_of(world.pool.store.state.leases[lease.id])
    assert row.gi_id is not None
    world.driver.destroy(row.gpu, row.gi_id)
    geometry = world.driver.info(row.gpu).geometry
    profile = geometry.by_name["1g.5gb"]
    place = next(place for place in profile.placements if place.start != row.start)
    foreign_slice = world.driver.create(row.gpu, profile, place)
    assert foreign_slice.gi_id == row.gi_id, "as NVML does"
    world.end(lease)
    assert foreign_slice in world.driver.slices(row.gpu)


def test_a_slice_of_a_gpu_that_vanished_is_not_taken_for_destroyed(world: World) -> None:
    """The GPU is not there to be asked, so whether its slice is gone is unknown."""
    lease = world.run("ada")
    (row,) = world.pool.store.state.slices_of(world.pool.store.state.leases[lease.id])
    world.machine.break_gpu(Break.MISSING, row.gpu)
    world.pool.sample(row.gpu)  # by which the driver lets go of the GPU
    world.end(lease)
    assert world.pool.store.state.slices[row.id].state is SliceState.SCRUBBING
    (gpu_view,) = world.pool.snapshot().gpus
    assert gpu_view.state != "ok"


def test_a_call_looks_at_the_simulated_machine_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it checks and what it answers is one state of the machine, whoever changes it."""
    looks: list[str] = []
    read = StateFile.read
    monkeypatch.setattr(StateFile, "read", lambda file: looks.append("") or read(file))
    (gpu,) = world.driver.uuids
    checks: list[str] = []
    check = Library._check

    def count(library: Library, name: str, arguments: tuple[Any, ...]) -> None:
        checks.append(name)
        check(library, name, arguments)

    monkeypatch.setattr(Library, "_check", count)
    world.driver.info(gpu)
    world.driver.slices(gpu)
    assert len(looks) == len(checks) > 0


def test_gpus_that_are_cut_alike_count_as_one(make_world: MakeWorld) -> None:
    """A shape is looked up in each way to cut a GPU, not on each of 64 GPUs."""
    world = make_world(models=["A100-40GB", "A100-40GB", "H100-80GB"])
    assert len(world.pool.view.geometries) == 2

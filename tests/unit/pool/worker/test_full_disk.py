"""A disk that fills up, a real small one: nothing new begins, and all that runs can end."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.pool.conftest import World

from miglab_api.leases import LeaseState
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.tables import LedgerUnwritable
from miglab_pool.reclaim.policy import TIME_IS_UP
from miglab_pool.refused import Refused
from miglab_pool.worker import disks
from miglab_pool.worker.disks import DiskUse, of_disks, read_disks

SIZE_MIB = 48


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB, of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "miglab-test", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here: that takes root and CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def world(small_disk: Path, tmp_path: Path) -> Iterator[World]:
    """A pool whose ledger lies on it; the simulated GPUs, unlike real ones files, lie elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (small_disk / "gpus").symlink_to(tmp_path / "elsewhere")
    world = World(small_disk, gpus=2)
    world.pool.watch_disks()
    yield world
    world.close()


def fill(folder: Path) -> Path:
    """Write until the file system takes not one byte more."""
    file = folder / "somebody-elses"
    with file.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError:
            pass
    return file


def test_nothing_new_begins_while_the_disk_is_full(world: World, small_disk: Path) -> None:
    """Who asks is told why, and that nothing has to be done but wait; nothing is written for it."""
    fill(small_disk)
    world.pool.watch_disks()
    before = world.ledger.history(limit=10_000)
    for _ in range(100):
        with pytest.raises(Refused, match=r"disk is full.*Grants resume by themselves"):
            world.ask("eve")
    assert world.ledger.history(limit=10_000) == before
    assert "disk is full" in world.pool.snapshot().paused


def test_who_waits_is_granted_nothing_while_the_disk_is_full(
    world: World, small_disk: Path
) -> None:
    """A ticket from before keeps its position, and is served when there is room again."""
    running = [world.run(f"user{number}", "7g.40gb") for number in range(2)]
    ticket = world.ask("ada", "7g.40gb")
    rubbish = fill(small_disk)
    world.pool.watch_disks()
    world.end(running[0])
    world.work()
    assert world.pool.tickets.attend(ticket.id).state == "waiting"
    rubbish.unlink()
    world.pool.watch_disks()
    world.work()
    assert world.pool.tickets.attend(ticket.id).state == "offered"
    assert not world.pool.snapshot().paused


def test_all_that_runs_goes_on_and_can_end_while_the_disk_is_full(
    world: World, small_disk: Path
) -> None:
    """Extended, warned, reclaimed, released: each is written, and every slice is free again."""
    leases = [world.run(f"user{number}") for number in range(14)]
    fill(small_disk)
    world.pool.watch_disks()
    world.pool.leases.extend(leases[0].id, 600, "person:user0")
    world.pool.staff.reclaim(leases[1].id, "Exam.", "person:ina", 600.0)
    world.pool.leases.release(leases[2].id, "pool", TIME_IS_UP)
    for lease in leases:
        world.end(lease)
    world.work()
    assert {world.pool.leases.find(lease.id).state for lease in leases} == {LeaseState.RELEASED}
    assert not [row for row in world.ledger.state.slices.values() if row.lease]
    assert world.pool.check_invariants() == []


def test_the_room_is_the_ledgers_alone(world: World, small_disk: Path) -> None:
    """Two thousand steps, as many as a lab of 63 GPUs takes to end all its leases, find room.

    Somebody else's program writes on meanwhile, and gets none of it.
    """
    lease = world.run("ada")
    with (small_disk / "greedy").open("wb", buffering=0) as greedy:
        fill(small_disk)
        for step in range(2000):
            with world.ledger.write(world.at, durable=True) as tx:
                row = world.ledger.state.leases[lease.id]
                tx.put(replace(row, extensions=step), "pool", "a step of a release" * 5)
                tx.record(row, "pool", "a step of a release" * 5)
            if step % 100 == 0:
                with pytest.raises(OSError, match="No space"):
                    greedy.write(bytes(1 << 20))


def test_without_the_room_releases_would_fail(small_disk: Path) -> None:
    """What the two tests before rest on: a ledger that has kept none cannot take a row."""
    with closing(Ledger(small_disk / "ledger.sqlite")) as ledger:
        fill(small_disk)
        with pytest.raises(LedgerUnwritable, match="make room below"):
            for step in range(200):
                with ledger.write(float(step), durable=True) as tx:
                    tx.record_action("class", "vision" * 1000, "person:ina", "looked")


def test_the_room_is_made_again_after_it_was_used(world: World, small_disk: Path) -> None:
    """Once there is room on the disk, the next reading sees to it; else it costs no write."""
    assert world.ledger.connection.exec_driver_sql("PRAGMA freelist_count").scalar() > 1000
    world.ledger.connection.rollback()
    size = (small_disk / "ledger.sqlite").stat().st_size
    for step in range(1500):
        with world.ledger.write(world.at, durable=False) as tx:
            tx.record_action("class", f"{step}" * 500, "person:ina", "looked")
        world.pool.watch_disks()
    assert world.ledger.connection.exec_driver_sql("PRAGMA freelist_count").scalar() >= 600
    world.ledger.connection.rollback()
    assert (small_disk / "ledger.sqlite").stat().st_size > size


def test_a_start_on_a_full_disk_says_so(small_disk: Path) -> None:
    """The ledger is not called damaged: room has to be made, and then it starts."""
    path = small_disk / "ledger.sqlite"
    Ledger(path).close()
    rubbish = fill(small_disk)
    with pytest.raises(LedgerUnwritable, match="Make room on its disk"):
        Ledger(path)
    rubbish.unlink()
    Ledger(path).close()


def test_a_disk_is_low_before_it_is_full(small_disk: Path) -> None:
    """From 95 % on it is a finding, and folders of one file system are one of them."""
    folders = {disks.LEDGER: small_disk, "logs": small_disk / "logs" / "not-yet"}
    (disk,) = read_disks(folders)
    assert disk.holds == ("ledger", "logs") and disk.size_bytes == SIZE_MIB << 20
    assert not disk.is_low and not disk.is_full(was_full=False)
    (small_disk / "half").write_bytes(bytes(int(SIZE_MIB * 0.96) << 20))
    (disk,) = read_disks(folders)
    assert disk.is_low and not disk.is_full(was_full=False)
    (finding,) = of_disks([disk], 0)
    assert finding.is_wrong and "96 % used" in finding.observation and "images" in finding.remedy
    fill(small_disk)
    (disk,) = read_disks(folders)
    assert disk.is_full(was_full=False)


def test_a_full_disk_is_well_again_only_with_some_room() -> None:
    """Twice what makes it full, so that grants do not begin and stop from second to second."""
    size, least = 1 << 40, disks.LEAST_FREE_BYTES
    between = DiskUse(("ledger",), Path("/"), 99.0, least + 1, size)
    assert between.is_full(was_full=True) and not between.is_full(was_full=False)
    assert not replace(between, free_bytes=2 * least).is_full(was_full=True)


def test_what_is_not_known_of_a_disk_is_not_called_full() -> None:
    """It is a finding of its own."""
    unknown = DiskUse(("homes",), Path("/homes"), problem="Stale file handle")
    assert not unknown.is_full(was_full=False) and not unknown.is_low
    (finding,) = of_disks([unknown], 0)
    assert finding.is_wrong and "unknown: Stale file handle" in finding.observation

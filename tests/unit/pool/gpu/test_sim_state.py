"""The state file that processes share: behaviour 9 of docs/explanation/mig.md."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.state import StateError, StateFile

RACER = """
import sys
from pathlib import Path
from miglab_pool.gpu.readings import NoRoom
from miglab_pool.gpu.watched import open_gpus
driver = open_gpus(simulated_state=Path(sys.argv[1]))
gpu = driver.gpus()[0]
profile = gpu.geometry.by_name["1g.5gb"]
won = 0
for place in profile.placements:
    try:
        driver.create(gpu.uuid, profile, place)
        won += 1
    except NoRoom:
        pass
print(won)
"""


def test_racing_processes_never_share_a_placement(tmp_path: Path) -> None:
    """Three processes grab all seven places: together they get each exactly once."""
    machine = SimulatedMachine.create(tmp_path)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    won = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    starts = [part["start"] for part in machine.view()["gpus"][0]["slices"]]
    assert (sum(won), starts) == (7, list(range(7)))


def test_threads_lose_no_write(tmp_path: Path) -> None:
    """Writers of one process are kept apart as well."""
    machine = SimulatedMachine.create(tmp_path, mig=False)
    uuid = machine.state().gpus[0].uuid
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pid: machine.add_process(uuid, pid, 1), range(1, 41)))
    assert len(machine.state().gpus[0].processes) == 40


def test_reader_sees_every_replacement(tmp_path: Path) -> None:
    """A reader is never behind however fast writes follow, and parses each state once."""
    machine = SimulatedMachine.create(tmp_path)
    reader = StateFile(tmp_path)
    for boots in range(2, 60):
        machine.reboot()
        state = reader.read()
        assert state.boots == boots
        assert reader.read() is state


def test_only_the_gpus_that_changed_are_read_again(tmp_path: Path) -> None:
    """An act touches one GPU; of hundreds the others stay the objects they were."""
    machine = SimulatedMachine.create(tmp_path, 3)
    reader = StateFile(tmp_path)
    before = list(reader.read().gpus)
    machine.break_gpu("lost", before[1].uuid)
    after = reader.read().gpus
    assert [now is then for now, then in zip(after, before, strict=True)] == [True, False, True]
    assert [gpu.lost for gpu in after] == [False, True, False]


def test_failed_change_writes_nothing(tmp_path: Path) -> None:
    """An exception in the middle of a change leaves the state as it was."""
    SimulatedMachine.create(tmp_path)
    file = StateFile(tmp_path)
    with pytest.raises(RuntimeError), file.change() as machine:
        machine.boots = 99
        raise RuntimeError
    assert file.read().boots == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "state.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"gpus":[\n],"version":1}', '{"version": 99}', '{"version": 1}']
)
def test_damaged_state_is_named(tmp_path: Path, text: str) -> None:
    """A file that cannot be read is one message that says which and what to do."""
    SimulatedMachine.create(tmp_path)
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(StateError, match=r"state\.json is damaged"):
        StateFile(tmp_path).read()


def test_a_damaged_gpu_is_named_when_it_is_looked_at(tmp_path: Path) -> None:
    """Its line alone; the others are read."""
    SimulatedMachine.create(tmp_path, 2)
    path = tmp_path / "state.json"
    head, first, second, tail = path.read_text().splitlines()
    path.write_text("\n".join([head, first, second.replace('"mig"', '"gim"'), tail]))
    gpus = StateFile(tmp_path).read().gpus
    assert not gpus[0].lost
    with pytest.raises(StateError, match="simulated GPU 1 is damaged"):
        gpus[1].lost  # noqa: B018 -- to look is to read


def test_a_folder_holds_one_machine(tmp_path: Path) -> None:
    """An empty one is answered with the command; where one lives a second is refused."""
    with pytest.raises(StateError, match="miglab sim create"):
        SimulatedMachine(tmp_path).state()
    SimulatedMachine.create(tmp_path)
    with pytest.raises(FileExistsError):
        SimulatedMachine.create(tmp_path)

"""Hub, pool and the whole machine die while students hold slices and one waits in the queue.

A whole lab of real processes on a simulated A100 that two servers of 3g.20gb fill.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import pytest
from tests.students import asking

from miglab_api.leases import LeaseState
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub.checkout import checkout
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus

pytestmark = pytest.mark.long

SHAPE = "3g.20gb"
Held = dict[str, tuple[int, int, tuple[str, ...]]]


@dataclass
class RunningClass:
    """A lab and its students: two hold a slice each, one waits."""

    lab: TemporaryLab
    students: dict[str, Student] = field(default_factory=dict)

    def come(self, name: str) -> Student:
        """Sign in and ask for a slice."""
        self.students[name] = asking(self.lab, name, SHAPE)
        return self.students[name]

    def begin(self) -> None:
        """Ada and Bo hold the GPU, Cy waits."""
        for name in ("ada", "bo"):
            self.come(name).wait_until_ready()
        self.come("cy")
        self.wait_until_queued("cy")

    def wait_until_queued(self, name: str) -> None:
        """Wait until this one is alone in the queue."""
        wait_for(lambda: self.lab.positions() == {name: 1}, f"{name} in the queue")

    def held(self) -> Held:
        """Lease, generation and slices of each who holds some."""
        return {
            user: (lease.id, lease.generation, lease.uuids)
            for user, lease in self.lab.leases().items()
        }

    def slices(self) -> set[str | None]:
        """The UUIDs of all slices that the GPU itself reports."""
        driver = open_gpus(simulated_state=self.lab.settings.simulated_state)
        uuids = {
            slice_reading.uuid for gpu in driver.gpus() for slice_reading in driver.slices(gpu.uuid)
        }
        driver.close()
        return uuids


@pytest.fixture
def lesson() -> Iterator[RunningClass]:
    """A lesson under way; it ends by ending the lab."""
    with temporary_lab(docker=False, shapes=(SHAPE, "cpu")) as lab:
        lesson = RunningClass(lab)
        lesson.begin()
        yield lesson
        for student in lesson.students.values():
            student.close()


def power_cut(lab: TemporaryLab) -> None:
    """Every process of the lab and of its students is gone at once."""
    launcher = psutil.Process(lab.process.pid)
    launcher.suspend()  # so that it starts nothing again meanwhile
    family = launcher.children(recursive=True)
    for process in [launcher, *family]:
        process.send_signal(signal.SIGKILL)
    lab.process.wait()
    psutil.wait_procs(family)


def power_on(lab: TemporaryLab) -> None:
    """The lab is started again on the folder it had."""
    command = [sys.executable, "-m", "miglab_hub.cli", "up", "--config", str(lab.settings.file)]
    with (lab.settings.folder / "up.log").open("ab") as log:
        lab.process = subprocess.Popen(
            command, cwd=checkout(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    lab.wait_until_up()


def test_a_killed_part_disturbs_nobody(lesson: RunningClass) -> None:
    """Leases, slices, servers and the ticket stay; who waits is served when one leaves.

    Hub, pool and both die in turn; whoever has left comes back and waits.
    """
    lab, leaves, waits = lesson.lab, "ada", "cy"
    for parts in (("hub",), ("pool",), ("hub", "pool")):
        holdings, slices, servers = lesson.held(), lesson.slices(), lab.servers()
        lab.kill(*parts)
        assert lesson.held() == holdings, parts
        assert lab.positions() == {waits: 1}, parts
        assert lesson.slices() == slices, parts
        assert lab.servers() == servers, parts
        for name in holdings:
            wait_for(lesson.students[name].is_ready, f"the hub to know the server of {name}")
        if "hub" in parts:  # a hub forgets who was starting; the ticket is the pool's
            lesson.students[waits].ask(SHAPE)
        lesson.students[leaves].leave()
        lesson.students[waits].wait_until_ready()
        assert set(lesson.held()) == {"bo", waits}, parts
        assert lab.broken_invariants() == [], parts
        leaves, waits = waits, leaves
        lesson.students[waits].ask(SHAPE)
        lesson.wait_until_queued(waits)


def test_the_machine_reboots(lesson: RunningClass) -> None:
    """Slices and servers are gone: their leases end with a reason, and who waited comes first."""
    lab, before = lesson.lab, lesson.held()
    power_cut(lab)
    SimulatedMachine(lab.settings.simulated_state).reboot()
    assert lesson.slices() == set()
    power_on(lab)
    wait_for(lambda: not set(before) & set(lesson.held()), "the leases of before to be over")
    for number, *_ in before.values():
        over = lab.lease(number)
        assert over.state is LeaseState.RELEASED
        assert over.reason
    lesson.come("di")
    lesson.students["cy"].ask(SHAPE)
    for name in ("cy", "di"):
        lesson.students[name].wait_until_ready()
    holdings = lesson.held()
    assert set(holdings) == {"cy", "di"}
    new = {uuid for _, _, uuids in holdings.values() for uuid in uuids}
    assert len(new) == 2
    assert new <= lesson.slices()
    lesson.students["ada"].ask(SHAPE)
    lesson.wait_until_queued("ada")
    assert lab.broken_invariants() == []

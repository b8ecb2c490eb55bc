"""GPUs are looked up once: by UUID, which is slow and opens others, and from then on by PCI id."""

from pathlib import Path

import pynvml
import pytest
from tests.nvml_errors import FailingLibrary

from miglab_pool.gpu.driver import Driver, DriverMemory
from miglab_pool.gpu.handles import pci_ids_of_kernel
from miglab_pool.gpu.readings import GpuError
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.simulated.nvml_gpus import pci_id_of
from miglab_pool.gpu.simulated.state import Delays
from miglab_pool.gpu.watched import open_watched

from .conftest import Machine

BY_UUID, BY_PCI_ID = "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2"


class SecondGpu:
    """The second of two GPUs, and how often NVML was asked for it."""

    def __init__(self, machine: Machine) -> None:
        self.outside, self.clock = machine.outside, machine.clock
        self.uuids = [gpu.uuid for gpu in machine.outside.state().gpus]
        self.uuid = self.uuids[1]
        self.nvml = SimulatedNvml(machine.outside.folder, machine.clock.sleep, machine.clock.now)
        self.library = FailingLibrary(self.nvml)
        self.remembered = DriverMemory()

    def driver(self) -> Driver:
        return Driver(self.nvml, [self.uuid], self.remembered)

    @property
    def lookups(self) -> tuple[int, int]:
        """By UUID, and by PCI id."""
        return self.library.calls_of[BY_UUID], self.library.calls_of[BY_PCI_ID]


@pytest.fixture
def second(a100: Machine) -> SecondGpu:
    return SecondGpu(a100)


def test_a_gpu_is_looked_up_once(second: SecondGpu) -> None:
    """However much is asked of it, by one driver; the next one finds it by its PCI id."""
    driver = second.driver()
    profile = driver.info(second.uuid).geometry.by_name["1g.5gb"]
    reading = driver.create(second.uuid, profile, profile.placements[0])
    driver.usages(second.uuid, driver.slices(second.uuid))
    driver.health(second.uuid)
    driver.destroy(second.uuid, reading.gi_id)
    assert second.lookups == (1, 0)
    assert second.driver().info(second.uuid).uuid == second.uuid
    assert second.lookups == (1, 1)


@pytest.mark.parametrize("ends", ["GPU_IS_LOST", "INVALID_ARGUMENT", "UNINITIALIZED", ""])
@pytest.mark.parametrize("question", ["info", "health", "slices", "gpu_usage"])
def test_a_handle_is_kept_until_nvml_refuses_it(
    second: SecondGpu, question: str, ends: str
) -> None:
    """Then it is looked up anew, at its PCI id; another error says nothing of the handle."""
    driver = second.driver()
    driver.info(second.uuid)
    code = getattr(pynvml, f"NVML_ERROR_{ends or 'UNKNOWN'}")
    second.library.fail("nvmlDeviceGet", code)
    try:
        getattr(driver, question)(second.uuid)
    except GpuError as error:
        assert error.code == code
    second.library.fail("")
    assert driver.info(second.uuid).mig
    assert second.lookups == (1, 1 if ends else 0)


def test_another_gpu_at_its_pci_id_is_not_taken_for_it(second: SecondGpu) -> None:
    """Cards move at a reboot: the UUID decides, and the PCI id is learnt anew."""
    second.remembered.pci_ids[second.uuid] = pci_id_of(0)
    assert second.driver().info(second.uuid).index == 1
    assert second.remembered.pci_ids[second.uuid] == pci_id_of(1)


def test_a_search_passes_other_gpus_and_a_pci_id_does_not(second: SecondGpu) -> None:
    """A search by UUID takes its time for each GPU before it, and waits for one that hangs."""
    second.outside.set_delays(Delays(search_gpu_s=5.0))
    second.driver().info(second.uuid)
    assert second.clock.slept_s == [5.0, 5.0]
    second.outside.hang(gpu_uuid=second.uuids[0])
    second.driver().info(second.uuid)
    assert second.clock.slept_s == [5.0, 5.0]
    second.remembered.pci_ids.clear()

    class Waits(Exception):
        """It would have waited."""

    def wait() -> None:
        raise Waits

    second.clock.while_asleep = wait
    with pytest.raises(Waits):
        second.driver()


INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 41
GPU UUID: \t GPU-7f510227-0e00-6e5a-7887-6c72c5500366
Bus Location: \t 0000:00:06.0
Device Minor: \t 0
"""  # of driver 580.159.04, five of its eleven lines


def test_the_kernel_says_where_a_gpu_is(tmp_path: Path) -> None:
    """As the driver's module writes it; a folder without such a line, or a file, says nothing."""
    for pci_id, text in (("0000:00:06.0", INFORMATION), ("0000:00:07.0", "Model: \t\t \xff\n")):
        (tmp_path / pci_id).mkdir()
        (tmp_path / pci_id / "information").write_text(text)
    (tmp_path / "0000:00:08.0").mkdir()
    (tmp_path / "0000:00:09.0" / "information").mkdir(parents=True)
    uuid = "GPU-7f510227-0e00-6e5a-7887-6c72c5500366"
    assert pci_ids_of_kernel(tmp_path) == {uuid: "0000:00:06.0"}
    assert pci_ids_of_kernel(tmp_path / "none") == {}


def test_a_start_beside_a_gpu_that_hangs_opens_the_others(second: SecondGpu) -> None:
    """The kernel says where they are, so that no search has to pass the one that hangs."""
    second.outside.hang(gpu_uuid=second.uuids[0])
    watched = open_watched(
        simulated_state=second.outside.folder, gpu_uuids=[second.uuid], limit_s=60.0
    )
    assert watched.info(second.uuid).index == 1
    watched.close()

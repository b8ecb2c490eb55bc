"""How busy slices are: told where the hardware tells it, and unknown everywhere else."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from miglab_pool.gpu.nvml.health import _is_share
from miglab_pool.gpu.readings import SliceReading

from .conftest import Machine, SleepClock

ONE = "1g"


def cut(machine: Machine, start: int) -> SliceReading:
    """A smallest slice at a start."""
    profile = next(p for p in machine.driver.gpus()[0].geometry.profiles if p.name[:2] == ONE)
    return machine.driver.create(machine.uuid, profile, profile.placements[start])


def activity(machine: Machine, *slices: SliceReading) -> list[float | None]:
    return [machine.driver.usages(one.gpu_uuid, [one])[one].activity_pct for one in slices]


def test_the_busy_slice_is_told_from_its_neighbour(h100: Machine) -> None:
    """On Hopper each slice tells its own, from the second reading on."""
    busy, idle = cut(h100, 0), cut(h100, 1)
    assert busy.uuid is not None
    h100.outside.add_process(busy.uuid, 41, 100, activity_pct=60)
    assert activity(h100, busy, idle) == [None, None]
    assert activity(h100, busy, idle) == [60, 0]


def test_an_a100_does_not_tell(a100: Machine) -> None:
    """Before Hopper a slice's activity is unknown, however busy it is; a partitioned GPU's too."""
    busy = cut(a100, 0)
    assert busy.uuid is not None
    a100.outside.add_process(busy.uuid, 41, 100, activity_pct=60)
    assert [activity(a100, busy) for _ in range(3)] == [[None]] * 3
    assert a100.driver.gpu_usage(a100.uuid).activity_pct is None


@pytest.mark.parametrize("model", ["A100-40GB", "H100"])
def test_a_whole_gpu_tells(tmp_path: Path, clock: SleepClock, model: str) -> None:
    """With MIG off older cards tell their utilisation, newer ones what GPM says."""
    machine = Machine(tmp_path, model, clock, mig=False)
    machine.outside.add_process(machine.uuid, 41, 100, activity_pct=70)
    told = [machine.driver.gpu_usage(machine.uuid).activity_pct for _ in range(2)]
    assert told[1] == 70


@pytest.mark.parametrize(
    "refuses", ["nvmlGpmQueryDeviceSupport", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"]
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_what_gpm_refuses_is_unknown_and_no_more(h100: Machine, refuses: str, code: int) -> None:
    """Memory and processes are read all the same."""
    one = cut(h100, 0)
    h100.outside.fail_next(refuses, code, times=9)
    usages = [h100.driver.usages(one.gpu_uuid, [one])[one] for _ in range(2)]
    assert [usage.activity_pct for usage in usages] == [None, None]
    assert [usage.processes for usage in usages] == [(), ()]


def test_an_id_used_again_is_another_slice(h100: Machine) -> None:
    """What lies between samples of two slices is nothing: the new one begins unknown."""
    one = cut(h100, 0)
    activity(h100, one)
    h100.driver.destroy(h100.uuid, one.gi_id)
    again = cut(h100, 0)
    assert again.gi_id == one.gi_id
    assert [activity(h100, again), activity(h100, again)] == [[None], [0]]


def test_every_sample_is_given_back(h100: Machine) -> None:
    """One is held for each slice that was read, none for one that is gone or after the end."""
    held = h100.nvml.library._samples
    slices = [cut(h100, n) for n in range(3)]
    for _ in range(3):
        activity(h100, *slices)
        assert len(held) == 3
    h100.driver.destroy(h100.uuid, slices[0].gi_id)
    assert len(held) == 2
    h100.driver.close()
    assert len(held) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 101.0])
def test_nonsense_is_unknown(value: float) -> None:
    """What is no percentage says nothing."""
    assert not _is_share(SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=value))

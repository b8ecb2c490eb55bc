"""How GPUs are: what is new is noted once, and the driver's own calls are timed by profile."""

import itertools

import pynvml
import pytest

from miglab_pool.gpu.readings import Health
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.gpu.watched import Stopwatch
from miglab_pool.worker.inspect_gpu import BY, appended, news

from .conftest import World


def health(xids: tuple[int, ...] | None = (), ecc_errors: int | None = 0) -> Health:
    return Health(True, ecc_errors, xids, 40, 60.0, False, "")


@pytest.mark.parametrize(
    ("before", "now", "added"),
    [
        ((), (), []),
        ((), (79,), [79]),
        ((79,), (79, 79), [79]),
        ((1, 2, 3), (2, 3, 4), [4]),
        ((1, 2), (8, 9), [8, 9]),
        ((1, 2, 3), (), []),
    ],
)
def test_what_was_added(before: tuple[int, ...], now: tuple[int, ...], added: list[int]) -> None:
    """Only what came since counts, also when the oldest are forgotten or all is."""
    assert appended(before, now) == added


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (None, health((31,), 2), ["Xid 31", "2 uncorrected memory errors since its last reset"]),
        (health(), health(), []),
        (health(None, None), health(None, None), []),
        (health((), 5), health((), 0), []),
        (health((), 1), health((), 3), ["3 uncorrected memory errors since its last reset"]),
    ],
)
def test_news(before: Health | None, now: Health, told: list[str]) -> None:
    """Each fault and each rise of the errors is told once; what is unknown is no news."""
    assert news(before, now) == told


def test_faults_are_a_history(world: World) -> None:
    """A fault is noted once however often the GPU is asked, and stays after a restart."""
    world.machine.break_gpu(Break.XID, xid=31)
    for _ in range(3):
        world.pool.reconcile()
    world.crash()
    noted = [row["reason"] for row in world.ledger.history("gpu") if row["by"] == BY]
    assert noted.count("Xid 31") == 1
    (kept,) = world.pool.store.wellness.values()
    assert kept.at == world.at and kept.health.temperature_c is not None


def test_the_drivers_work_is_timed_by_profile(world: World) -> None:
    """One cut, one destroyed, one cut anew: so many seconds for each; what fails gives none."""
    told: list[tuple[str, str, float]] = []
    stopwatch = Stopwatch(itertools.count(5, 2).__next__)
    stopwatch.told = lambda *what: told.append(what)
    world.pool.worker.stopwatch = stopwatch
    lease = world.run("ada", "3g.20gb")
    world.fail("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
    world.end(lease)
    assert told == [("create", "3g.20gb", 2)]
    world.settle()
    assert told[1:] == [("destroy", "3g.20gb", 2), ("create", "3g.20gb", 2)]

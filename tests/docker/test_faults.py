"""The fault harness: the lab stands its faults, and the harness notices when it does not."""

import signal
from collections.abc import Callable

import pytest

from miglab_bench.faults.checks import breaches, unsettled
from miglab_bench.faults.command import summary
from miglab_bench.faults.engine import OwnEngine
from miglab_bench.faults.lab import BOUND_S, FaultLab
from miglab_bench.faults.run import FaultRun

from .conftest import lacking

pytestmark = pytest.mark.long
FAULTS = 40
SHAPE = "1g.5gb"


def test_forty_faults() -> None:
    """Of every kind that this machine allows; nothing is lost, and nothing is leased twice."""
    faults = FaultRun(1)
    try:
        found = summary(faults.run(FAULTS))
    finally:
        faults.close()
    assert (found["faults"], found["said"]) == (FAULTS, [])


def states(lab: FaultLab) -> set[str]:
    """The states of all slices."""
    return {item["state"] for gpu in lab.must_get("/pool")["gpus"] for item in gpu["slices"]}


def restored(faults: FaultRun, come: Callable[[], None]) -> None:
    """Somebody comes after the copy was made that then takes the ledger's place."""
    faults.lab.back_up()
    come()
    faults.lab.end(signal.SIGKILL, "pool")
    faults.lab.restore()


@pytest.mark.parametrize("without_mends", [False, True])
def test_the_harness_notices_what_is_not_mended(without_mends: bool) -> None:
    """What alice's server holds is given to bob, once the mends are taken back."""
    if not OwnEngine.is_possible():
        lacking("no Docker engine with the base image, or no root")
    faults = FaultRun(1, docker=True, without_mends=without_mends)
    lab, lesson = faults.lab, faults.lesson
    zoe, alice, bob = lesson.students[:3]

    def well() -> bool:
        lab.keep_running()
        return not unsettled(lesson)

    def come() -> None:
        lesson.come(alice, SHAPE, BOUND_S)

    try:
        lesson.come(zoe, SHAPE, BOUND_S)
        zoe.leave()
        lab.wait(lambda: states(lab) == {"free"}, BOUND_S, "zoe's slice to be free")
        restored(faults, come)
        lab.wait(well, BOUND_S, "the lab to be well")
        lesson.come(bob, SHAPE, BOUND_S)
        found = breaches(lesson, is_ledger_older=True)
    finally:
        faults.close()
    assert bool(found) == without_mends, found

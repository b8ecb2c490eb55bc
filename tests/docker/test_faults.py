"""The fault harness: the pool stands its faults, and the harness notices when it does not."""

import signal

import pytest

from miglab_bench.faults.checks import breaches, is_settled
from miglab_bench.faults.command import summary
from miglab_bench.faults.lab import FaultLab
from miglab_bench.faults.run import BOUND_S, FaultRun
from miglab_bench.faults.servers import Containers

from .conftest import lacking

pytestmark = pytest.mark.long
FAULTS = 40
SHAPE = "1g.5gb"


def run(count: int, **options: object) -> dict[str, object]:
    faults = FaultRun(**options)  # type: ignore[arg-type]
    try:
        return summary(faults.run(count))
    finally:
        faults.close()


def test_forty_faults() -> None:
    """Of every kind that this machine allows; nothing is lost, and nothing is leased twice."""
    found = run(FAULTS, seed=1)
    assert (found["faults"], found["said"]) == (FAULTS, [])


def states(lab: FaultLab) -> set[str]:
    """The states of all slices."""
    pool = lab.get("/pool") or {"gpus": []}
    return {item["state"] for gpu in pool["gpus"] for item in gpu["slices"]}


@pytest.mark.parametrize("without_mends", [False, True])
def test_the_harness_notices_what_is_not_mended(without_mends: bool) -> None:
    """A restored ledger gives away what a newer server holds, once the mends are taken back."""
    if not Containers.are_possible():
        lacking("no Docker engine with the student's image")
    faults = FaultRun(1, docker=True, without_mends=without_mends)
    lab, lesson = faults.lab, faults.lesson
    zoe, alice, bob = lesson.students[:3]
    try:
        lesson.come(zoe, SHAPE)
        lesson.leave(zoe)
        lab.wait(lambda: "free" in states(lab), BOUND_S, "zoe's slice to be free")
        lab.back_up()
        lesson.come(alice, SHAPE)
        lab.end(signal.SIGKILL)
        lab.restore()
        lab.keep_running()
        lab.wait(lambda: is_settled(lesson), BOUND_S, "the pool to be well")
        lesson.come(bob, SHAPE)
        found = breaches(lesson, is_restored=True)
    finally:
        faults.close()
    assert bool(found) == without_mends, found

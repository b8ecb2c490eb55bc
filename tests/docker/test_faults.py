"""The fault harness: the lab stands its faults."""

import signal
from collections.abc import Callable

import pytest

from miglab_bench.faults.engine import OwnEngine
from miglab_bench.faults.lab import BOUND_S, FaultLab
from miglab_bench.faults.run import KINDS, FaultRun
from miglab_bench.faults.series import summary
from miglab_bench.faults.students import FaultStudent, breaches, unsettled

from .conftest import lacking

pytestmark = pytest.mark.long
FAULTS = 2 * len(KINDS)  # forty take the whole file beyond the 200 s that it may take
SHAPE = "1g.5gb"


@pytest.fixture(autouse=True)
def possible() -> None:
    """Root, and a Docker engine with the base image."""
    if not OwnEngine.is_possible():
        lacking("no Docker engine with the base image, or no root")


def test_two_faults_of_every_kind() -> None:
    """Of all that this machine allows; nothing is lost, and nothing is leased twice."""
    faults = FaultRun(1, tell=print)
    try:
        outcome = summary(faults.run(FAULTS))
    finally:
        faults.close()
    assert (outcome["faults"], outcome["said"]) == (FAULTS, [])


def states(lab: FaultLab) -> set[str]:
    """The states of all slices."""
    return {item["state"] for gpu in lab.must_get("/pool")["gpus"] for item in gpu["slices"]}


def commit_fails(lab: FaultLab, come: Callable[[], None]) -> None:
    """The grant to somebody does not get to the disk, and what the pool then reads fails too."""
    lab.databases.fail_commit("INSERT INTO leases")
    come()
    lab.end(signal.SIGKILL, "pool")


def ledger_is_restored(lab: FaultLab, come: Callable[[], None]) -> None:
    """Somebody comes after the copy was made that then takes the ledger's place."""
    lab.databases.back_up()
    come()
    lab.end(signal.SIGKILL, "pool")
    lab.databases.restore()


def after(hurt: Callable[..., None], faults: FaultRun, people: list[FaultStudent]) -> list[str]:
    """What does not hold once zoe has left a slice, alice came, and bob came after the fault."""
    lab, lesson = faults.lab, faults.lesson
    zoe, alice, bob = people
    lesson.come(zoe, SHAPE, BOUND_S)
    zoe.leave()
    lab.wait(lambda: "free" in states(lab), BOUND_S, "zoe's slice to be free")
    hurt(lab, lambda: lesson.come(alice, SHAPE, BOUND_S))
    lab.wait(lambda: not unsettled(lesson), BOUND_S, "the lab to be well")
    lesson.come(bob, SHAPE, BOUND_S)
    return breaches(lesson, is_ledger_older=hurt is ledger_is_restored)


def test_nothing_is_given_twice_after_a_failed_write_or_a_restored_ledger() -> None:
    """Alice's server stays somebody's, and bob is not given what it holds."""
    faults = FaultRun(1)
    people = faults.lesson.students
    try:
        violations = [
            *after(commit_fails, faults, people[:3]),
            *after(ledger_is_restored, faults, people[3:6]),
        ]
    finally:
        faults.close()
    assert violations == []

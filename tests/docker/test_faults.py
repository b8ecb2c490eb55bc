"""The fault harness: the lab stands its faults, and the harness notices when it does not."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from miglab_bench.faults.checks import breaches, unsettled
from miglab_bench.faults.engine import OwnEngine
from miglab_bench.faults.kinds import KINDS
from miglab_bench.faults.lab import BOUND_S, FaultLab
from miglab_bench.faults.run import FaultRun, summary
from miglab_bench.faults.service import IDENTITY, READING
from miglab_bench.faults.students import FaultStudent

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
        found = summary(faults.run(FAULTS))
    finally:
        faults.close()
    assert (found["faults"], found["said"]) == (FAULTS, [])


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


STORIES = {READING: commit_fails, IDENTITY: ledger_is_restored}


def test_what_a_run_keeps_says_what_every_server_listens_on(tmp_path: Path) -> None:
    """So that one that runs and is not reached can be understood afterwards."""
    faults = FaultRun(1)
    try:
        faults.lesson.come(faults.lesson.students[0], SHAPE, BOUND_S)
        faults.lab.wait(lambda: not unsettled(faults.lesson), BOUND_S, "the server to be reached")
        shutil.move(faults.lab.keep_logs(), tmp_path / "kept")
    finally:
        faults.close()
    (found,) = json.loads((tmp_path / "kept" / "containers.json").read_text())
    assert found["state"]["Running"]
    assert f":{8888:X} " in found["sockets"]


@pytest.mark.parametrize("without", ["", *STORIES])
def test_the_harness_notices_what_is_not_mended(without: str) -> None:
    """With either mend taken back alice's server is nobody's, or bob is given what it holds."""
    faults = FaultRun(1, without=without)
    people = faults.lesson.students
    try:
        found = [
            *(after(STORIES[READING], faults, people[:3]) if without != IDENTITY else ()),
            *(after(STORIES[IDENTITY], faults, people[3:6]) if without != READING else ()),
        ]
    finally:
        faults.close()
    assert bool(found) == bool(without), found

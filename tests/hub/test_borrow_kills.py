"""Hub, server and cell killed while a cell measures on a borrowed slice, in a lab as it is."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.in_server import run_in_server
from tests.needs import needs
from tests.students import served

from miglab_api.leases import LeaseView
from miglab_api.offers import BORROW
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

needs("torch", "runners measure with torch")
pytestmark = pytest.mark.long
NAME = "ada"
CELL = """
import json
import labkit

def naps():
    import time
    return lambda: time.sleep(0.05)

try:
    record = labkit.measure(naps, samples=SAMPLES, budget_s=120)
    said = {"why": "", "samples": len(record.samples_s), "lease": record.borrowed.lease}
except labkit.errors.NotBorrowed as error:
    said = {"why": str(error), "samples": len(error.kept.samples_s) if error.kept else 0}
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """A lab that lends, and nothing lingers in it."""
    with temporary_lab(
        docker=False, lent=("1g.5gb",), testing="pool.borrow_linger_s = 0"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def ada(lab: TemporaryLab) -> Iterator[Student]:
    """A student with a server that borrows."""
    with closing(served(lab, NAME, BORROW)) as student:
        yield student
        student.leave()


def _lease(lab: TemporaryLab) -> LeaseView | None:
    lease = lab.leases().get(NAME)
    return lease if lease is not None and lease.attached_at is not None else None


def _is_free(lab: TemporaryLab) -> bool:
    return not lab.leases() and not lab.snapshot().waiting


def test_the_hub_is_killed(lab: TemporaryLab, ada: Student) -> None:
    """A sentence and the samples so far; the runner ends, the slice goes back, the next cell runs.

    No lease is given twice: the pool's own invariants hold.
    """
    with ThreadPoolExecutor(1) as thread:
        cell = thread.submit(run_in_server, lab, NAME, f"SAMPLES = 2000\n{CELL}")
        wait_for(lambda: _lease(lab) is not None, "the cell to measure")
        first = _lease(lab)
        lab.kill("hub")
        outcome = cell.result()
    assert "The hub ended this measurement" in outcome["why"]
    wait_for(lambda: _is_free(lab), "the slice to go back")
    again = run_in_server(lab, NAME, f"SAMPLES = 3\n{CELL}")
    assert (again["why"], again["samples"]) == ("", 3)
    assert first is not None and again["lease"] != str(first.id)
    assert lab.broken_invariants() == []


def test_the_server_is_killed(lab: TemporaryLab, ada: Student) -> None:
    """With the server goes the measurement of its cell: nobody keeps the slice."""
    with ThreadPoolExecutor(1) as thread:
        cell = thread.submit(run_in_server, lab, NAME, f"SAMPLES = 2000\n{CELL}")
        wait_for(lambda: _lease(lab) is not None, "the cell to measure")
        ada.leave()
        wait_for(lambda: _is_free(lab), "the slice to go back")
        assert cell.result()["why"]
    ada.ask(BORROW)
    ada.wait_until_ready()
    assert run_in_server(lab, NAME, f"SAMPLES = 3\n{CELL}")["samples"] == 3
    assert lab.broken_invariants() == []

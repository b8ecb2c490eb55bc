"""Steps: twenty students without a slice measure at once on the seven of a GPU."""

import ast
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from miglab_api.leases import LeaseView
from miglab_api.offers import BORROW
from miglab_api.tickets import Purpose, TicketView
from miglab_bench.acceptance.run import Run, expect, in_parallel
from miglab_bench.harness.in_server import run_in_server
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab
from miglab_hub.checkout import checkout

BORROWERS = 20
LATE = 1  # so many may wait longer than they were told
LOOK_S = 0.2

NOTEBOOK = "notebooks/src/1_your_slice.py"
FUNCTIONS = ("matmul", "naive_and_honest")  # of T-2, the notebook's first experiment
EXPERIMENT = """
import json, os
os.environ["LAB_HEADLESS"] = "1"
import labkit

SIZE, DTYPE = 256, "float32"

{functions}

steps = labkit.steps.together(naive_and_honest, ("unwaited", "waited"), seconds=8)
evidence = await labkit.experiment("T-2", steps).run()
lent = [record.borrowed for point in evidence.points for record in point.records]
print(json.dumps({{
    "why": evidence.stopped or "", "samples": evidence.samples,
    "leases": sorted({{int(one.lease) for one in lent}}),
    "slices": sorted({{uuid for one in lent for uuid in one.slices}}),
}}))
"""


@cache
def experiment() -> str:
    """A cell with the notebook's own functions, in a size for a CPU."""
    text = (checkout() / NOTEBOOK).read_text(encoding="utf-8")
    made = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    parts = (ast.get_source_segment(text, made[name]) for name in FUNCTIONS)
    return EXPERIMENT.format(functions="\n\n".join(part or "" for part in parts))


@dataclass
class BorrowWatch:
    """What the pool said while they measured: each lease, and each ticket's first estimate."""

    leases: dict[int, LeaseView] = field(default_factory=dict)
    told: dict[int, TicketView] = field(default_factory=dict)

    def look(self, lab: TemporaryLab) -> None:
        """Look once."""
        for lease in lab.leases().values():
            if lease.purpose is Purpose.BORROW:
                self.leases[lease.id] = lease
        for ticket in lab.tickets().values():
            if ticket.estimate is not None:
                self.told.setdefault(ticket.id, ticket)

    @property
    def late(self) -> list[str]:
        """Who waited longer than the upper end of what was said first, in words."""
        found = []
        for lease in self.leases.values():
            said = self.told.get(lease.ticket or 0)
            if said is None or said.estimate is None:
                continue
            waited_s = lease.granted_at - said.created_at
            if waited_s > said.estimate.high_s:
                found.append(f"{lease.user} {waited_s:.0f} s, told {said.estimate.high_s:.0f} s")
        return found


@contextmanager
def watching(lab: TemporaryLab) -> Iterator[BorrowWatch]:
    """Watch the pool until the block ends."""
    watch, over = BorrowWatch(), threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            watch.look(lab)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def twenty_borrow(run: Run) -> str:
    """Twenty students start servers without a slice; none of them holds anything."""
    url, password = run.lab.settings.public_url, run.lab.password
    for number in range(len(run.students) + 1, BORROWERS + 1):
        student = Student(url, f"student-{number}", password)
        run.students.append(student)
        student.sign_in()
    in_parallel(run.students, _start)
    expect(not run.lab.leases(), f"leases: {run.lab.leases()}")
    return f"{len(run.students)} servers, no lease"


def _start(student: Student) -> None:
    student.ask(BORROW)
    student.wait_until_ready()


def all_measure_at_once(run: Run) -> str:
    """Each is measured on a slice of its own, and waits no longer than it was told."""
    names = [student.name for student in run.students]
    with watching(run.lab) as watch, ThreadPoolExecutor(len(names)) as threads:
        said = dict(zip(names, threads.map(lambda name: _measure(run, name), names), strict=True))
    for name, found in said.items():
        _expect_own(watch, name, found)
    numbers = [number for found in said.values() for number in found["leases"]]
    expect(len(set(numbers)) == len(numbers) == BORROWERS, f"leases: {numbers}")
    expect(len(watch.late) <= LATE, f"waited longer than they were told: {watch.late}")
    waits = sorted(_waited_s(watch, number) for number in numbers)
    return (
        f"{len(numbers)} measured, each on a lease of its own; waits up to {waits[-1]:.0f} s, "
        f"{len(watch.late)} longer than told"
    )


def _measure(run: Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = run_in_server(run.lab, name, experiment())
    return found


def _expect_own(watch: BorrowWatch, name: str, found: dict[str, Any]) -> None:
    expect(not found["why"] and found["samples"] > 0, f"{name}: {found}")
    leases = [watch.leases.get(number) for number in found["leases"]]
    expect(None not in leases, f"{name} measured on leases that the pool never had: {found}")
    own = {uuid for lease in leases if lease is not None for uuid in lease.uuids}
    users = {lease.user for lease in leases if lease is not None}
    expect(users == {name}, f"{name} measured on the leases of {users}")
    expect(own == set(found["slices"]), f"{name} names {found['slices']}, the ledger {own}")


def _waited_s(watch: BorrowWatch, number: int) -> float:
    lease = watch.leases[number]
    said = watch.told.get(lease.ticket or 0)
    return 0.0 if said is None else lease.granted_at - said.created_at


def all_is_free(run: Run) -> str:
    """Nobody holds or waits for anything, although every server still runs."""
    wait_for(lambda: run.is_empty, "every slice to be free")
    broken = run.lab.broken_invariants()
    expect(not broken, f"invariants: {broken}")
    in_parallel(run.students, Student.leave)
    return "every slice is free; the ledger's invariants hold"

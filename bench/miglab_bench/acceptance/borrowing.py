"""Steps: twenty students without a slice measure at once on the seven of a GPU."""

import ast
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from miglab_api.leases import LeaseView
from miglab_api.offers import BORROW
from miglab_api.tickets import TicketView
from miglab_bench.acceptance.run import Run, expect, in_parallel
from miglab_bench.harness.student import Student, wait_for
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


def experiment() -> str:
    """Return a cell with the notebook's own functions, in a size for a CPU."""
    text = (checkout() / NOTEBOOK).read_text(encoding="utf-8")
    functions = {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    parts = (ast.get_source_segment(text, functions[name]) for name in FUNCTIONS)
    return EXPERIMENT.format(functions="\n\n".join(part or "" for part in parts))


def twenty_borrow(run: Run) -> str:
    """Twenty students start servers without a slice; none of them holds anything."""
    run.sign_in(BORROWERS)
    in_parallel(run.students, _start)
    expect(not run.lab.leases(), f"leases: {run.lab.leases()}")
    return f"{len(run.students)} servers, no lease"


def _start(student: Student) -> None:
    student.ask(BORROW)
    student.wait_until_ready()


def all_measure_at_once(run: Run) -> str:
    """Each is measured on a slice of its own, and waits no longer than it was told."""
    first_tickets: dict[int, TicketView] = {}  # by its number, each ticket with its first estimate
    with ThreadPoolExecutor(BORROWERS) as threads:
        cells = {
            student.name: threads.submit(student.run_cell, experiment()) for student in run.students
        }
        while not all(cell.done() for cell in cells.values()):
            for ticket in run.lab.tickets().values():
                if ticket.estimate is not None:
                    first_tickets.setdefault(ticket.id, ticket)
            time.sleep(LOOK_S)
    leases = []
    for name, cell in cells.items():
        figures = json.loads(cell.result().splitlines()[-1])
        expect(not figures["why"] and figures["samples"] > 0, f"{name}: {figures}")
        student_leases = [run.lab.lease(number) for number in figures["leases"]]
        expect(
            {lease.user for lease in student_leases} == {name},
            f"{name} measured on {student_leases}",
        )
        uuids = {uuid for lease in student_leases for uuid in lease.uuids}
        expect(uuids == set(figures["slices"]), f"{name}: {figures['slices']}, the ledger {uuids}")
        leases += student_leases
    expect(len({lease.id for lease in leases}) == len(leases) == BORROWERS, f"leases: {leases}")
    late = waited_longer(leases, first_tickets)
    expect(len(late) <= LATE, f"waited longer than they were told: {late}")
    waits_s = [
        lease.granted_at - first_tickets[lease.ticket].created_at
        for lease in leases
        if lease.ticket in first_tickets
    ]
    return (
        f"{len(leases)} measured, each on a lease of its own; waits up to "
        f"{max(waits_s, default=0):.0f} s, {len(late)} longer than told"
    )


def waited_longer(
    leases: Sequence[LeaseView], first_tickets: Mapping[int, TicketView]
) -> list[str]:
    """Return, in words, who waited longer than the upper end of their first estimate."""
    late = []
    for lease in leases:
        ticket = first_tickets.get(lease.ticket or 0)
        if ticket is None or ticket.estimate is None:
            continue
        waited_s = lease.granted_at - ticket.created_at
        if waited_s > ticket.estimate.high_s:
            late.append(f"{lease.user} {waited_s:.0f} s, told {ticket.estimate.high_s:.0f} s")
    return late


def all_is_free(run: Run) -> str:
    """Nobody holds or waits for anything, although every server still runs."""
    wait_for(lambda: run.is_empty, "every slice to be free")
    broken = run.lab.broken_invariants()
    expect(not broken, f"invariants: {broken}")
    in_parallel(run.students, Student.leave)
    return "every slice is free; the ledger's invariants hold"

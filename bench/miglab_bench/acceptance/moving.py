"""Steps: one in the queue works without a GPU, keeps the position, and moves to the slice."""

from miglab_api.leases import LeaseState
from miglab_bench.acceptance.run import SHAPE, Run, expect, expect_own_slice
from miglab_bench.acceptance.waiting import wait_in_queue, waited
from miglab_bench.harness.student import wait_for

LEAVING = 3  # who stops and makes room, by number
SHAPE_CELL = "import os; print(os.environ['MIGLAB_SHAPE'])"


def starts_on_cpu(run: Run) -> str:
    """The last in the queue starts without a GPU; JupyterLab shows the same position."""
    student = run.waiting[-1]
    before = run.tickets[student.name]
    student.start_alternative("cpu")
    student.wait_until_ready()
    text = student.run_cell(SHAPE_CELL).strip()
    expect(text == "cpu", f"{student.name}'s server has {text}")
    wait_for(lambda: student.lease()["ticket"] is not None, "the position in JupyterLab")
    shown = student.lease()["ticket"]
    is_kept = shown["id"] == before.id and shown["state"] == "waiting"
    expect(is_kept and student.name not in run.lab.leases(), f"JupyterLab shows {shown}")
    return f"{student.name} runs on CPU, still at {shown['position']} of {shown['waiting']}"


def moves_to_the_slice(run: Run) -> str:
    """One stops; the slice is offered in JupyterLab, and one click restarts the server with it."""
    leaving, served = run.student(LEAVING), run.waiting.pop(0)
    leaving.leave()
    wait_for(lambda: served.lease()["ticket"]["state"] == "offered", "the offer in JupyterLab")
    left_s = served.lease()["ticket"]["left_s"]
    served.move()
    wait_for(lambda: _runs(run, served.name), f"a server with a slice for {served.name}")
    served.wait_until_ready()
    expect_own_slice(run, served)
    served.compute_on()
    offer = f"offered for {left_s:.0f} s"
    return f"{leaving.name} left; {offer}; {waited(run, served)}; {run.positions()}"


def one_comes_back(run: Run) -> str:
    """Who has left asks again, and waits again."""
    back = run.student(LEAVING)
    back.ask(SHAPE)
    return wait_in_queue(run, back, 1)


def _runs(run: Run, name: str) -> bool:
    lease = run.lab.leases().get(name)
    return lease is not None and lease.state is LeaseState.RUNNING

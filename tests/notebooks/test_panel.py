"""The panel in a real kernel through nbclient: predict, run, stop, explain, read again."""

import json
import textwrap

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from tests.needs import needs

from labkit.evidence import evidence as store
from labkit.panel.theme import MIME

needs("torch", "panels measure with torch")
needs("ipywidgets", "panels are widgets")

MAKE = """
import asyncio
from labkit.notebook.steps import timed_step
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel

def sleeper(ms=5):
    import time
    def work():
        time.sleep(ms / 1000)
    return work

steps = tuple(
    timed_step(f"{ms} ms", ms, sleeper, value=lambda m: m.median_s * m.flops,
               seconds=seconds, ms=ms, samples=samples, flops=1e3)
    for ms, seconds, samples in STEPS
)
experiment = Experiment(
    "T-9", "Sleeping <b>longer</b>", "How long?", "asked (ms)", "took (ms)", steps, unit="ms"
)
panel = Panel(experiment)
panel
"""


@pytest.fixture(scope="module")
def kernel():
    """One kernel for tests that look at their own panel alone; each begins in a folder of its own.

    Its first measurement starts the process that imports torch, which the others fork.
    """
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


def run_cells(tmp_path, *cells, kernel=None):
    """Execute cells in `tmp_path`, in a fresh kernel or in this one, which lives on."""
    begin = [f"%reset -f\n%cd -q {tmp_path}"] if kernel is not None else []
    code_cells = [nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in (*begin, *cells)]
    notebook = nbformat.v4.new_notebook(cells=code_cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(
        notebook, km=kernel, timeout=600, kernel_name="python3", resources=resources
    )
    client.execute()
    if kernel is not None:
        client.kc.stop_channels()
    return notebook


def printed(notebook, index=-1):
    """What a cell printed."""
    return "".join(output.get("text", "") for output in notebook.cells[index].outputs)


def test_a_headless_run_saves_marked_evidence(tmp_path, kernel):
    """From code: measured, saved, marked headless, with a static picture in the notebook.

    What is said goes to another widget than the one polite status element, and none is lost.
    """
    notebook = run_cells(
        tmp_path,
        "STEPS = ((2, 60, 6), (4, 60, 6))" + MAKE,
        """
        w = panel._widgets
        texts = [child for child in w.root.children if isinstance(getattr(child, "value", 0), str)]
        live = [child for child in texts if 'aria-live="polite"' in child.value]
        before = live[0].value
        e = await panel.run("3,5 ms", "sleep is never early")
        print(len(e.points), e.headless, e.is_students)
        print(len(live), live[0].value == before, "Done" in w.status.value)
        print(all(child.description for child in (w.said, w.because, w.bar)))
        panel.runner.is_running = True
        panel.runner._say("Measuring."), panel.runner._say("1g.5gb: 3 ahead")
        print("3 ahead" in w.status.value)
        """,
        "panel",
        kernel=kernel,
    )
    assert printed(notebook, -2).split() == ["2", "True", "False", "1", *["True"] * 4]
    bundle = notebook.cells[-1].outputs[0]["data"]
    vega_spec = json.dumps(bundle[MIME])
    assert "you predicted 3.5 ms" in vega_spec
    assert "<b>longer</b>" in vega_spec  # which Vega takes as text
    assert "took (ms) against asked (ms)" in bundle["text/plain"]
    saved = store.load(tmp_path / "evidence" / "T-9.json")
    assert [len(point.records[0].samples_s) for point in saved.points] == [6, 6]
    assert saved.prediction.number == 3.5
    assert "not a GPU" in saved.place


def test_stop_takes_effect_at_once_and_keeps_the_samples(tmp_path, kernel):
    """Run and Stop by their buttons: the run ends long before its time, with the samples so far."""
    notebook = run_cells(
        tmp_path,
        "STEPS = ((50, 60, 1000),)" + MAKE,
        """
        w = panel._widgets
        print(w.run.disabled)
        w.said.value, w.because.value = "fifty", "I asked for it"
        w.lock.click(); print(w.run.disabled, panel.runner.message[:30])
        w.said.value = "50"
        w.lock.click(); print(w.run.disabled)
        w.run.click()
        while not panel.evidence.points:
            await asyncio.sleep(0.05)
        w.stop.click()
        e = await panel.settle()
        print(panel.runner.is_running, e.stopped, 0 < e.samples < 1000, e.is_students)
        """,
        kernel=kernel,
    )
    lines = printed(notebook).splitlines()
    assert lines[0] == "True"
    assert lines[1].startswith("True “fifty” is not a number")
    assert lines[2] == "False"
    assert lines[3] == "False stopped by hand True True"
    assert store.load(tmp_path / "evidence" / "T-9.json").stopped == "stopped by hand"


def test_what_saw_nothing_keeps_the_prediction_and_a_fault_ends_the_run(tmp_path, kernel):
    """Stop before the first sample: Run stays unlocked. A plot that fails: no run without end.

    A failing step ends it with the student's line; nothing is raised into the notebook.
    """
    notebook = run_cells(
        tmp_path,
        "STEPS = ((50, 60, 1000),)" + MAKE,
        """
        panel.lock_in("50", "I asked for it")
        panel.start()
        while panel.runner._task is None:
            await asyncio.sleep(0)
        panel.stop()
        await panel.settle()
        print(panel.can_run, panel.runner.message)
        """,
        """
        from dataclasses import replace
        broken = Panel(replace(experiment, curves=lambda points: points[99]))
        broken._widgets = panel._widgets
        broken.lock_in("50", "I asked for it")
        broken.start()
        while broken._task is None:
            await asyncio.sleep(0)
        await broken.settle()
        print(broken.runner.message, broken._widgets.status.value)
        """,
        "STEPS = ((2, 60, 6),)" + MAKE.replace("time.sleep(ms / 1000)", "time.sleep(nothing)"),
        "e = await panel.run()\nprint(panel.runner.message)",
        kernel=kernel,
    )
    stands, fault, mistake = (printed(notebook, cell) for cell in (-4, -3, -1))
    assert stands.startswith("True Stopped by hand. Nothing was measured")
    assert fault.startswith("This is a fault of labkit, not yours")
    assert "IndexError" in fault.split("<div", 1)[1]
    assert "NameError" in mistake and "time.sleep(nothing)" in mistake

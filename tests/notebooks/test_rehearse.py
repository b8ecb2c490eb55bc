"""Rehearsing and recording: sections, evidence, figures, what may be replayed."""

import sys
import time
from dataclasses import replace

import pytest
from tests.needs import needs

from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Point
from labkit.records import CpuBudget, Device, Lease, Measurement, Place, Tier
from labkit_authoring import cli
from labkit_authoring.gallery import _is_replayable, _write_note, machine_name, page
from labkit_authoring.rehearse import Rehearsal, rehearse

needs("torch", "panels measure with torch")

SOURCE = """# %% [markdown]
# # 9. Sleeping

# %%
from labkit.notebook.steps import timed_step
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel

class Nap:
    def seconds(self):
        return 0.002

def sleeper():
    import time
    return lambda: time.sleep(Nap().seconds())

# %% [markdown]
# ## T-9: how long

# %%
step = timed_step("2 ms", 1, sleeper, value=lambda m: m.median_s * 1e3, seconds=60,
                  samples=6)
kept = Panel(Experiment("T-9", "Sleeping", "How long?", "x", "ms", (step,), unit="ms"))
kept

# %%
# <solution>
evidence = await kept.settle()
# </solution>
evidence.points[0].label
"""
GPU = Device("cuda", "NVIDIA H200", 143155, sms=132, cpu_cores=16.0)

HANGS_S = 600


def test_recording_keeps_evidence_figure_and_page(tmp_path, capsys):
    """On a CPU: a gallery named after the machine, and nothing to be replayed."""
    notebook = tmp_path / "9_sleeping.py"
    notebook.write_text(SOURCE)
    out, recorded = tmp_path / "gallery", tmp_path / "recorded"
    command = ["record", "--out", str(out), "--recorded", str(recorded), str(notebook)]
    assert cli.main(command) == 0
    (folder,) = out.iterdir()
    assert folder.name.startswith("cpu-")
    evidence = store.load(folder / "T-9.json")
    assert (evidence.headless, len(evidence.points[0].records[0].samples_s)) == (True, 6)
    assert (folder / "T-9.svg").read_text().startswith("<svg")
    assert "**T-9 Sleeping**: no verdict asked." in page(folder)
    assert not recorded.exists()
    output = capsys.readouterr().out
    assert "min  T-9: how long" in output
    assert "Experiments drawn: 1, in" in output


def test_a_failing_cell_is_named_and_ends_the_notebook(tmp_path, capsys):
    """The student's own line and its error; exit status 1; what follows does not run."""
    notebook = tmp_path / "bad.py"
    notebook.write_text("# %%\nx = 1\nx / 0\n# %%\nraise SystemExit('never')\n")
    assert cli.main(["rehearse", str(notebook)]) == 1
    assert "line 2: x / 0: ZeroDivisionError: division by zero" in capsys.readouterr().out


def test_a_notebook_that_hangs_is_ended(tmp_path):
    """After its limit it is interrupted, even in a cell that never awaits, and that is said."""
    notebook = tmp_path / "hang.py"
    notebook.write_text(f"# %%\nimport time\ntime.sleep({HANGS_S})\n")
    started_at = time.monotonic()
    failed = rehearse(notebook, tmp_path / "run", limit_s=2).failed
    assert failed == "cell 1 (start): TimeoutError: ended after 2 s, its limit"
    assert time.monotonic() - started_at < HANGS_S / 2


def test_what_cannot_be_done_here_is_a_sentence(tmp_path, capsys):
    """A missing notebook exits 2; so does a make-believe slice where there is no GPU."""
    assert cli.main(["rehearse", str(tmp_path / "none.py")]) == 2
    assert "There is no notebook" in capsys.readouterr().err
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        assert cli.main(["rehearse", "--emulate-slice", "x.py"]) == 2
        assert "needs a GPU" in capsys.readouterr().err


def test_what_records_draws_or_does_not_begin(tmp_path, monkeypatch, capsys):
    """Without what draws the figures, nothing is run for minutes first; exit status 2."""
    notebook = tmp_path / "9_sleeping.py"
    notebook.write_text(SOURCE)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert cli.main(["record", "--out", str(tmp_path / "gallery"), str(notebook)]) == 2
    assert "pip install vl-convert-python" in capsys.readouterr().err
    assert not (tmp_path / "gallery").exists()


def place(*devices):
    return Place(Tier.WHOLE_GPU, devices, "none", CpuBudget(16.0, 16), Lease(), {"torch": "2.11"})


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ((GPU,), "h200-1gpu"),
        ((GPU, GPU), "h200-2gpu"),
        ((replace(GPU, name="NVIDIA A100-SXM4-40GB", is_slice=True),), "a100-sxm4-40gb-1slice"),
        ((Device("cpu", "a CPU", 1024),), "cpu-16core"),
    ],
)
def test_a_machine_has_a_name(devices, name):
    """The gallery's folders say what was there, and how many."""
    assert machine_name(place(*devices)) == name


def measured(device, **changes):
    record = Measurement("f", (1.0,), Tier.WHOLE_GPU, (device,), "cuda events", True)
    point = Point(1, "a", 1.0, (record,))
    evidence = Evidence("DP-2", "t", "x", "here | there", "whole-gpu", "2026", points=(point,))
    return replace(evidence, **changes)


@pytest.mark.parametrize(
    ("evidence", "only", "is_worth"),
    [
        (measured(GPU), ["*"], True),
        (measured(GPU), ["MP-*", "DP-*"], True),
        (measured(GPU), ["MP-*"], False),
        (measured(GPU, stopped="by hand"), ["*"], False),
        (measured(replace(GPU, emulated="sms=16")), ["*"], False),
        (measured(Device("cpu", "a CPU", 1)), ["*"], False),
        (measured(GPU, points=()), ["*"], False),
    ],
)
def test_only_whole_runs_on_a_real_gpu_are_replayed(evidence, only, is_worth):
    """Nothing emulated, nothing from a CPU, nothing cut short."""
    assert _is_replayable(evidence, only) is is_worth


def test_the_page_survives_any_text_and_names_an_emulated_slice_as_its_records_do(tmp_path):
    """A bar or a line's end breaks no table.

    The process that records sees the whole GPU; only its children are confined.
    """
    run = Rehearsal("a.py", tmp_path, failed='one\ntwo | "three"')
    small = replace(GPU, is_slice=True, sms=16, emulated="sms=16")
    store.save(measured(small), tmp_path)
    _write_note(tmp_path, place(GPU), [measured(small)], [run])
    text = page(tmp_path)
    assert 'one two \\| "three"' in text
    assert "here \\| there" in text
    assert f"on 1 × {small.label}." in text

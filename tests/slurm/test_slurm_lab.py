"""A lab whose lab.toml says `spawner = "slurm"`, started as `./lab up` starts it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from miglab_bench.harness.slurm_cluster import confines_devices, missing
from miglab_bench.harness.slurm_lab import SlurmLab, slurm_lab
from miglab_bench.harness.student import Student

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """A lab with one notebook."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    notebooks = tmp_path_factory.mktemp("notebooks")
    (notebooks / "hello.ipynb").write_text("{}")
    with slurm_lab(notebooks=str(notebooks)) as lab:
        yield lab


def test_a_student_gets_a_slice_of_the_cluster(lab: SlurmLab):
    """Sign in, ask, run a cell in a job of the slice, with the notebooks at hand; then stop."""
    ada = Student(lab.lab.settings.public_url, "ada", lab.lab.password)
    ada.sign_in()
    ada.ask("1g.5gb")
    ada.wait_until_ready()
    said = ada.run_cell("import os; print(os.environ['SLURM_JOB_ID'], os.listdir('notebooks'))")
    job, _, there = said.strip().partition(" ")
    assert "hello.ipynb" in there
    assert lab.cluster.job(int(job))["TresPerNode"].endswith("gpu:1g.5gb:1")
    ada.leave()
    ada.close()
    lab.cluster.until(lambda: not lab.cluster.command("squeue", "-h"), "the job is over", 60)


def test_an_unknown_partition_is_named(lab: SlurmLab, tmp_path: Path):
    """The lab does not start, and says which partitions there are."""
    text = lab.lab.settings.file.read_text().replace('"labcpu"', '"nowhere"')
    text = text.replace(f"port = {lab.lab.settings.lab.port}", "port = 19500")
    (tmp_path / "lab.toml").write_text(text)
    command = [sys.executable, "-m", "miglab_hub.cli", "up", "--config", str(tmp_path / "lab.toml")]
    ended = subprocess.run(
        command, env=lab.cluster.environment, capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 2
    assert "Slurm has no partition nowhere; it has lab, labcpu" in ended.stderr


def doctor(lab: SlurmLab, *changes: tuple[str, str]) -> dict[str, str]:
    """What `miglab doctor` finds wrong, with a changed lab.toml; finding to what is to be done."""
    text = lab.lab.settings.file.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file = lab.lab.settings.folder / "doctor.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "miglab_hub.cli", "doctor", "--config", str(file), "--json"]
    said = subprocess.run(
        command, env=lab.cluster.environment, capture_output=True, text=True, timeout=120
    )
    assert said.returncode in (0, 1), said.stderr
    findings = json.loads(said.stdout)["findings"]
    return {f"{one['what']}: {one['found']}": one["do"] for one in findings if one["do"]}


def test_doctor_reads_the_real_daemons(lab: SlurmLab):
    """What this cluster lacks, and what lab.toml asks that it cannot give."""
    lacks = {"EnforcePartLimits: NO"} | (set() if confines_devices() else {"process tracking"})
    assert {found for found in doctor(lab) if "isolation" not in found} == lacks
    wrong = doctor(
        lab,
        ('gres = "gpu:3g.20gb:1"', 'gres = "gpu:7g.40gb:1"'),
        ('partition = "labcpu"', 'partition = "labcpu"\ntime_limit_min = 600'),
        ('[slurm.shapes."1g.5gb"]', '[slurm.shapes."1g.5gb"]\nreservation = "exam"'),
    )
    assert "shape 3g.20gb: No node of this site has such a slice." in wrong
    assert "limits in labcpu: MaxTime is 240 minutes, time_limit_min 600" in wrong
    assert "Requested node configuration" in next(key for key in wrong if "sbatch for 3g" in key)
    assert any("sbatch for 1g.5gb: refused" in key for key in wrong)


def test_doctor_says_that_slurm_is_silent(lab: SlurmLab):
    """Nothing is reported as fine that could not be looked at."""
    lab.cluster.kill("munged")
    try:
        (found,) = (found for found in doctor(lab) if found.startswith("Slurm"))
        assert "unknown" in found
    finally:
        lab.cluster.start()

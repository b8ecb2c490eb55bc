"""A lab whose lab.toml says `spawner = "slurm"`, started as `./lab up` starts it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from miglab_bench.harness.slurm_cluster import missing
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

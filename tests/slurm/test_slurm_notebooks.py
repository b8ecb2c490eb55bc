"""What a student finds in a notebook's terminal: the site's modules, and the job as it is."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.students import served

from miglab_bench.harness.student import Student
from miglab_slurm_bench.cluster import missing
from miglab_slurm_bench.lab import PROGRAMS, SlurmLab, slurm_lab

pytestmark = pytest.mark.long
MODULES = Path("/etc/profile.d/modules.sh")
MODULE = f"#%Module\nprepend-path PATH {PROGRAMS}\nsetenv LAB_MODULE loaded\n"
MPI_AS_ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """A lab whose Python is a module of the site's."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    if not MODULES.exists():
        pytest.skip("no modules here: apt-get install environment-modules")
    modules = tmp_path_factory.mktemp("modules")
    (modules / "jupyter").write_text(MODULE)
    prologue = f"module use {modules}\nmodule load jupyter"
    with slurm_lab(prologue=prologue, shape="cpus = 2") as lab:
        yield lab


@pytest.fixture(scope="module")
def student(lab: SlurmLab) -> Iterator[Student]:
    """Ada, on a slice."""
    ada = served(lab.lab, "ada", "1g.5gb")
    yield ada
    ada.leave()
    ada.close()


def test_the_prologue_loads_a_module(student: Student) -> None:
    """`module` is a function of the site's login shells, which a batch script is not."""
    assert student.run_cell("import os; print(os.environ['LAB_MODULE'])") == "loaded\n"
    assert "jupyter" in student.run_in_terminal("module list 2>&1")


def test_a_terminal_is_a_clean_allocation(student: Student, lab: SlurmLab) -> None:
    """No variable of a step, of a binding or of the lab's own readings reaches it."""
    names = student.run_in_terminal("env | cut -d= -f1").split()
    stray = ("SLURM_STEP", "SLURM_CPU_BIND", "SLURM_SRUN", "SLURM_LAUNCH", "SLURM_TIME_FORMAT")
    assert [name for name in names if name.startswith(stray)] == []
    assert {"SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_CONF"} <= set(names)
    assert "LC_ALL" not in names


def test_srun_in_a_terminal_runs_on_the_servers_own_job(student: Student, lab: SlurmLab) -> None:
    """At once, with the job's slice, and as often as it is asked."""
    script = "srun sh -c 'echo $SLURM_JOB_ID $SLURM_STEP_ID $SLURM_STEP_GPUS'"
    job = student.run_in_terminal("echo $SLURM_JOB_ID").strip()
    steps = [student.run_in_terminal(f"timeout 60 {script}").split() for _ in range(2)]
    assert [step[0] for step in steps] == [job, job]
    assert [step[1] for step in steps] == ["0", "1"]
    assert all(len(step) == 3 for step in steps)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: apt-get install openmpi-bin")
def test_mpirun_in_a_terminal_runs_on_the_servers_own_job(student: Student) -> None:
    """As many ranks as the job has tasks, or more by the usual option."""
    output = student.run_in_terminal(f"{MPI_AS_ROOT} timeout 60 mpirun sh -c 'echo $SLURM_JOB_ID'")
    assert output == student.run_in_terminal("echo $SLURM_JOB_ID")
    oversubscribed = "mpirun --oversubscribe -n 2 sh -c 'echo $OMPI_COMM_WORLD_RANK'"
    ranks = student.run_in_terminal(f"{MPI_AS_ROOT} timeout 60 {oversubscribed}")
    assert sorted(ranks.split()) == ["0", "1"]

"""Every state of the manual, as commands print it: waiting, alive, or over."""

from dataclasses import replace

import pytest

from miglab_slurm.records import SlurmJob
from miglab_slurm.states import PHASES, JobPhase, phase_of

MANUAL = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "CONFIGURING", "DEADLINE", "EXPEDITING",
    "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PENDING", "POWER_UP_NODE",
    "PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING",
    "RESV_DEL_HOLD", "REVOKED", "RUNNING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
    "SUSPENDED", "TIMEOUT", "UPDATE_DB",
)  # fmt: skip
"""Those of squeue(1) of 22.05 and 25.05, base states and flags."""
JOB = SlurmJob(
    id=7, state="", reason="", submitted_at=0.0, started_at=None, ends_at=None, priority=1,
    gres={}, account="ada", nodes="", partition="lab",
)  # fmt: skip


@pytest.mark.parametrize("state", MANUAL)
def test_each_state_of_the_manual_is_in_one_row(state: str) -> None:
    """Of none is it left to chance what it means."""
    assert [state in states for states in PHASES.values()].count(True) == 1


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", JobPhase.WAITING),
        ("CANCELLED by 1000", JobPhase.OVER),
        ("CANCELLED+COMPLETING", JobPhase.ALIVE),
        ("COMPLETED,STAGE_OUT", JobPhase.ALIVE),
        ("PENDING+REQUEUED", JobPhase.WAITING),
        ("NODE_FAIL+REQUEUED", JobPhase.WAITING),
        ("RUNNING+CONFIGURING+POWER_UP_NODE", JobPhase.ALIVE),
        ("PENDING LAUNCH_FAILED", JobPhase.ALIVE),
        ("FAILED+OF_A_LATER_SLURM", JobPhase.ALIVE),
        ("OF_A_LATER_SLURM", JobPhase.ALIVE),
        ("", JobPhase.ALIVE),
    ],
)
def test_several_at_once_and_the_unknown(state: str, phase: JobPhase) -> None:
    """A job is over only if nothing in its state says anything else."""
    assert phase_of(state) is phase


@pytest.mark.parametrize(
    ("state", "is_running", "holds", "is_prepared", "has_left"),
    [
        ("PENDING", False, False, False, False),
        ("CONFIGURING", False, True, True, False),
        ("RUNNING", True, True, False, False),
        ("RUNNING+SIGNALING", True, True, False, False),
        ("RUNNING+CONFIGURING", False, True, True, False),
        ("SUSPENDED", False, True, False, False),
        ("COMPLETING", False, False, False, True),
        ("TIMEOUT+COMPLETING", False, False, False, True),
        ("TIMEOUT", False, False, False, True),
    ],
)
def test_what_a_job_does(
    state: str, is_running: bool, holds: bool, is_prepared: bool, has_left: bool
) -> None:
    """Whether its script runs, whether it has its slices, and whether it is on its way out."""
    job = replace(JOB, state=state)
    assert (job.is_running, job.holds, job.is_prepared, job.has_left) == (
        is_running, holds, is_prepared, has_left,
    )  # fmt: skip

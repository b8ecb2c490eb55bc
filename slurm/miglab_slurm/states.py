"""Every state of a job that Slurm's manual names (22.05 to 25.05): it waits, is alive, or is over.

A state that is in no table is alive: of what we do not know, nothing is cancelled, ended, or
submitted again.  Commands print a base state, a flag in its place, or several joined by ``+``.
"""

import re
from enum import Enum, auto


class JobPhase(Enum):
    """What a state means for whoever asked for the job."""

    WAITING = auto()
    ALIVE = auto()
    OVER = auto()


NOT_SHOWN = "NOT_SHOWN"
"""Ours, not Slurm's: Slurm answered, and did not show a job of the lab; it may be alive."""
LOST = "LOST"
"""Ours: Slurm has not shown the job for a stated time, and nothing answers on its node either."""

PHASES = {
    JobPhase.WAITING: frozenset(
        {
            "PENDING",
            "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
        }
    ),
    JobPhase.ALIVE: frozenset(
        {
            "RUNNING", "SUSPENDED", NOT_SHOWN,
            # Flags.  REVOKED: another cluster of the federation has it.  LAUNCH_FAILED and
            # RECONFIG_FAIL stand beside the base state that says what becomes of the job.
            "COMPLETING", "CONFIGURING", "EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE",
            "RECONFIG_FAIL", "RESIZING", "REVOKED", "SIGNALING", "STAGE_OUT", "STOPPED",
            "UPDATE_DB",
        }
    ),
    JobPhase.OVER: frozenset(
        {
            "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
            "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", LOST,
        }
    ),
}  # fmt: skip
LEAVING = frozenset({"COMPLETING", "STAGE_OUT"})
"""Its processes have ended, or are being ended; its slices count as free already."""
RUNS = frozenset({"RUNNING", "RESIZING", "SIGNALING", "EXPEDITING"})
"""Its script runs."""
PREPARED = frozenset({"CONFIGURING", "POWER_UP_NODE"})
"""It has its slices, and its node boots or is being prepared."""

_PHASE_OF = {state: phase for phase, states in PHASES.items() for state in states}


def words_of(state: str) -> frozenset[str]:
    """The base state and flags in what a command prints; `sacct` adds who cancelled a job."""
    first = state.upper().split(" BY ")[0]
    return frozenset(re.findall(r"\w+", first))


def phase_of(state: str) -> JobPhase:
    """What a state means: it is over only if nothing in it says anything else."""
    phases = {_PHASE_OF.get(flag, JobPhase.ALIVE) for flag in words_of(state)}
    if phases == {JobPhase.OVER}:
        return JobPhase.OVER
    return JobPhase.ALIVE if JobPhase.ALIVE in phases or not phases else JobPhase.WAITING

"""How a start is refused and an end explained: in a sentence, and a word for the metric."""

from collections.abc import Mapping
from typing import Any

from tornado import web

from miglab_api.leases import LeaseView
from miglab_spawner.home_size import GIB

try:
    from jupyterhub.spawner import SpawnException
except ImportError:  # JupyterHub 5

    class SpawnException(web.HTTPError):  # type: ignore[no-redef]
        """As in JupyterHub 6; JupyterHub 5 logs a traceback, and would set `reason` to "error"."""

        def __init__(
            self, message: str, *, reason: str, log_message: str = "", status_code: int = 400
        ) -> None:
            self._reason = reason
            super().__init__(status_code, "%s", log_message or message)
            self.message = message

        @property
        def reason(self) -> str:
            """Return the reason that metrics count."""
            return self._reason

        @reason.setter
        def reason(self, _by_the_hub: str | None) -> None:
            """Ignore JupyterHub 5, which would set it to "error"."""


#: The reasons the spawner itself gives; the pool's own are passed on unchanged.
REASONS = {
    "token-lacks-scope": "The hub gives servers' tokens no right to their lease, because of a role "
    "or of `server_token_scopes` of the site's. A server without a GPU still starts.",
    "bad-options": "The options of the start were not understood.",
    "not-in-course": "The course asked for is not one of the user's.",
    "pool-unreachable": "The pool service did not answer for as long as `pool_patience_s`.",
    "pool-misunderstood": "The pool service answered something that is no answer.",
    "home-too-large": "The home takes more than `home_gib`, or holds more files than go with it. A "
    "server without a GPU still starts, so that files can be deleted.",
    "home-not-measured": "Measuring the home took too long. A server without a GPU still starts.",
    "slurm-unreachable": "Slurm did not answer, or a command of it did not end in time.",
    "slurm-misunderstood": "Slurm answered something that is no answer.",
    "slurm-refused": "`sbatch` refused the job for a reason that none of the others names.",
    "account-refused": "The student's account may not submit jobs, or not with this partition, QOS "
    "or reservation.",
    "no-partition": "The partition of the site's table does not exist.",
    "no-reservation": "The reservation of the site's table does not exist now.",
    "partition-down": "The partition is closed.",
    "bad-site-table": "The site's table asks for more than Slurm allows.",
    "never-runs": "Slurm accepted the job, and says that it can never run.",
    "job-ended": "The job ended before its server answered.",
    "open-network": "On the Docker network that the site names servers reach one another.",
    "name-taken": "Its container's, network's or home volume's name is already taken by another.",
    "no-home": "Neither `home_dir` nor the image says where the home is, so no file would be kept.",
    "home-unknown": "`home_names_file`, which says whose home is whose, cannot be read.",
    "create-timeout": "The server could not be made within `create_timeout_s`.",
    "old-server-remains": "An earlier server of the same name still holds its slices.",
    "slice-without-uuid": "The pool granted a slice of which it does not know the UUID.",
    "slice-not-there": "`nvidia-smi -L` in the container listed other slices than the lease's.",
    "slice-unknown": "`nvidia-smi -L` in the container failed, took too long, or is not there.",
}

#: Refusals that asking again cannot change: the choice is forgotten, so the next start is free.
PERMANENT_REFUSALS = frozenset(
    {"bad-options", "not-in-course", "bad-shape", "impossible-shape", "shape-not-offered"}
)


class NotStarted(SpawnException):
    """A refused start, with a message for the student.

    JupyterHub's pages show ``jupyterhub_message`` where an exception has one, else the technical
    ``str()`` of the exception or nothing at all.
    """

    def __init__(self, message: str, *, reason: str, status_code: int = 400, **kwargs: Any) -> None:
        super().__init__(message, reason=reason, status_code=status_code, **kwargs)
        self.jupyterhub_message = message


def stop_message(lease: LeaseView) -> str:
    """Return why a server was stopped, for the spawn page; empty if nobody asked for it."""
    if lease.is_given_back:
        return "You released your GPU slice, so your server was stopped. Your files are kept."
    if lease.release_requested_at is None or not lease.reason:
        return ""
    return f"Your server was stopped, because its slice was reclaimed: {lease.reason}"


def container_end_message(state: Mapping[str, Any], mem_bytes: int) -> str:
    """Return why a container ended, for its student.

    Args:
        state: ``State`` of Docker's inspect.
        mem_bytes: the memory it was allowed.

    Returns:
        Empty for one that runs, was never started, or ended in peace.
    """
    if state.get("Running") or state.get("Status") == "created":
        return ""
    if state.get("OOMKilled"):
        return (
            f"Your last server needed more than its {mem_bytes / GIB:.3g} GiB of memory and was "
            "ended. Your files are there; what was in memory is lost. "
            "Load less at a time, or choose a bigger shape."
        )
    return process_end_message(int(state.get("ExitCode") or 0))


def process_end_message(exit_code: int) -> str:
    """Return why a process ended; negative codes are signals, 0 is a normal or unknown end."""
    if exit_code == 0:
        return ""
    signal = -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    outcome = f"was ended by signal {signal}" if signal else f"ended with exit code {exit_code}"
    return f"Your last server {outcome}. Your files are there; what was in memory is lost."

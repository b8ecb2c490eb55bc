"""Why a server ended, in words for its owner.  Pure."""

from collections.abc import Mapping
from typing import Any

from miglab_spawner.containers.limits import GIB


def why_container_ended(state: Mapping[str, Any], mem_bytes: int) -> str:
    """The words for a container that runs no more.

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
    return why_process_ended(int(state.get("ExitCode") or 0))


def why_process_ended(exit_code: int) -> str:
    """The words for an exit code; negative for a signal, 0 for peace (and for not known)."""
    if exit_code == 0:
        return ""
    signal = -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    how = f"was ended by signal {signal}" if signal else f"ended with exit code {exit_code}"
    return f"Your last server {how}. Your files are there; what was in memory is lost."

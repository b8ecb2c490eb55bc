"""The gate: the same process before and after, and nothing without a go."""

import subprocess
import sys

import pytest

from miglab_spawner import gate

SHOW_PID = [sys.executable, "-S", "-c", "import os; print(os.getpid())"]


def behind_gate(pipe_bytes: bytes, command: list[str]) -> tuple[int, int, str]:
    """Pid, exit status and output of a command behind the gate."""
    gated = [sys.executable, "-I", "-S", str(gate.__file__), *command]
    with subprocess.Popen(gated, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        printed, _ = process.communicate(pipe_bytes)
    return process.pid, process.returncode, printed.decode().strip()


def test_the_process_becomes_the_command():
    """After the go the command runs under the very pid that waited."""
    pid, code, printed = behind_gate(gate.GO, SHOW_PID)
    assert (code, printed) == (0, str(pid))


@pytest.mark.parametrize("pipe_bytes", [b"", b"g", b"no\n", b"GO\n"])
def test_without_a_go_nothing_runs(pipe_bytes: bytes):
    """A pipe that closes, or says anything else, ends the process."""
    _, code, printed = behind_gate(pipe_bytes, SHOW_PID)
    assert (code, printed) == (gate.NOT_TOLD, "")


def test_a_command_that_is_not_there_has_its_own_status():
    """The shell's status for it, not a traceback."""
    assert behind_gate(gate.GO, ["/no/such/program"])[1] == gate.CANNOT_RUN

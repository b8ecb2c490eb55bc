"""Ports that one process was given are nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from miglab_bench.harness import processes

ANOTHER = """
import sys
from miglab_bench.harness import processes
processes.PORT_RANGE = [int(sys.argv[1])]
try:
    print(processes.free_ports(1))
except processes.NoFreePorts:
    print("none")
"""


def ports_of_another_process(only: int, **environment: str) -> str:
    """What another process is given of one port."""
    command = [sys.executable, "-c", ANOTHER, str(only)]
    return subprocess.check_output(command, text=True, env=os.environ | environment).strip()


def test_two_that_look_before_either_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The ports are free to see; neither this process nor another gets them again."""
    only = processes.free_ports(1)
    monkeypatch.setattr(processes, "PORT_RANGE", [only])
    with pytest.raises(processes.NoFreePorts):
        processes.free_ports(1)
    assert ports_of_another_process(only) == "none"
    assert ports_of_another_process(only, TMPDIR=str(tmp_path)) == str(only), (
        "nobody has been given any there"
    )

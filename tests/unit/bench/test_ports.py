"""Ports that one process was given are nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from miglab_bench.harness import ports

ANOTHER = """
import sys
from miglab_bench.harness import ports
ports.PORT_RANGE = [int(sys.argv[1])]
try:
    print(ports.free_ports(1))
except ports.NoFreePorts:
    print("none")
"""


def test_two_that_look_before_either_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The ports are free to see; neither this process nor another gets them again."""
    only = ports.free_ports(1)
    monkeypatch.setattr(ports, "PORT_RANGE", [only])
    with pytest.raises(ports.NoFreePorts):
        ports.free_ports(1)
    said = subprocess.check_output([sys.executable, "-c", ANOTHER, str(only)], text=True)
    assert said == "none\n"
    elsewhere = {**os.environ, "TMPDIR": str(tmp_path)}  # where nobody has been given any
    said = subprocess.check_output(
        [sys.executable, "-c", ANOTHER, str(only)], text=True, env=elsewhere
    )
    assert said == f"{only}\n"
